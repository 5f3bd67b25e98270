"""P8: store and journal that were rolled back together, and the witness that notices it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import journal
from journal.control import Role, Stage, fold
from journal.detection import Seen, Verdict, compare
from journal.errors import EngineError, JournalUnavailable, Recovering, Refused
from journal.record import Record
from journal.standing import detect, renew_witness
from journal.status import Status, status
from journal.tokens import create_token, revoke_token
from journal.witness import FORMAT, Witness, WitnessFile, WitnessUnreadable
from journal.worker import drive
from tests.soak.processes import Site, site_at, until
from tests.support.tenants import Tenant, make_settings, operation

ENTITY = "document/7"


def seen_by(settings: journal.Settings) -> Witness:
    found = WitnessFile(settings.witness_file).read()
    assert found is not None
    return found


class Copies:
    """Copies of a store and its journal as of one moment, to be put back together."""

    def __init__(self, settings: journal.Settings, folder: Path) -> None:
        self._files = [settings.store_file, settings.journal_file]
        self._folder = folder
        folder.mkdir(parents=True)
        for number, file in enumerate(self._files):
            assert not file.with_name(file.name + "-wal").exists(), "stop the tenant first"
            shutil.copyfile(file, folder / str(number))

    def put_back(self) -> None:
        for number, file in enumerate(self._files):
            for suffix in ("-wal", "-shm"):
                file.with_name(file.name + suffix).unlink(missing_ok=True)
            aside = file.with_name("incoming")
            shutil.copyfile(self._folder / str(number), aside)
            aside.replace(file)


def rolled_back(tenant: Tenant, folder: Path, more: int = 3) -> Witness:
    """Both files of one earlier moment, put back after a stop; what the witness had seen."""
    tenant.decide(ENTITY, "submit")
    tenant.close()
    copies = Copies(tenant.settings, folder)
    tenant.open()
    for number in range(more):
        tenant.decide(f"document/later-{number}", "submit")
    tenant.close()
    copies.put_back()
    tenant.diverged()
    return seen_by(tenant.settings)


def entries(settings: journal.Settings) -> bytes:
    return settings.journal_file.read_bytes()


# Both rolled back.


def test_p8_store_and_journal_of_the_same_earlier_moment_are_closed_at_start(
    tenant: Tenant, tmp_path: Path
) -> None:
    saw = rolled_back(tenant, tmp_path / "copies")
    before = entries(tenant.settings)
    tenant.open()
    with pytest.raises(Recovering, match="rolled back"):
        tenant.turn(operation(ENTITY, "approve"))
    assert tenant.record.stop.stands()
    said = tenant.do(status)
    assert (said.stage, said.verdict) == ("closed", "journal-rewound")
    assert "both were rolled back" in said.detail
    assert f"through sequence {saw.sequence}" in said.detail
    # Nothing is appended to that journal, and the witness still knows better.
    with pytest.raises(JournalUnavailable, match="rolled back"):
        tenant.put_in_force(stage=Stage.OPEN)
    tenant.close()
    assert entries(tenant.settings) == before
    assert seen_by(tenant.settings) == saw


def test_p8_without_a_witness_it_is_not_noticed_and_status_had_said_so(
    tenant: Tenant, tmp_path: Path
) -> None:
    tenant.decide(ENTITY, "submit")
    said = tenant.do(status)
    assert said.witness is None
    assert any("rolled back to the same moment would not be" in line for line in said.failure_scope)
    rolled_back(tenant, tmp_path / "copies")
    tenant.settings.witness_file.unlink()
    tenant.open()
    said = tenant.do(status)
    assert (said.verdict, said.witness) == ("clean", None)
    assert any(line.startswith("no witness, ") for line in said.failure_scope)


def test_p8_a_journal_that_lost_nothing_but_an_observation_is_noticed(
    tenant: Tenant, tmp_path: Path
) -> None:
    """The store cannot know of it: markers agree, the journal's size does not."""
    tenant.decide(ENTITY, "submit")
    tenant.close()
    older = tmp_path / "older.db"
    shutil.copyfile(tenant.settings.journal_file, older)
    tenant.open()
    caller = tenant.caller()
    tenant.append(caller.seal("contract/1"))
    tenant.close()
    shutil.copyfile(older, tenant.settings.journal_file)
    tenant.open()
    assert drive(detect(tenant.record, deep=False)).verdict is Verdict.JOURNAL_REWOUND
    tenant.diverged()


