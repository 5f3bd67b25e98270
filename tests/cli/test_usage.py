"""Whatever is asked wrongly: one line on stderr, the right code, never a traceback."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from api.cli import main
from api.cli.index import MODULES
from api.cli.shell import load_all

ACCEPT = ("accept", "--operation", "op", "--entity", "case/1", "--action", "note")
IMPORT = ("import", "--entity-type", "case", "--entity", "case", "--action", "action")

BAD = {
    "no command": ((), "a command is missing"),
    "no command of a group": (("recover",), "unrewind recover --help"),
    "unknown command": (("frobnicate",), "frobnicate"),
    "unknown flag": (("status", "--frob"), "--frob"),
    "flag without its value": (("status", "--data"), "--data"),
    "surplus argument": (("status", "surplus"), "surplus"),
    "empty data directory": (("status", "--data", ""), "--data"),
    "data is a file": (("status", "--data", "unrewind.toml"), "not a directory"),
    "no such config": (("status", "--config", "nowhere.toml"), "nowhere.toml"),
    "config is a directory": (("status", "--config", "."), "directory"),
    "tenant's name": (("status", "--tenant", "../etc"), "tenant"),
    "port is no number": (("serve", "--port", "many"), "many"),
    "port out of range": (("serve", "--port", "70000"), "70000"),
    "token without a role": (("token", "create"), "--role"),
    "token of an unknown role": (("token", "create", "--role", "god"), "god"),
    "token with an empty name": (("token", "create", "--role", "reader", "--name", ""), "name"),
    "revoke without an ID": (("token", "revoke"), "ID"),
    "accept without an entity": (("accept", "--operation", "a", "--action", "b"), "--entity"),
    "entity without a type": ((*ACCEPT, "--entity", "inv-1"), "type/id"),
    "undeclared entity type": ((*ACCEPT, "--entity", "claim/1"), "[lifecycle.claim]"),
    "control entity": ((*ACCEPT, "--entity", "control/tenant"), "control"),
    "empty operation": ((*ACCEPT, "--operation", ""), "operation"),
    "long operation": ((*ACCEPT, "--operation", "x" * 257), "256"),
    "control character": ((*ACCEPT, "--action", "a\x1bb"), "control character"),
    "not UTF-8": ((*ACCEPT, "--actor", b"\xff"), "surrogate"),
    "body is not JSON": ((*ACCEPT, "--body", "{oops"), "not JSON"),
    "body is empty": ((*ACCEPT, "--body", ""), "not JSON"),
    "body repeats a key": ((*ACCEPT, "--body", '{"a":1,"a":2}'), "repeats the key"),
    "body holds NaN": ((*ACCEPT, "--body", '{"a":NaN}'), "not JSON"),
    "body holds a big integer": ((*ACCEPT, "--body", '{"a":9007199254740993}'), "2^53"),
    "body nested too deeply": ((*ACCEPT, "--body", "[" * 999 + "]" * 999), "recursion"),
    "two bodies": ((*ACCEPT, "--body", "{}", "--body-file", "x"), "exclude"),
    "no such body file": ((*ACCEPT, "--body-file", "nowhere"), "nowhere"),
    "time without an offset": ((*ACCEPT, "--at", "2026-01-01T00:00:00"), "offset"),
    "time too fine": ((*ACCEPT, "--at", "2026-01-01T00:00:00.1234567Z"), "microseconds"),
    "no such day": ((*ACCEPT, "--at", "2026-02-30T00:00:00Z"), "at"),
    "negative revision": ((*ACCEPT, "--expected-revision", "-1"), "-1"),
    "no such file": ((*IMPORT, "nowhere.csv"), "nowhere.csv"),
    "import of a directory": ((*IMPORT, "."), "directory"),
    "file of unknown kind": ((*IMPORT, "unrewind.toml"), "--format"),
    "no such column": ((*IMPORT, "unrewind.toml", "--format", "csv"), "no column case, action"),
    "no such zone": ((*IMPORT, "unrewind.toml", "--timezone", "Mars/Olympus"), "Mars/Olympus"),
    "wide delimiter": ((*IMPORT, "unrewind.toml", "--delimiter", "--"), "one character"),
    "bad entity type": ((*IMPORT, "x.csv", "--entity-type", "Case"), "entity type"),
    "caller-owned type": ((*IMPORT, "x.csv", "--entity-type", "theirs"), "caller-owned"),
    "restore unconfirmed": (("restore", "somewhere"), "--confirm-tenant"),
    "no such snapshot": (
        ("restore", "nowhere", "--confirm-tenant", "main", "--confirm-history", "0"),
        "nowhere",
    ),
    "bad cursor": (("gaps", "--after", "%"), "cursor"),
    "page too large": (("gaps", "--limit", "1001"), "1001"),
    "history without an entity": (("history",), "TYPE/ID"),
    "unknown command of a listing": (("releases", "frobnicate"), "frobnicate"),
    "unknown status": (("releases", "--status", "lost"), "lost"),
    "unknown flag of a listing": (("lanes", "--frob"), "--frob"),
    "bad cursor of a listing": (("releases", "--after", "%"), "cursor"),
    "flag of a group without its value": (("releases", "--data"), "--data"),
    "show without an ID": (("releases", "show"), "ID"),
    "cancel without a reason": (("releases", "cancel", "rel_1"), "--reason"),
    "settle without what happened": (
        ("releases", "settle", "rel_1", "--evidence", "x"),
        "--did-not-happen",
    ),
    "settle without evidence": (("releases", "settle", "rel_1", "--happened"), "--evidence"),
    "pause without a reason": (("lanes", "pause", "delivery"), "--reason"),
    "pause for an empty reason": (("lanes", "pause", "delivery", "--reason", ""), "reason"),
    "pause of no lane": (("lanes", "pause", "nowhere", "--reason", "x"), "nowhere"),
    "replay of everything": (("dead-letters", "replay", "--reason", "x"), "--lane LANE or --id"),
    "drain of everything": (("dead-letters", "drain", "--reason", "x"), "--lane LANE or --id"),
    "replay of too many": (("dead-letters", "replay", "--limit", "1001"), "1001"),
    "sweep of nothing": (("sweep", "--limit", "0"), "0"),
    "where without an operation": (("where",), "OPERATION"),
    "where is an unknown operation": (("where", "op-none"), "op-none"),
    "token of a receiver without its name": (
        ("token", "create", "--role", "receiver"),
        "--name is missing",
    ),
    "token of an undeclared receiver": (
        ("token", "create", "--role", "receiver", "--name", "bank"),
        "no receiver bank",
    ),
}

IN_A_TENANT = {
    "bad cursor",
    "bad cursor of a listing",
    "pause for an empty reason",
    "pause of no lane",
    "where is an unknown operation",
}

AS_A_PROCESS = {"no command", "not UTF-8", "unknown flag", "body is not JSON", "no such zone"}


@pytest.mark.parametrize("name", BAD)
def test_bad_usage_is_one_line_and_exit_code_2(cli, name):
    words, said = BAD[name]
    if name in IN_A_TENANT:
        cli.accept("op-1")
    if name == "caller-owned type":
        with (cli.home / "unrewind.toml").open("a") as config:
            config.write('[lifecycle.theirs]\nkind = "free"\nowner = "caller"\n')
    run = cli.process if name in AS_A_PROCESS else cli
    done = run(*(os.fsdecode(word) for word in words))
    done.complains(2, said)
    assert done.out == ""


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("data = [", "unrewind.toml"),
        ("dta = 'x'", "dta"),
        ("port = 'many'", "port"),
        ("max_batch = 0", "max_batch"),
        ("lock_timeout = -1", "lock_timeout"),
        ("[lifecycle.case]\nkind = 'loose'", "loose"),
        ("[lifecycle.case]\nkind = 'declared'", "lifecycle.case"),
        ("[lifecycle.case]\nkind = 'free'\nowner = 'embedded'", "projection"),
        ("[lifecycle.case]\nkind='free'\nowner='embedded'\nprojection='no.such:thing'", "no.such"),
        ("store = 'x'\njournal = 'x'", "different directories"),
        ("\udcff", "unrewind.toml"),
    ],
)
def test_bad_settings_are_one_line_and_exit_code_2(cli, config, said):
    path = cli.home / "unrewind.toml"
    path.write_bytes(config.encode(errors="surrogateescape"))
    cli("accept", "--operation", "a", "--entity", "case/1", "--action", "b").complains(2, said)


def test_bad_environment_is_named(cli):
    cli("status", UNREWIND_PORT="many").complains(2, "port")
    cli("status", UNREWIND_CONFIG="nowhere.toml").complains(2, "nowhere.toml")


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("gaps",),
        ("history", "case/1"),
        ("verify",),
        ("snapshot", "s"),
        ("token", "list"),
        ("token", "revoke", "x"),
        ("releases",),
        ("releases", "show", "rel_1"),
        ("releases", "cancel", "rel_1", "--reason", "x"),
        ("commands",),
        ("lanes",),
        ("lanes", "pause", "delivery", "--reason", "x"),
        ("dead-letters",),
        ("dead-letters", "drain", "--lane", "delivery", "--reason", "x"),
        ("sweep",),
        ("where", "op-1"),
        ("observations",),
        ("recover", "begin"),
        ("recover", "plan"),
        ("recover", "apply"),
        ("recover", "reopen"),
    ],
)
def test_without_a_tenant_nothing_is_created_and_the_code_is_3(cli, words):
    cli(*words).complains(3, "no tenant main under data")
    assert sorted(path.name for path in cli.home.iterdir()) == ["unrewind.toml"]


def test_with_json_an_error_is_an_object_too(cli):
    done = cli("status", "--json")
    done.complains(3)
    assert done.json["error"] == "refused"
    assert done.json["detail"] in done.err
    usage = cli("gaps", "--limit", "0", "--json")
    usage.complains(2)
    assert usage.json["error"] == "usage"
    cli.accept("op-1")
    wrong = cli(*ACCEPT, "--expected-revision", "7", "--json")
    wrong.complains(3)
    assert wrong.json["error"] == "revision-mismatch"
    assert wrong.json["actual"] == 1


def test_flags_may_stand_before_the_command_or_after(cli):
    cli.accept("op-1", "case/1", "note", "--data", "elsewhere")
    assert cli("--data", "elsewhere", "--json", "status").json["sequence"] == 1
    assert cli("token", "--data", "elsewhere", "list", "--json").json == {"tokens": []}


def test_a_data_directory_that_cannot_be_made_is_one_line(cli):
    (cli.home / "file").write_text("")
    done = cli(*ACCEPT, "--data", "file/below")
    done.complains(3, "file/below")


def test_permission_denied_is_one_line(cli):
    cli.accept("op-1")
    (cli.home / "data/main.lock").unlink()
    (cli.home / "data/main.lock").mkdir()
    cli(*ACCEPT).complains(3, "main.lock")


def test_a_full_stdout_is_told_on_stderr(cli):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    cli.accept("op-1")
    with full.open("wb") as out:
        done = subprocess.run(
            cli.words("status"),
            cwd=cli.home,
            env=cli.environment,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert done.returncode == 3
    assert done.stderr.decode().startswith("unrewind: no space left")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_pipe_is_quiet(cli):
    cli.accept("op-1")
    child = cli.start("history", "case/1")
    assert child.stdout is not None
    child.stdout.close()
    assert child.wait(60) == 141
    assert child.stderr.read() == b""
    child.stdin.close()
    child.stderr.close()


def test_a_person_at_a_terminal_gets_help(cli):
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        cli.words(), cwd=cli.home, env=cli.environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:
        pass  # a terminal ends like this
    os.close(ours)
    assert child.wait(60) == 2
    assert b"snapshot" in said


def test_every_command_explains_itself(cli):
    for words in (
        *((), ("accept",), ("recover",), ("recover", "begin"), ("import",)),
        *(("releases",), ("releases", "list"), ("lanes",), ("lanes", "off"), ("sweep",)),
    ):
        done = cli(*words, "--help")
        assert done.code == 0
        assert "--json" in done.out
        assert done.err == ""
    assert cli("--version").out.startswith("unrewind ")


def test_the_index_names_the_module_of_every_command():
    def found(group: click.Group, path: tuple[str, ...], home: str) -> Iterator[tuple[str, str]]:
        for name, command in group.commands.items():
            module = command.callback.__module__.rpartition(".")[2]
            if module != home:
                yield " ".join((*path, name)), module
            if isinstance(command, click.Group):
                yield from found(command, (*path, name), module)

    load_all()
    assert dict(found(main, (), "program")) == MODULES


def test_a_command_that_looks_starts_without_what_it_does_not_need(cli):
    cli.accept("op-1")
    heavy = {"aiosqlite", "asyncio", "rich", "rich_click", "multiprocessing", "psycopg", "nats"}
    script = f"""
import sys
from api.cli import main
try:
    main(["status"])
except SystemExit as done:
    sys.exit(done.code or f"imported: {{sorted({heavy} & set(sys.modules))}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=cli.home,
        env=cli.environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b"imported: []\n"
