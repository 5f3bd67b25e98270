"""Damage in the journal is found, told apart, and stops nobody but the entity that it concerns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journal import reading
from journal.detection import Verdict
from journal.entry import digest_of
from journal.errors import HistoryIncomplete, Recovering, UnrewindError
from reconstruct import verification
from tests.reconstruct.scenes import Scene, query, raw

ENTITY, REVISION = "case/1", 3
HERE = f"entity = '{ENTITY}' AND revision = {REVISION}"
Change = str | tuple[str, tuple[Any, ...]]


@pytest.fixture
def lost(scene: Scene, tmp_path: Path) -> Scene:
    """A snapshot, then six revisions of each of three cases and one account."""
    scene.put("case/before", 1)
    scene.settle()
    scene.keep(tmp_path / "old")
    scene.fill(18, entities=3)
    scene.fill(2, kind="account", entities=1)
    scene.settle()
    return scene


def flipped(scene: Scene, column: str, byte: int, bit: int) -> Change:
    """One bit of a stored value turned over."""
    file = scene.settings.journal_file
    (value,) = query(file, f"SELECT CAST({column} AS BLOB) FROM entries WHERE {HERE}")[0]
    changed = bytearray(value)
    changed[byte] ^= 1 << bit
    kind = "BLOB" if column in {"body", "digest", "history"} else "TEXT"
    return (f"UPDATE entries SET {column} = CAST(? AS {kind}) WHERE {HERE}", (bytes(changed),))


def swapped(scene: Scene) -> Change:
    """The entry sealed anew over another predecessor, digest and all."""
    file = scene.settings.journal_file
    text = query(file, f"SELECT envelope FROM entries WHERE {HERE}")[0][0]
    fields = json.loads(text)
    fields["predecessor"]["digest"] = "ab" * 32
    forged = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    digest = bytes.fromhex(digest_of(forged.encode()))
    return (f"UPDATE entries SET envelope = ?, digest = ? WHERE {HERE}", (forged, digest))


def doubled(scene: Scene) -> Change:
    """A second successor of the same predecessor, sealed under another history."""
    file = scene.settings.journal_file
    text, body = query(file, f"SELECT envelope, body FROM entries WHERE {HERE}")[0]
    fields = json.loads(text)
    fields |= {"history": "ef" * 16, "operation": "rival", "sequence": None}
    forged = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    digest = bytes.fromhex(digest_of(forged.encode()))
    sql = (
        "INSERT INTO entries (position, stream, sequence, history, entity, revision, operation,"
        " digest, envelope, body) SELECT max(position) + 1, 'decisions', NULL, ?, ?, ?, 'rival', ?,"
        " ?, ? FROM entries"
    )
    return (
        sql,
        (bytes.fromhex("ef" * 16), ENTITY, REVISION, digest, forged, body),
    )


MISMATCHES = {
    "envelope": lambda scene: flipped(scene, "envelope", 40, 0),
    "envelope no UTF-8": lambda scene: flipped(scene, "envelope", 12, 7),
    "envelope no JSON": lambda scene: flipped(scene, "envelope", 0, 2),
    "body": lambda scene: flipped(scene, "body", 3, 1),
    "body no JSON": lambda scene: flipped(scene, "body", 0, 3),
    "digest": lambda scene: flipped(scene, "digest", 5, 4),
    "operation": lambda scene: flipped(scene, "operation", 2, 1),
    "operation no UTF-8": lambda scene: flipped(scene, "operation", 1, 7),
    "sequence": lambda _: f"UPDATE entries SET sequence = 0 WHERE {HERE}",
    "history": lambda scene: flipped(scene, "history", 3, 3),
    "body gone": lambda _: f"UPDATE entries SET body = x'' WHERE {HERE}",
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_h6_p10_a_flipped_bit_is_a_mismatch_at_its_place_and_nothing_else(
    lost: Scene, name: str
) -> None:
    change = MISMATCHES[name](lost)
    lost.close()
    raw(lost.settings.journal_file, change)
    report = verification.verify(lost.settings)
    assert report.verdict == "mismatch"
    named = [(found.kind, found.entity, found.revision) for found in report.findings]
    assert ("mismatch", ENTITY, REVISION) in named
    about = {kind for kind, entity, _ in named if entity == ENTITY}
    # A wrong digest or history column is what the next entry names in vain.
    assert about == ({"mismatch", "orphan"} if name in {"digest", "history"} else {"mismatch"})
    assert not {"fork", "truncated"} & {kind for kind, *_ in named}


def test_h6_p10_a_deleted_entry_is_a_gap_at_its_place(lost: Scene) -> None:
    position, sequence = query(
        lost.settings.journal_file, f"SELECT position, sequence FROM entries WHERE {HERE}"
    )[0]
    lost.close()
    raw(lost.settings.journal_file, f"DELETE FROM entries WHERE {HERE}")
    report = verification.verify(lost.settings)
    assert report.verdict == "gap"
    assert {found.kind for found in report.findings} == {"gap"}
    places = {
        (found.entity, found.revision, found.position, found.sequence) for found in report.findings
    }
    assert places == {
        (ENTITY, REVISION, None, None),
        (None, None, position, None),
        (None, None, None, sequence),
    }


def test_h6_p10_a_removed_entity_is_missed(lost: Scene) -> None:
    lost.close()
    raw(lost.settings.journal_file, f"DELETE FROM entries WHERE entity = '{ENTITY}'")
    report = verification.verify(lost.settings)
    assert report.verdict == "gap"
    assert any(found.kind == "head" and found.entity == ENTITY for found in report.findings)
    assert sum(found.position is not None for found in report.findings) == 6


def test_h6_p10_a_swapped_predecessor_is_an_orphan(lost: Scene) -> None:
    change = swapped(lost)
    lost.close()
    raw(lost.settings.journal_file, change)
    report = verification.verify(lost.settings)
    assert report.verdict == "orphan"
    assert ("orphan", ENTITY, REVISION) in [
        (found.kind, found.entity, found.revision) for found in report.findings
    ]
    assert not {"mismatch", "gap", "fork", "truncated"} & {f.kind for f in report.findings}


def test_h6_p10_two_successors_are_a_fork(lost: Scene) -> None:
    change = doubled(lost)
    lost.close()
    raw(lost.settings.journal_file, change)
    report = verification.verify(lost.settings)
    assert report.verdict == "fork"
    assert [(f.kind, f.entity, f.revision) for f in report.findings] == [("fork", ENTITY, REVISION)]


def test_h6_r10_the_last_k_entries_dropped_for_every_k(scene: Scene) -> None:
    scene.fill(8, entities=3)
    scene.settle()
    scene.close()
    file = scene.settings.journal_file
    good = file.read_bytes()
    count = query(file, "SELECT count(*) FROM entries")[0][0]
    for k in range(1, count + 1):
        file.write_bytes(good)
        raw(file, f"DELETE FROM entries WHERE position > {count - k}")
        report = verification.verify(scene.settings)
        kinds = {found.kind for found in report.findings}
        assert "truncated" in kinds, k
        assert not {"mismatch", "gap", "fork", "orphan"} & kinds, k
        assert report.verdict in {"journal-rewound", "closed"}
        scene.open()
        assert scene.detect() in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}
        with pytest.raises(Recovering):
            scene.put("case/0", 1)
        scene.record.stop.take_down()
        scene.close()


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        *((name, "mismatch") for name in MISMATCHES if name not in {"sequence", "history"}),
        ("deleted", "gap"),
        ("swapped", "orphan"),
    ],
)
@pytest.mark.parametrize("anew", [False, True])
def test_p5_p10_an_incomplete_history_stops_alone(
    lost: Scene, tmp_path: Path, name: str, flaw: str, *, anew: bool
) -> None:
    changes = {
        **MISMATCHES,
        "deleted": lambda _: f"DELETE FROM entries WHERE {HERE}",
        "swapped": swapped,
    }
    change = changes[name](lost)
    before = {
        entity: (revision, state, data)
        for entity, revision, state, data in query(
            lost.settings.store_file,
            "SELECT entity, revision, state, data FROM unrewind_entities",
        )
    }
    lost.restore(tmp_path / "old")
    lost.close()
    raw(lost.settings.journal_file, change)
    if anew:
        lost.settings.store_file.unlink()
    lost.open()
    planned = lost.plan()
    where = REVISION + 1 if name == "deleted" else REVISION
    assert [
        (item.entity, item.flaw, item.revision, item.durable_through) for item in planned.incomplete
    ] == [(ENTITY, flaw, where, REVISION - 1)]
    assert planned.exceptions == 1
    applied = lost.recover()
    assert applied.incomplete == [ENTITY]
    gaps = lost.do(reading.read_gaps, None, None).items
    assert [(gap.entity, gap.flaw) for gap in gaps] == [(ENTITY, flaw)]
    after = {
        entity: (revision, state, data)
        for entity, revision, state, data in query(
            lost.settings.store_file,
            "SELECT entity, revision, state, data FROM unrewind_entities",
        )
    }
    assert after.pop(ENTITY)[0] == REVISION - 1
    before.pop(ENTITY)
    assert after == before
    with pytest.raises(HistoryIncomplete):
        lost.put(ENTITY, "refused")
    assert lost.do(reading.read_gate, ENTITY, None).gate == "held"
    for entity in ("case/0", "case/2", "account/0"):
        assert lost.put(entity, "goes on").generation == 2
    for wanted, first in lost.told.values():
        if wanted.entity != ENTITY:
            again = lost.accept(wanted)
            assert again.digest == first.digest
        elif first.revision < REVISION:
            assert lost.accept(wanted).digest == first.digest
        elif first.revision == REVISION and name != "swapped":
            # Its entry cannot vouch for it: refused, and never decided a second time.
            with pytest.raises(UnrewindError):
                lost.accept(wanted)
    digest = lost.digest()
    lost.restore(tmp_path / "old")
    assert lost.recover().incomplete == [ENTITY]
    assert lost.digest() == digest


def test_damage_in_the_newest_entry_does_not_stop_detection(lost: Scene) -> None:
    """The comparison of heads reads the newest entries of all, damaged ones too."""
    lost.close()
    file = lost.settings.journal_file
    raw(
        file,
        "UPDATE entries SET envelope = 'x' || envelope WHERE entity = 'case/2' AND revision = 6",
    )
    lost.open()
    assert lost.detect() is Verdict.REWOUND
    assert lost.record.finding.facts["differing"] == ["case/2"]
    applied = lost.recover()
    assert applied.incomplete == ["case/2"]
    lost.put("case/1", "goes on")
    with pytest.raises(HistoryIncomplete):
        lost.put("case/2", "refused")


@pytest.mark.parametrize("sequence", [1, 2, 3])
@pytest.mark.parametrize("how", ["gap", "body", "envelope", "authority"])
def test_p9_control_with_a_gap_or_damage_closes(lost: Scene, sequence: int, how: str) -> None:
    from journal.control import Role
    from journal.tokens import create_token
    from journal.worker import drive

    for name in ("one", "two"):
        drive(create_token(lost.record, Role.READER, name))
    lost.settle()
    lost.close()
    here = f"stream = 'control' AND sequence = {sequence}"
    change = {
        "gap": f"DELETE FROM entries WHERE {here}",
        "body": f"UPDATE entries SET body = x'7b7d' WHERE {here}",
        "envelope": f"UPDATE entries SET envelope = replace(envelope, '\"v\":1', '\"v\":2')"
        f" WHERE {here}",
        "authority": "UPDATE authority SET stage = 'open', generation = 7",
    }[how]
    raw(lost.settings.journal_file, change)
    count = query(lost.settings.journal_file, "SELECT count(*) FROM entries")
    lost.open()
    with pytest.raises(Recovering):
        lost.put("case/0", 1)
    assert lost.record.stop.stands()
    with pytest.raises(UnrewindError):
        drive(create_token(lost.record, Role.READER, "three"))
    with pytest.raises(UnrewindError):
        lost.do(reading.read_entity, "case/0", None)
    assert query(lost.settings.journal_file, "SELECT count(*) FROM entries") == count
    report = verification.verify(lost.settings)
    # The last entry is missed only because the store keeps a copy of it.
    truncated = (how, sequence) == ("gap", 3)
    assert report.verdict == ("journal-rewound" if truncated else "closed")


def test_p5_a_repeat_beyond_the_boundary_is_not_acknowledged(lost: Scene, tmp_path: Path) -> None:
    """Revision 3 is missing, so nothing through 5 is durable: its caller must not be told it is."""
    lost.restore(tmp_path / "old")
    lost.close()
    raw(lost.settings.journal_file, f"DELETE FROM entries WHERE {HERE}")
    lost.open()
    lost.recover()
    for wanted, first in lost.told.values():
        if wanted.entity == ENTITY and first.revision > REVISION:
            with pytest.raises(HistoryIncomplete):
                lost.accept(wanted)


def test_p9_a_stop_file_that_cannot_be_read_means_closed(lost: Scene) -> None:
    stop = lost.record.stop
    stop.path.mkdir()
    with pytest.raises(Recovering):
        lost.put("case/0", 1)
    with pytest.raises(Recovering):
        lost.do(reading.read_entity, "case/0", None)
    stop.path.rmdir()
    stop.path.write_bytes(b"\xff not JSON")
    with pytest.raises(Recovering):
        lost.put("case/0", 1)
    stop.path.unlink()
    stop.path.symlink_to(stop.path.name)
    with pytest.raises(Recovering):
        lost.put("case/0", 1)
    stop.path.unlink()
    lost.put("case/0", 1)
    lost.whole()
