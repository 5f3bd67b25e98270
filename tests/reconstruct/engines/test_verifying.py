"""P10: damage in a journal on a server is found by verify, told apart as in a file."""

from __future__ import annotations

import pytest

from journal import Settings
from journal.entry import digest_of
from journal.log import Row
from journal.record import Record
from journal.sqlite import Database
from reconstruct import walking
from reconstruct.verification import Report, verify
from tests.reconstruct.engines.world import JOURNALLED, ServerScene, World
from tests.support.tenants import operation

pytestmark = pytest.mark.engines

_ENTRY = "entity = 'case/1' AND revision = 2"
_FLIPPED = "set_byte(envelope, 20, get_byte(envelope, 20) # 1)"
DAMAGES = {
    "a bit of an envelope flipped": (
        f"UPDATE entries SET envelope = {_FLIPPED} WHERE {_ENTRY}",
        "mismatch",
    ),
    "no text any more": (
        f"UPDATE entries SET envelope = set_byte(envelope, 20, 255) WHERE {_ENTRY}",
        "mismatch",
    ),
    "a bit of a body flipped": (
        f"UPDATE entries SET body = set_byte(body, 1, get_byte(body, 1) # 1) WHERE {_ENTRY}",
        "mismatch",
    ),
    "a column changed": (f"UPDATE entries SET operation = 'other' WHERE {_ENTRY}", "mismatch"),
    "an entry removed": (f"DELETE FROM entries WHERE {_ENTRY}", "gap"),
    "an entity removed": ("DELETE FROM entries WHERE entity = 'case/1'", "gap"),
}


def damage(world: World, statement: str) -> None:
    """As a superuser with the triggers off."""
    assert world.journal_url is not None
    schema = f'"unrewind_journal_{world.tenant}"'
    world.sql(
        world.journal_url,
        f"SET search_path = {schema}",
        "ALTER TABLE entries DISABLE TRIGGER ALL",
        statement,
        "ALTER TABLE entries ENABLE TRIGGER ALL",
    )


def kinds(report: Report) -> set[str]:
    return {item.kind for item in report.findings}


@pytest.mark.parametrize("world", ["postgres-postgres"], indirect=True)
@pytest.mark.parametrize("what", DAMAGES)
def test_p10_damage_in_the_journal_is_found_and_told_apart(scene: ServerScene, what: str) -> None:
    scene.fill(9)
    scene.settle()
    scene.whole()
    statement, kind = DAMAGES[what]
    damage(scene.world, statement)
    report = verify(scene.settings)
    assert report.verdict == kind
    # A head that is gone or cannot be read vouches for nothing that the store has.
    assert kind in kinds(report) <= {kind, "head"}
    named = [item for item in report.findings if item.kind == kind]
    if what == "an entity removed":
        assert {item.position for item in named} >= {3, 6, 9}
    else:
        assert any((item.entity, item.revision) == ("case/1", 2) for item in named)


@pytest.mark.parametrize("world", ["postgres-postgres"], indirect=True)
def test_p10_a_predecessor_swapped_under_a_digest_of_its_own_is_an_orphan(
    scene: ServerScene,
) -> None:
    scene.fill(9)
    scene.settle()
    (row,) = scene.do(_history)
    before = row.entry().envelope.predecessor
    assert before is not None
    text = row.text.replace(before.digest.encode(), b"0" * 64)
    damage(
        scene.world,
        f"UPDATE entries SET envelope = '\\x{text.hex()}', digest = '\\x{digest_of(text)}'"
        f" WHERE {_ENTRY}",
    )
    report = verify(scene.settings)
    assert "orphan" in kinds(report)
    assert "mismatch" not in kinds(report)


async def _history(record: Record) -> list[Row]:
    return await record.journal().history("case/1", 2, 2, 1)


@pytest.mark.parametrize("world", ["postgres-postgres"], indirect=True)
def test_p10_damage_in_the_stores_own_copies_is_found(scene: ServerScene) -> None:
    scene.fill(6)
    scene.settle()
    assert scene.world.store_url is not None
    schema = f'"unrewind_{scene.world.tenant}"'
    scene.world.sql(
        scene.world.store_url,
        f"UPDATE {schema}.unrewind_decisions SET body = '\\x00' WHERE sequence = 3",
        f"UPDATE {schema}.unrewind_entities SET data = '{{}}' WHERE entity = 'case/1'",
    )
    report = verify(scene.settings)
    assert kinds(report) == {"mismatch", "head"}
    assert [item.sequence for item in report.findings if item.kind == "mismatch"] == [3]


@pytest.mark.parametrize("world", JOURNALLED, indirect=True)
def test_p10_a_journal_is_walked_by_two_processes_that_read_for_themselves(
    scene: ServerScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.fill(12, entities=5)
    scene.submit(operation("document/7", "submit"))
    scene.settle()
    alone = _walked(scene.settings)
    scene.close()
    monkeypatch.setattr(walking, "PARALLEL_FROM", 4)
    monkeypatch.setattr("threading.active_count", lambda: 1)
    assert _walked(scene.settings) == alone == ("clean", 14)
    scene.open()


def _walked(settings: Settings) -> tuple[str, int]:
    report = verify(settings)
    return report.verdict, report.entries


@pytest.mark.parametrize("world", ["sqlite-nats"], indirect=True)
@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE entries SET body = x'00' WHERE position = 3",
        "UPDATE entries SET digest = x'00' WHERE position = 3",
        "DELETE FROM entries WHERE position = 3",
    ],
    ids=["body", "digest", "gone"],
)
def test_p10_a_stream_is_verified_itself_and_what_is_wrong_with_its_copy_is_told(
    scene: ServerScene, spoil: str
) -> None:
    scene.fill(5)
    scene.settle()
    scene.close()
    copy = Database(scene.settings.home / "copies" / f"{scene.world.tenant}.db")
    for (name,) in copy.connection.execute("SELECT name FROM sqlite_master WHERE type='trigger'"):
        copy.connection.execute(f"DROP TRIGGER {name}")
    copy.connection.execute(spoil)
    copy.close()
    report = verify(scene.settings)
    assert report.entries == 6
    (found,) = [item for item in report.findings if item.kind == "copy"]
    assert found.position == 3
    assert "move it away" in found.detail
    # As it says: then it is built again, and nothing is wrong.
    for suffix in ("", "-wal", "-shm"):
        copy.path.with_name(copy.path.name + suffix).unlink(missing_ok=True)
    report = verify(scene.settings)
    assert (report.verdict, report.findings) == ("clean", [])
    scene.open()
    scene.repeats()
