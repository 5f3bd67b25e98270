"""Status, gaps, history and verify: from the files alone, beside anybody or nobody."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest


def change(path: Path, *statements: str) -> None:
    """Tamper with a database behind unrewind's back."""
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        file.commit()


def test_status_tells_what_scripts_rely_on(cli):
    cli.accept("op-1")
    done = cli("status", "--json")
    assert done.code == 0
    found = done.json
    assert (found["stage"], found["verdict"]) == ("open", "clean")
    assert (found["generation"], found["sequence"], found["entities"]) == (1, 1, 1)
    assert (found["gaps"], found["pending"]) == (0, 0)
    assert len(found["history"]) == 32
    assert any("one device" in sentence for sentence in found["failure_scope"])
    assert "stage: open\n" in cli("status").out


def test_looking_changes_no_file(cli):
    cli.accept("op-1")
    data = cli.home / "data"
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for words in (("status",), ("gaps",), ("history", "case/1"), ("verify",), ("token", "list")):
        assert cli(*words).code == 0
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before


def test_looking_works_beside_a_process_that_hangs_in_a_turn(cli, hung):
    cli.accept("op-1")
    hung()
    for words in (("status",), ("gaps",), ("history", "case/1"), ("verify",)):
        assert cli(*words).code == 0


def test_history_shows_the_chain(cli):
    for number in range(1, 4):
        cli.accept(f"op-{number}", "case/1", f"step-{number}")
    done = cli("history", "case/1", "--json")
    assert done.code == 0
    steps = done.json["revisions"]
    assert [step["action"] for step in steps] == ["step-1", "step-2", "step-3"]
    assert [step["predecessor"] for step in steps[1:]] == [step["digest"] for step in steps[:2]]
    assert done.json["complete"] is True
    page = cli("history", "case/1", "--first", "2", "--limit", "1", "--json").json
    assert [step["revision"] for step in page["revisions"]] == [2]
    assert page["next"] == 3
    lines = cli("history", "case/1").out.splitlines()
    assert lines[0].split("\t")[:2] == ["revision", "action"]
    assert len(lines) == 4


def test_an_unknown_entity_is_exit_code_2(cli):
    cli.accept("op-1")
    cli("history", "case/none").complains(2, "case/none")
    cli("history", "none").complains(2, "type/id")


def test_verify_finds_nothing_in_a_sound_tenant(cli):
    cli.accept("op-1")
    done = cli("verify", "--json")
    assert done.code == 0
    report = done.json
    assert (report["verdict"], report["findings"], report["entities"]) == ("clean", [], 1)
    assert report["entries"] == 2
    assert len(report["state_digest"]) == 64


def test_p10_a_flipped_bit_is_a_mismatch(cli):
    cli.accept("op-1", "case/1", "note", "--body", '{"a":1}')
    change(
        cli.home / "data/journal/main.db",
        "DROP TRIGGER entries_no_update",
        """UPDATE entries SET body = CAST('{"a":2}' AS BLOB) WHERE operation = 'op-1'""",
    )
    done = cli("verify", "--json")
    assert done.code == 1
    assert done.json["verdict"] == "mismatch"
    assert done.err == ""
    assert cli("history", "case/1").code == 1


def test_p8_a_store_put_back_is_seen_by_status_and_by_accept(cli):
    cli.accept("op-1")
    store = cli.home / "data/store/main.db"
    shutil.copy(store, cli.home / "old.db")
    cli.accept("op-2")
    shutil.copy(cli.home / "old.db", store)
    done = cli("status", "--json")
    assert done.code == 1
    assert (done.json["stage"], done.json["verdict"]) == ("closed", "rewound")
    words = ("accept", "--operation", "op-3", "--entity", "case/1", "--action", "note")
    cli(*words).complains(3, "closed", "recover begin")
    cli(*words).complains(3, "closed", "recover begin")
    assert cli.journalled() == 2
    assert cli("history", "case/1").code == 0


def test_p8_stale_rows_under_a_true_marker_are_seen_at_the_next_decision(cli):
    cli.accept("op-1", "case/1", "note", "--body", '{"a":1}')
    change(
        cli.home / "data/store/main.db",
        """UPDATE unrewind_entities SET data = '{"a":9}' WHERE entity = 'case/1'""",
    )
    words = ("accept", "--operation", "op-2", "--entity", "case/1", "--action", "note")
    cli(*words).complains(3, "case/1")
    assert cli("verify").code == 1


@pytest.mark.parametrize("gone", ["journal", "store"])
def test_a_missing_side_is_told_apart(cli, gone):
    cli.accept("op-1")
    shutil.rmtree(cli.home / "data" / gone)
    done = cli("status", "--json")
    assert done.code == 1
    assert done.json["verdict"] == {"journal": "journal-rewound", "store": "replaced"}[gone]
    words = ("accept", "--operation", "op-2", "--entity", "case/1", "--action", "note")
    cli(*words).complains(3)


@pytest.mark.parametrize("name", ["journal", "store"])
def test_a_file_that_is_no_database_is_told_in_one_line(cli, name):
    cli.accept("op-1")
    for path in (cli.home / "data" / name).iterdir():
        path.unlink()
    (cli.home / "data" / name / "main.db").write_bytes(b"scrambled " * 1000)
    done = cli("status", "--json")
    assert done.code == 1
    assert done.json["stage"] == "closed"
    assert done.err == ""
    words = ("accept", "--operation", "op-2", "--entity", "case/1", "--action", "note")
    cli(*words).complains(3)
    for command in (("gaps",), ("history", "case/1"), ("verify",), ("token", "list")):
        looked = cli(*command)
        assert looked.code in {0, 1, 3}, looked
        if looked.code == 3:
            looked.complains(3)


def test_nothing_of_a_caller_reaches_the_terminal_raw(cli):
    cli.accept("op-1", "case/1", "note", "--actor", "a\x1b[2Jb")
    assert "\x1b" not in cli("history", "case/1").out
