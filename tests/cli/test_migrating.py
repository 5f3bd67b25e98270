"""`unrewind migrate`, and what commands say of data that needs newer code."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from api.opening import writing
from journal import decrees, formats
from journal.settings import load
from journal.standing import append_control
from journal.worker import drive
from tests.cli.conftest import FREE, Command
from tests.support.earlier import load as load_data

EARLIER = """
[lifecycle.account]
kind = "free"
[lifecycle.contract]
kind = "free"
owner = "caller"
[lifecycle.letter]
kind = "free"
[lifecycle.payment]
kind = "free"
[lifecycle.transfer]
initial = "new"
[lifecycle.transfer.actions.draft]
from = ["new"]
to = "drafted"
"""


def test_old_data_is_told_from_new_and_contracted_once(cli: Command) -> None:
    (cli.home / "unrewind.toml").write_text(FREE + EARLIER)
    load_data(load(cli.home / "unrewind.toml", {"data": str(cli.home / "data")}))
    told = cli("migrate", "--json")
    assert told.code == 1, told
    assert (told.json["format"], told.json["needs"], told.json["contracted"]) == (2, 1, False)
    assert {each["type"]: each["why"] for each in told.json["states"]} == {
        "task": "the type is not declared",
        "transfer": "no action leads to it",
    }
    assert cli.accept("op-new")["outcome"] == "accepted"
    assert cli("migrate", "--contract", "--json").json["needs"] == 2
    shown = cli("migrate")
    assert "earlier releases: are refused" in shown.out
    assert cli.accept("op-newer")["outcome"] == "accepted"


def test_a_new_tenant_has_nothing_to_migrate(cli: Command) -> None:
    cli("migrate").complains(3, "there is no tenant")
    cli.accept("op-1")
    told = cli("migrate", "--json")
    assert (told.code, told.json["contracted"], told.json["states"]) == (0, True, [])


def test_data_of_a_newer_format_is_refused_in_one_line_and_left_alone(cli: Command) -> None:
    cli.accept("op-1")
    settings = load(cli.home / "unrewind.toml", {"data": str(cli.home / "data")})
    with writing(settings) as record:
        now, formats.FORMAT = formats.FORMAT, 3
        try:
            drive(
                append_control(
                    record,
                    lambda control: (
                        decrees.format_entry(control, 3, "a test", "need-3", record.clock.now()),
                        control.authority,
                    ),
                )
            )
        finally:
            formats.FORMAT = now
    for words in (
        ("accept", "--operation", "op-2", "--entity", "case/1", "--action", "note"),
        ("releases",),
        ("stop", "case", "--reason", "a test"),
        ("migrate",),
        ("migrate", "--contract"),
        ("verify",),
        ("status",),
        ("recover", "begin", "--reason", "a test"),
    ):
        done = cli(*words)
        done.complains(3, "needs unrewind of format 3", "install the newer version")
    # A server keeps a log beside; the last line is why it did not start.
    served = cli("serve", "--port", "0")
    assert served.code == 3
    assert served.err.splitlines()[-1].startswith("unrewind: the data needs unrewind of format 3")
    with closing(sqlite3.connect(settings.store_file)) as store:
        assert store.execute("SELECT sequence FROM unrewind_marker").fetchone() == (1,)