def test_p8_a_journal_that_went_on_after_it_was_rolled_back_is_noticed(
    tenant: Tenant, tmp_path: Path
) -> None:
    saw = rolled_back(tenant, tmp_path / "copies", more=2)
    file = tenant.settings.witness_file
    away = file.with_name("away")
    file.rename(away)
    tenant.settings.beside("witnessed").unlink()
    tenant.open()
    for number in range(5):
        tenant.decide(f"document/other-{number}", "submit")
    tenant.close()
    assert seen_by(tenant.settings).position > saw.position
    away.replace(file)
    tenant.open()
    found = drive(detect(tenant.record, deep=False))
    assert found.verdict is Verdict.JOURNAL_REWOUND
    assert "went on" in found.detail
    tenant.close()
    assert seen_by(tenant.settings) == saw


def test_p8_a_store_that_is_gone_does_not_hide_that_the_journal_was_rolled_back(
    tenant: Tenant, tmp_path: Path
) -> None:
    rolled_back(tenant, tmp_path / "copies")
    tenant.settings.store_file.unlink()
    tenant.open()
    found = drive(detect(tenant.record, deep=False))
    assert found.verdict is Verdict.JOURNAL_REWOUND
    assert "the store is missing" in found.detail


def test_p8_another_journal_than_the_witness_remembers_is_closed(
    tenant: Tenant, tmp_path: Path
) -> None:
    other = make_settings(tmp_path / "other")
    second = Tenant(other)
    second.decide(ENTITY, "submit")
    second.close()
    tenant.close()
    shutil.copyfile(other.witness_file, tenant.settings.witness_file)
    tenant.open()
    found = drive(detect(tenant.record, deep=False))
    assert (found.verdict, "the witness remembers" in found.detail) == (Verdict.CLOSED, True)
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    tenant.diverged()


def _names(settings: journal.Settings) -> Seen:
    """What an examination saw of a tenant that stands as it should."""
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        finding, seen = drive(record.examine(witness=True))
        assert finding.verdict is Verdict.CLEAN
        return seen
    finally:
        drive(record.close())


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.CLEAN),
        ({"position": 1}, Verdict.JOURNAL_REWOUND),  # the entry there is another one
        ({"position": 99}, Verdict.JOURNAL_REWOUND),
        ({"epoch": 5, "position": 1}, Verdict.JOURNAL_REWOUND),
        ({"epoch": -1, "position": 99}, Verdict.CLEAN),  # from before the last new beginning
        ({"journal": "another"}, Verdict.CLOSED),
        ({"tenant": "another"}, Verdict.CLOSED),
    ],
)
def test_p8_the_verdict_follows_what_the_witness_names(
    tenant: Tenant, changes: dict[str, Any], verdict: Verdict
) -> None:
    tenant.decide(ENTITY, "submit", "approve")
    tenant.close()
    seen = _names(tenant.settings)
    assert seen.witness is not None
    tenant.open()
    control = fold([row.entry() for row in drive(tenant.log.control())], "main")
    witness = msgspec.structs.replace(seen.witness, **changes)
    at = drive(tenant.log.at(witness.position))
    seen = msgspec.structs.replace(
        seen, witness=witness, at_witness=None if at is None else at.digest
    )
    assert compare(control, seen, tenant.settings.instance).verdict is verdict


# Founding.


