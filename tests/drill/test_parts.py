"""The parts of a drill, each by itself."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from api.cli import main
from api.drill import borrowing, comparing, rolling, site, struck
from api.drill.page import page
from api.drill.report import BROKE, HELD, NOT_REACHED, Kept, Report, Time, sentences
from api.drill.story import Check, Step
from api.drill.wire import call
from journal import Settings
from journal.detection import Verdict
from journal.errors import Refused
from journal.lanes import Contract, Effect, Lane, Receiver
from journal.lifecycle import Action, Command, Lifecycle, Mode
from journal.settings import Alert, load
from journal.standing import examine
from journal.worker import drive

BAD = Check("P3", "calls <before>", "none", "rel_1 & rel_2", held=False)
REPORT = Report(
    at="2026-01-01T00:00:00.000000Z",
    directory="rehearsals/<1>",
    held=False,
    broke=["P3"],
    missed=["objective missed: safe service again within 1 s; it took 3.0 s"],
    stuck="apply: it ended with 1",
    seconds=12.5,
    promises=[
        Kept("P1", "Sent after.", HELD, [Check("P1", "a", "b", "b", held=True)]),
        Kept("P3", "Begun after.", BROKE, [BAD]),
        Kept("P4", "Sent once.", NOT_REACHED, []),
    ],
    times=[Time("safe service again", 3.0, 1.0), Time("the backlog cleared", None, 0.0)],
    steps=[Step("apply <it>", "unrewind recover apply", 1, 0.4)],
    counts={"calls": 2},
    places=[],
    rights=[],
)


# The report.


def test_what_broke_is_said_by_number_and_what_was_not_reached_is_not_said_to_have_broken() -> None:
    assert sentences(REPORT) == [
        "P3 broke: calls <before>: expected none, found rel_1 & rel_2",
        "not reached: P4: apply: it ended with 1",
        "objective missed: safe service again within 1 s; it took 3.0 s",
    ]


def test_the_page_shows_no_markup_that_came_from_elsewhere() -> None:
    text = page(REPORT)
    for escaped in ("calls &lt;before&gt;", "rehearsals/&lt;1&gt;", "apply &lt;it&gt;"):
        assert escaped in text
    for raw in ("<before>", "<1>", "<it>"):
        assert raw not in text


@pytest.mark.parametrize(
    ("seconds", "within", "met"), [(1.0, 2.0, True), (3.0, 2.0, False), (None, 2.0, False),
                                   (None, 0.0, True)],
)  # fmt: skip
def test_an_objective_is_met_in_time_or_not_set(
    seconds: float | None, within: float, met: bool
) -> None:
    assert Time("safe", seconds, within).met is met


# The command.


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--only", "P14"], 2, "P14 is not one"),
        (["--only", ","], 2, "none is not one"),
        (["--snapshot", "x"], 2, "name it with --from"),
        (["--from", "nowhere"], 3, "there is no tenant main under nowhere"),
        (["--dir", "full"], 3, "a drill needs a new or empty directory"),
        (["--dir", ""], 3, "a drill needs a new or empty directory"),
    ],
)
def test_what_cannot_be_rehearsed_is_told_in_one_line(
    arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    ran = CliRunner().invoke(main, ["drill", *arguments])
    assert ran.exit_code == code
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1


# The receiver.


@pytest.fixture
def listening(tmp_path: Path) -> Any:
    """An isolated receiver over a journal that is not there."""
    made = site.Site(tmp_path)
    made.receive(Settings(data=str(tmp_path / "none")))
    yield made
    made.close()


def delivered(made: site.Site, path: str, release: str, attempt: int = 1) -> tuple[int, Any]:
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", int(made.receiver_url.rpartition(":")[2]), timeout=30)
    try:
        body = json.dumps({"release": release, "entity": "document/1", "version": "1"})
        headers = {"unrewind-attempt": str(attempt)}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def asked(made: site.Site, release: str) -> tuple[int, Any]:
    port = int(made.receiver_url.rpartition(":")[2])
    return call(port, None, "GET", f"/status/{release}")


def lines(made: site.Site) -> list[dict[str, Any]]:
    return [json.loads(line) for line in made.record.read_text().splitlines()]


def test_every_call_is_recorded_and_a_second_one_is_a_second_effect(listening: site.Site) -> None:
    for _ in range(2):
        assert delivered(listening, "/releases", "rel_1")[0] == 200
    for _ in range(2):
        assert delivered(listening, "/once/post", "rel_2")[0] == 200
    found = [(line["release"], line["executed"], line["journalled"]) for line in lines(listening)]
    assert found == [
        ("rel_1", True, 0), ("rel_1", True, 0), ("rel_2", True, 0), ("rel_2", False, 0)
    ]  # fmt: skip


def test_an_id_that_it_calls_void_is_not_carried_out_by_an_earlier_attempt(
    listening: site.Site,
) -> None:
    assert asked(listening, "rel_1") == (200, {"release": "rel_1", "state": "void"})
    assert delivered(listening, "/releases", "rel_1")[0] == 429
    assert delivered(listening, "/releases", "rel_1", attempt=2)[0] == 200
    assert asked(listening, "rel_1")[1]["state"] == "done"
    assert [line.get("executed") for line in lines(listening)] == [None, False, True, None]


def test_a_reply_that_is_to_be_lost_is_lost_once_and_the_effect_is_not(
    listening: site.Site,
) -> None:
    listening.tell_receiver(drop=["document/1"], mute=True)
    with pytest.raises(ConnectionError):
        delivered(listening, "/releases", "rel_1")
    assert asked(listening, "rel_1")[0] == 503
    listening.tell_receiver(mute=False)
    assert asked(listening, "rel_1")[1]["state"] == "done"
    assert delivered(listening, "/releases", "rel_3")[0] == 200


# Processes that are killed.


def test_a_point_that_never_comes_lets_the_command_end(tmp_path: Path) -> None:
    made = site.Site(tmp_path)
    made.config.write_text('[lifecycle.case]\nkind = "free"\n')
    try:
        arguments = ("--operation", "op-1", "--entity", "case/1", "--action", "open")
        ran = made.run("accept", *arguments, point="stored")
        assert (ran.code, ran.json["outcome"]) == (0, "accepted")
        arguments = ("--operation", f"{struck.MARK}stored-1", *arguments[2:])
        assert made.run("accept", *arguments, point="stored").code == -9
    finally:
        made.close()


def test_children_see_no_setting_of_the_operators_and_no_secret() -> None:
    inherited = {
        "UNREWIND_STORE": "/srv/real",
        "UNREWIND_CONFIG": "x",
        "BANK": "whsec",
        "LANG": "C",
    }
    found = site.environment_without(inherited, ["BANK"])
    assert found.keys() == {"LANG", "PYTHONPATH"}


def test_a_drill_that_is_ended_ends_what_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "api.cli", "drill", "--only", "P2", "--dir", "kept"]
    environment = site.environment_without(os.environ)
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as ran:
        calls = tmp_path / "kept" / "snapshot"
        site.until("the drill is under way", calls.exists)
        children = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(tmp_path / "kept").encode() in command_of(entry)
        ]
        assert len(children) >= 2
        ran.send_signal(signal.SIGTERM)
        assert ran.wait(60) == 130
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


# Borrowed data.

REAL = Settings(
    receiver={
        "bank": Receiver(
            "https://bank.example/pay",
            status_url="https://bank.example/pay/{release}",
            contract=Contract.IDEMPOTENT,
            window=60,
            secret_env="BANK",
        )
    },
    lane={
        "pay": Lane(receiver="bank"),
        "mail": Lane(effect=Effect.INTERNAL, handler="shop:mail"),
    },
    lifecycle={
        "pay-ment": Lifecycle(
            initial="new",
            actions={
                "re.lease": Action(
                    ("new",),
                    'a "state"',
                    instead={"new": "z y"},
                    releases=("pay",),
                    commands=(Command("mail", "mail", Mode.SYNC),),
                )
            },
        )
    },
    alert=Alert(webhook="https://alerts.example", secret_env="ALERTS"),
)


def test_borrowed_settings_lead_nowhere_else(tmp_path: Path) -> None:
    text = borrowing.isolated(REAL, tmp_path / "data", "http://127.0.0.1:1")
    (tmp_path / "x.toml").write_text(text)
    found = load(tmp_path / "x.toml", environment={})
    bank = found.receiver["bank"]
    assert bank.url == "http://127.0.0.1:1/once/bank"
    assert bank.status_url == "http://127.0.0.1:1/status/{release}"
    assert (bank.secret_env, found.alert, found.lane["mail"].handler) == (None, Alert(), None)
    action = found.lifecycle["pay-ment"].actions["re.lease"]
    assert action.commands[0].mode is Mode.ASYNC
    assert (action.to, action.instead) == ('a "state"', {"new": "z y"})
    assert found.home == tmp_path / "data"


def test_settings_that_would_lead_out_are_refused(tmp_path: Path) -> None:
    lifecycle = msgspec.structs.replace(REAL.lifecycle["pay-ment"], projection="https://x.example")
    leading = msgspec.structs.replace(REAL, lifecycle={"a": lifecycle})
    with pytest.raises(Refused, match=r"still leads out, to https://x\.example"):
        borrowing.isolated(leading, tmp_path, "http://127.0.0.1:1")


def test_credentials_are_told_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK", "whsec_secret")
    monkeypatch.delenv("ALERTS", raising=False)
    assert borrowing.credentials(REAL) == {"ALERTS": False, "BANK": True}


def file_with(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


def test_p2_a_decision_that_the_store_lacks_is_named(tmp_path: Path) -> None:
    journal = file_with(
        tmp_path / "journal.db",
        "CREATE TABLE entries (position, stream, sequence, digest, operation)",
        "CREATE TABLE dropped (position)",
        "INSERT INTO entries VALUES (1,'decisions',1,x'aa','op-1'), (2,'control',1,x'00','c'),"
        " (3,'decisions',2,x'bb','op-2'), (4,'decisions',3,x'cc','op-3'),"
        " (5,'decisions',70000,x'dd','op-4'), (6,'decisions',70001,x'ee','op-5')",
        "INSERT INTO dropped VALUES (5)",
    )
    store = file_with(
        tmp_path / "store.db",
        "CREATE TABLE unrewind_decisions (sequence, digest)",
        "INSERT INTO unrewind_decisions VALUES (1,x'aa'), (3,x'c0'), (4,x'ff'), (70001,x'ee')",
    )
    assert comparing.decisions_lacking(journal, store) == ["op-2", "op-3"]


def test_p12_a_release_that_disappeared_is_named(tmp_path: Path) -> None:
    table = "CREATE TABLE unrewind_work (id, effect, status)"
    rows = "INSERT INTO unrewind_work VALUES ('rel_1','external','done'), ('rel_3','external','')"
    before = file_with(
        tmp_path / "before.db", table, rows,
        "INSERT INTO unrewind_work VALUES ('rel_2','external','done'), ('cmd_1','internal','')",
    )  # fmt: skip
    after = file_with(tmp_path / "after.db", table, rows)
    assert comparing.releases_lacking(before, after) == ["rel_2"]
    assert comparing.done_before(before, {"rel_1", "rel_2", "rel_3", "rel_4"}) == ["rel_1", "rel_2"]


def test_a_store_is_rolled_back_to_what_it_was_and_nothing_else(tmp_path: Path) -> None:
    from tests.support.tenants import Tenant, make_settings, operation

    tenant = Tenant(make_settings(tmp_path))
    shown = "SELECT * FROM unrewind_entities ORDER BY entity"
    for number in range(4):
        tenant.accept(operation(f"case/{number % 2}", "set", {"value": number}))
    then = tenant.sql(shown)
    for number in range(3):
        tenant.accept(operation(f"case/{number}", "set", {"value": f"later-{number}"}))
    tenant.close()
    assert rolling.roll_back(tenant.settings, 3) == (7, 4)
    tenant.open()
    assert tenant.sql(shown) == then
    assert drive(examine(tenant.record))[0].verdict is Verdict.REWOUND
    tenant.close()


def test_settings_come_back_from_toml_as_they_were() -> None:
    values = {
        "a": "\x7f\u2028\\\"'", "b": [1, True, 2.5], "c": None, "d": {"e f": {"g": [{"h": "i"}]}}
    }  # fmt: skip
    found = tomllib.loads(borrowing.toml(values))
    assert found == {"a": values["a"], "b": [1, True, 2.5], "d": {"e f": {"g": [{"h": "i"}]}}}


def test_the_receiver_starts_without_the_web() -> None:
    code = (
        "import sys, api.drill.receiver\n"
        "web = {'litestar', 'uvicorn', 'httpx', 'click'} & set(sys.modules)\n"
        "sys.exit(f'it imports {sorted(web)}' if web else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