def test_p9_where_a_witness_remembers_a_journal_no_tenant_is_founded(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    tenant.close()
    for file in (tenant.settings.store_file, tenant.settings.journal_file):
        file.unlink()
    tenant.settings.beside("founded").unlink()
    with pytest.raises(Refused, match=r"the witness .* remembers"):
        tenant.open()
    assert not tenant.settings.journal_file.exists()
    tenant.damaged()


def test_p9_a_journal_rolled_back_to_its_founding_gets_no_new_store(
    tenant: Tenant, tmp_path: Path
) -> None:
    """It looks as a founding does that was killed between its two files."""
    settings = make_settings(tmp_path / "other")
    first = Tenant(settings)
    first.close()
    founding = settings.journal_file.read_bytes()
    first.open()
    first.decide(ENTITY, "submit")
    first.close()
    settings.store_file.unlink()
    settings.journal_file.write_bytes(founding)
    first.open()
    assert drive(detect(first.record, deep=False)).verdict is Verdict.JOURNAL_REWOUND
    first.close()
    assert not settings.store_file.exists()


# What the witness does.


def test_it_follows_each_command_that_wrote(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    tenant.close()
    first = seen_by(tenant.settings)
    assert (first.format, first.position, first.sequence, first.epoch) == (FORMAT, 2, 1, 0)
    stamp = tenant.settings.witness_file.stat()
    tenant.open()
    tenant.close()
    assert tenant.settings.witness_file.stat() == stamp  # nothing moved, nothing is written
    tenant.open()
    tenant.decide(ENTITY, "approve")
    tenant.close()
    second = seen_by(tenant.settings)
    assert (second.position, second.sequence, second.journal) == (3, 2, first.journal)
    tenant.open()


def test_it_only_moves_forward_whoever_writes_it(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    early = drive(tenant.record.next_witness())
    assert early is not None
    other = tenant.companion()
    tenant.decide(ENTITY, "approve")
    drive(other.remember())
    newest = seen_by(tenant.settings)
    tenant.record.witness.take(early)  # made before, and late
    assert seen_by(tenant.settings) == newest
    assert newest.position == 3


def test_p13_status_says_how_far_behind_the_witness_is(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    drive(tenant.record.remember())
    said = tenant.do(status)
    assert said.witness is not None
    assert (said.witness.position, said.witness.sequence, said.witness.behind) == (2, 1, 0)
    assert Path(said.witness.path) == tenant.settings.witness_file
    assert said.witness.age >= 0
    assert any("witness lies on one device" in line for line in said.failure_scope)
    tenant.decide(ENTITY, "approve")
    said = tenant.do(status)
    assert said.witness is not None
    assert said.witness.behind == 1
    assert any("1 entries behind" in line for line in said.failure_scope)


@pytest.mark.parametrize("found", [b"{ half of a wit", b"", b"\xff\xfe", None])
def test_p8_a_damaged_or_missing_witness_is_said_until_somebody_renews_it(
    tenant: Tenant, tmp_path: Path, found: bytes | None
) -> None:
    """It may have seen more than both files hold: nothing may take its place without a word."""
    rolled_back(tenant, tmp_path / "copies")
    file = tenant.settings.witness_file
    if found is None:
        file.unlink()
    else:
        file.write_bytes(found)
    for number in range(2):
        tenant.open()
        said = tenant.do(status)
        assert (said.verdict, said.witness) == ("clean", None)
        why = "is gone, and there was one" if found is None else "is damaged"
        assert any("no witness" in line and why in line for line in said.failure_scope)
        assert any("unrewind witness renew" in line for line in said.failure_scope)
        tenant.decide(f"document/more-{number}", "submit")
        tenant.close()
        assert (file.read_bytes() if file.exists() else None) == found
    tenant.open()
    made, aside = tenant.do(renew_witness)
    assert seen_by(tenant.settings) == made
    assert (aside is None) is (found is None)
    if aside is not None:
        assert aside.read_bytes() == found
    tenant.decide("document/last", "submit")
    said = tenant.do(status)
    assert said.witness is not None
    assert said.witness.behind == 1
    tenant.close()
    assert seen_by(tenant.settings).position == made.position + 1
    tenant.open()


def test_p8_a_witness_that_can_be_read_is_not_renewed(tenant: Tenant, tmp_path: Path) -> None:
    tenant.decide(ENTITY, "submit")
    drive(tenant.record.remember())
    saw = seen_by(tenant.settings)
    with pytest.raises(WitnessUnreadable, match="is whole"):
        tenant.do(renew_witness)
    tenant.close()
    tenant.open()
    rolled_back(tenant, tmp_path / "copies")
    tenant.open()
    with pytest.raises(Refused, match="journal-rewound"):
        tenant.do(renew_witness)
    assert seen_by(tenant.settings).position > saw.position


def test_p8_a_new_tenant_has_a_first_witness(tenant: Tenant) -> None:
    """Founded in the place of one that was moved away on purpose, its witness with it."""
    tenant.decide(ENTITY, "submit")
    tenant.close()
    settings = tenant.settings
    for file in (
        settings.store_file,
        settings.journal_file,
        settings.witness_file,
        settings.beside("founded"),
    ):
        file.unlink()
    tenant.open()
    assert tenant.do(status).failure_scope[1].startswith("no witness: ")
    tenant.decide(ENTITY, "submit")
    tenant.close()
    assert seen_by(settings).sequence == 1
    tenant.open()


def test_p8_a_journal_of_the_same_length_is_not_taken_for_the_one_that_was_witnessed(
    tenant: Tenant,
) -> None:
    """A service that stands still looks at the last entry, not at the number of entries alone."""
    tenant.decide(ENTITY, "submit")
    record = tenant.record
    drive(record.remember())
    look = drive(record.look())
    log = tenant.log
    assert drive(record.witness.stands_at(log, look))

    class Other:
        """A journal as long, with another last entry."""

        async def at(self, position: int) -> Any:
            row = await log.at(position)
            return None if row is None else msgspec.structs.replace(row, digest="0" * 64)

    other: Any = Other()
    assert not drive(record.witness.stands_at(other, look))


def test_p13_a_witness_of_a_later_version_is_left_as_it_is(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    tenant.close()
    file = tenant.settings.witness_file
    whole = file.read_bytes()
    later = msgspec.json.encode(
        {**msgspec.to_builtins(seen_by(tenant.settings)), "format": FORMAT + 1, "more": 1}
    )
    file.write_bytes(later)
    tenant.open()
    assert any("has format" in line for line in tenant.do(status).failure_scope)
    tenant.decide(ENTITY, "approve")
    tenant.close()
    assert file.read_bytes() == later
    file.write_bytes(whole)
    tenant.open()


def test_p13_a_witness_that_cannot_be_written_stops_no_decision(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "no-directory").write_text("a file")
    tenant = Tenant(make_settings(tmp_path, witness=str(tmp_path / "no-directory")))
    with caplog.at_level(logging.WARNING, "unrewind"):
        for action in ("submit", "approve"):
            tenant.decide(ENTITY, action)
            drive(tenant.record.remember())
    warned = [record for record in caplog.records if "witness" in record.message]
    assert len(warned) == 1
    assert any("no witness" in line for line in tenant.do(status).failure_scope)
    (tmp_path / "no-directory").unlink()
    tenant.finish()


def test_a_stopped_writer_of_the_witness_keeps_nobody_for_long(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.witness._LOCK_SECONDS", 0.05)
    tenant.decide(ENTITY, "submit")
    with WitnessFile(tenant.settings.witness_file)._locked():
        drive(tenant.record.remember())
    assert tenant.record.witness.failed is not None
    drive(tenant.record.remember())
    assert seen_by(tenant.settings).sequence == 1


def test_p10_a_witness_killed_while_it_is_written_is_the_old_one_or_the_new_one(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.decide(ENTITY, "submit")
    drive(tenant.record.remember())
    old = seen_by(tenant.settings)
    tenant.decide(ENTITY, "approve")
    real = os.fsync

    def killed(handle: int) -> None:
        real(handle)
        raise OSError("the process ends here")

    monkeypatch.setattr("journal.witness.os.fsync", killed)
    drive(tenant.record.remember())
    monkeypatch.undo()
    assert any("does not follow" in line for line in tenant.do(status).failure_scope)
    assert seen_by(tenant.settings) == old
    drive(tenant.record.remember())
    assert seen_by(tenant.settings).sequence == 2


# Control.


def copies_of(tenant: Tenant) -> list[int]:
    """The control entries of which the store keeps a copy."""
    return [row[0] for row in tenant.sql("SELECT sequence FROM unrewind_control ORDER BY 1")]


def test_p8_store_and_witness_have_a_change_of_control_before_it_is_acknowledged(
    tenant: Tenant,
) -> None:
    tenant.decide(ENTITY, "submit")
    tenant.do(create_token, Role.READER, "audit")
    assert (copies_of(tenant), seen_by(tenant.settings).control) == ([1, 2], 2)
    tenant.do(revoke_token, next(iter(tenant.control().tokens)))
    assert (copies_of(tenant), seen_by(tenant.settings).control) == ([1, 2, 3], 3)
    # The file is still known as one that nobody else wrote to.
    assert not tenant.record.touched()
    tenant.decide(ENTITY, "approve")


def test_p8_a_store_that_is_not_the_journals_gets_no_copies_of_control(tenant: Tenant) -> None:
    """What was found there is evidence until a recovery has kept it."""
    tenant.decide(ENTITY, "submit")
    tenant.close()
    older = tenant.settings.store_file.read_bytes()
    tenant.open()
    tenant.decide(ENTITY, "approve")
    tenant.close()
    tenant.settings.store_file.write_bytes(older)
    tenant.open()
    assert drive(detect(tenant.record, deep=False)).verdict is Verdict.REWOUND
    tenant.do(create_token, Role.READER, "audit")
    assert seen_by(tenant.settings).control == tenant.control().sequence
    assert tenant.settings.store_file.read_bytes() == older
    tenant.diverged()


@pytest.mark.parametrize("lost", ["store", "witness", "both"])
def test_p8_neither_store_nor_witness_failing_stops_a_change_of_control(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    async def fails(*_: Any) -> None:
        raise EngineError("the store is away")

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    tenant.decide(ENTITY, "submit")
    drive(tenant.record.remember())
    if lost != "witness":
        monkeypatch.setattr("journal.store.sqlite.SqliteStore.batch", fails)
    if lost != "store":
        monkeypatch.setattr(WitnessFile, "_write", full)
    tenant.do(create_token, Role.READER, "audit")
    monkeypatch.undo()
    assert tenant.control().sequence == 2
    assert bool(copies_of(tenant)) is (lost == "witness")
    assert seen_by(tenant.settings).control == (2 if lost == "store" else 1)
    # The next one brings what is missing.
    tenant.do(create_token, Role.READER, "another")
    assert (copies_of(tenant), seen_by(tenant.settings).control) == ([1, 2, 3], 3)


# Inside a service.


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - it looks at files
            await asyncio.sleep(0.01)


async def _caught_up(made: journal.Journal) -> bool:
    said = await made.status()
    return said.witness is not None and said.witness.behind == 0


async def test_p8_it_follows_a_running_service(settings: journal.Settings) -> None:
    settings = msgspec.structs.replace(settings, witness_every=0.02)
    async with journal.open(settings) as made:
        for number in range(3):
            await made.accept(operation(f"document/{number}", "submit"))
        await _until(lambda: _caught_up(made))
    assert seen_by(settings).sequence == 3


async def test_p8_files_swapped_under_a_running_service_are_noticed_by_its_witness(
    settings: journal.Settings, tmp_path: Path
) -> None:
    """Long before the schedule would look: the service that follows its journal finds it short."""
    settings = msgspec.structs.replace(settings, witness_every=0.02)
    async with journal.open(settings) as made:
        await made.accept(operation(ENTITY, "submit"))
    copies = Copies(settings, tmp_path / "copies")
    async with journal.open(settings) as made:
        await made.accept(operation(ENTITY, "approve"))
        await _until(lambda: _caught_up(made))
        copies.put_back()

        async def closed() -> bool:
            return settings.beside("stop").exists()

        await _until(closed)
        with pytest.raises(Recovering):
            await made.accept(operation(ENTITY, "cancel"))
        said: Status = await made.status()
        assert said.verdict == "journal-rewound"


# As processes.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path / "site", UNREWIND_WITNESS_EVERY="0.05") as made:
        yield made


def _served(site: Site, *operations: str, kill: bool = False) -> None:
    server = site.start()
    for name in operations:
        assert server.decide(name, f"case/{name}")[0] == 201
    if kill:
        until(
            "the witness has caught up", lambda: server.get("status")[1]["witness"]["behind"] == 0
        )
        server.kill()
    else:
        assert server.stop() == 0


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_p8_older_copies_of_both_files_close_a_server_at_its_start(
    site: Site, tmp_path: Path, kill: bool
) -> None:
    _served(site, "one")
    copies = Copies(site.settings, tmp_path / "copies")
    _served(site, "two", "three", kill=kill)
    copies.put_back()
    server = site.start()
    status_code, problem = server.decide("four", "case/four")
    assert (status_code, problem["type"]) == (503, "/problems/recovering"), problem
    assert "both were rolled back" in problem["detail"]
    assert server.get("entities/case/one")[0] == 503
    said = site.status()
    assert (said["stage"], said["verdict"]) == ("closed", "journal-rewound")
    begun = site.run("recover", "begin", "--reason", "a test")
    assert begun.code == 3
    assert "stopped, not fenced: do not restore" in begun.err
    assert "recover plan" in begun.err
    assert "Traceback" not in server.errors


def test_p8_a_server_with_no_witness_left_goes_on_and_said_so_before(
    site: Site, tmp_path: Path
) -> None:
    _served(site, "one")
    copies = Copies(site.settings, tmp_path / "copies")
    _served(site, "two")
    site.settings.witness_file.unlink()
    said = site.status()
    assert said["witness"] is None
    assert any(line.startswith("no witness, ") for line in said["failure_scope"])
    copies.put_back()
    server = site.start()
    assert server.decide("three", "case/three")[0] == 201
    assert site.status()["witness"] is None
    renewed = site.do("witness", "renew")
    assert renewed["damaged"] is None
    assert server.decide("four", "case/four")[0] == 201
    until("the witness follows", lambda: (site.status()["witness"] or {}).get("behind") == 0)


def test_a_failing_store_does_not_keep_control_from_being_written(tenant: Tenant) -> None:
    """The journal is asked whether it is whole; the store may be what is broken."""
    tenant.decide(ENTITY, "submit")
    tenant.settings.store_file.write_bytes(b"nonsense" * 4096)
    with pytest.raises((Recovering, EngineError)):
        tenant.turn(operation(ENTITY, "approve"))
    assert tenant.control().last == "close"
    tenant.diverged()
