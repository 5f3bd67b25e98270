"""Abandoning: an entity goes on from its last continuous revision, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal import reading, tracing
from journal.errors import Forked, HistoryIncomplete, Refused, StaleGeneration
from journal.gate import GO
from journal.worker import drive
from reconstruct import recovery, verification
from reconstruct.abandoning import Named, abandon
from tests.reconstruct.cuts import (
    EVIDENCE,
    REASON,
    apply,
    cut,
    damage,
    gaps,
    named,
    reopen,
    shown,
)
from tests.reconstruct.scenes import Killed, Scene, fused, kill, query, raw
from tests.support.sealing import Caller
from tests.support.tenants import make_settings, operation


@pytest.fixture
def lost(scene: Scene, tmp_path: Path) -> Scene:
    """A snapshot, then six revisions each of three cases and of two accounts."""
    scene.put("case/before", 1)
    scene.put("account/before", 1)
    scene.settle()
    scene.keep(tmp_path / "old")
    scene.fill(18, entities=3)
    scene.fill(12, entities=2, kind="account")
    scene.settle()
    return scene


HERE = "entity = '{}' AND revision = 3"
DAMAGES = {
    "gap": "DELETE FROM entries WHERE " + HERE,
    "mismatch": "UPDATE entries SET body = x'7b7d' WHERE " + HERE,
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("entity", ["case/1", "account/1"])
def test_an_entity_goes_on_from_its_last_continuous_revision(
    lost: Scene, tmp_path: Path, entity: str, kind: str
) -> None:
    damage(lost, tmp_path, DAMAGES[kind].format(entity))
    assert apply(lost).incomplete == [entity]
    done = cut(lost, entity)
    assert (done.through, done.again) == (2, False)
    assert (done.missing, done.unreadable) == ((1, 0) if kind == "gap" else (0, 1))
    # It is named, and no finding; the plan has forgotten it.
    report = verification.verify(lost.settings)
    assert (report.verdict, report.findings) == ("clean", [])
    assert [(found.entity, found.through) for found in report.abandoned] == [(entity, 2)]
    assert (lost.plan().incomplete, lost.plan().lost, gaps(lost)) == ([], [], [])
    reopen(lost)
    assert lost.do(reading.read_entity, entity, None).revision == 2
    assert lost.do(reading.read_gate, entity, None).gate == GO
    # Its new revisions stand beside the dropped ones.
    answers = [lost.put(entity, f"new {number}") for number in range(2)]
    assert [answer.revision for answer in answers] == [3, 4]
    view = lost.do(reading.read_entity, entity, None)
    assert (view.revision, view.complete, view.newest) == (4, True, 4)
    assert lost.do(reading.read_gate, entity, None).gate == GO
    new: list[tuple[int, str | None]] = [(revision, None) for revision in (1, 2)]
    for revision in (3, 4, 5, 6):
        if (kind, revision) != ("gap", 3):
            new.append((revision, "abandoned"))
        if revision < 5:
            new.append((revision, None))
    assert shown(lost, entity) == new
    # However often the store is rewound.
    digest = lost.digest()
    lost.restore(tmp_path / "old")
    assert lost.recover().incomplete == []
    assert lost.digest() == digest
    lost.close()
    lost.settings.store_file.unlink()
    lost.open()
    assert lost.recover().incomplete == []
    assert lost.digest() == digest
    lost.put(entity, "goes on")
    lost.whole()


def test_a_dropped_operation_is_acknowledged_to_nobody_and_its_id_is_spent(
    lost: Scene, tmp_path: Path
) -> None:
    damage(lost, tmp_path, DAMAGES["gap"].format("case/1"))
    apply(lost)
    dropped = {each.operation for each in cut(lost, "case/1").dropped}
    reopen(lost)
    for _ in range(4):
        lost.put("case/1", "beyond every dropped revision")
    for name in dropped:
        wanted, first = lost.told[name]
        for ask in (
            lambda wanted=wanted: lost.accept(wanted),
            lambda name=name: lost.do(reading.read_operation, name),
        ):
            with pytest.raises(HistoryIncomplete, match="new operation ID") as refused:
                ask()
            members = refused.value.members
            assert (members["entity"], members["revision"]) == ("case/1", first.revision)
            assert members["abandoned"] is not None
        with pytest.raises(HistoryIncomplete):
            lost.accept(operation("case/0", "set", {"value": 1}, id=name))
    listed = lost.do(reading.read_operations, None, 1000).items
    assert {item.operation for item in listed if item.outcome == "abandoned"} == dropped
    lost.told = {name: told for name, told in lost.told.items() if name not in dropped}
    lost.told = {
        name: told
        for name, told in lost.told.items()
        if (told[1].entity, told[1].revision, told[1].generation) != ("case/1", 3, 1)
    }
    lost.repeats()


def test_everything_that_is_dropped_is_named_and_nothing_else(lost: Scene, tmp_path: Path) -> None:
    damage(lost, tmp_path, DAMAGES["gap"].format("case/1"))
    apply(lost)
    before = query(lost.settings.journal_file, "SELECT count(*) FROM entries")
    names = named(lost, "case/1")
    assert len(names) == 3

    def refused(entity: str, drop: list[str], *confirm: str) -> Refused:
        with pytest.raises(Refused) as error:
            lost.do(
                abandon, entity, REASON, EVIDENCE, drop, None, Named(*confirm) if confirm else None
            )
        return error.value

    assert names[2] in refused("case/1", names[:2]).detail
    assert names[0] not in refused("case/1", names[:2]).detail
    assert "op-elsewhere" in refused("case/1", [*names, "op-elsewhere"]).detail
    assert "complete" in refused("case/0", names).detail
    history = lost.control().authority.history
    assert "tenant main" in refused("case/1", names, "other", history).detail
    assert history in refused("case/1", names, "main", "ab" * 16).detail
    assert query(lost.settings.journal_file, "SELECT count(*) FROM entries") == before
    digests = [step.digest for step in lost.do(tracing.read_history, "case/1", 4, None).revisions]
    done = lost.do(
        abandon, "case/1", REASON, EVIDENCE, digests, "an operator", Named("main", history)
    )
    again = lost.do(abandon, "case/1", "another reason", EVIDENCE, [], "somebody else")
    assert (again.again, again.since, again.dropped) == (True, done.since, done.dropped)
    (cut_off,) = lost.control().abandoned["case/1"]
    assert (cut_off.reason, cut_off.evidence, cut_off.principal) == (
        REASON,
        EVIDENCE,
        "an operator",
    )
    assert sorted(cut_off.dropped) == sorted(names)


def test_it_is_a_step_of_a_recovery(lost: Scene, tmp_path: Path) -> None:
    damage(lost, tmp_path, DAMAGES["gap"].format("case/1"))
    with pytest.raises(Refused, match="begin"):
        lost.do(abandon, "case/1", REASON, EVIDENCE, [])
    recovery.stop(lost.settings, "a test")
    lost.do(recovery.begin, "a test")
    with pytest.raises(Refused, match="apply"):
        lost.do(abandon, "case/1", REASON, EVIDENCE, [])
    lost.do(recovery.apply)
    cut(lost, "case/1")


@pytest.mark.parametrize("after", [False, True])
def test_p11_killed_at_any_step_it_is_done_when_it_is_run_again(
    tmp_path: Path, *, after: bool
) -> None:
    digests = set()
    for at in range(1, 9):
        folder = tmp_path / str(at)
        folder.mkdir()
        scene = Scene(make_settings(folder))
        try:
            scene.put("case/before", 1)
            scene.settle()
            scene.keep(folder / "old")
            for number in range(5):
                scene.put("case/1", number)
            scene.settle()
            damage(scene, folder, DAMAGES["mismatch"].format("case/1"))
            apply(scene)
            names = named(scene, "case/1")
            with fused(at, after=after) as fuse:
                try:
                    scene.do(abandon, "case/1", REASON, EVIDENCE, names)
                except Killed:
                    kill(scene.record)
                    scene.records.clear()
                    scene.open()
            done = scene.do(abandon, "case/1", REASON, EVIDENCE, names)
            assert done.through == 2
            assert len(scene.control().abandoned["case/1"]) == 1
            reopen(scene)
            scene.put("case/1", "new")
            digests.add(scene.digest())
            scene.whole()
            if not fuse.blown:
                break
        finally:
            scene.close()
    else:
        raise AssertionError("more steps than expected")
    assert len(digests) == 1


def test_what_went_on_is_cut_off_again_further_down(lost: Scene, tmp_path: Path) -> None:
    damage(lost, tmp_path, DAMAGES["gap"].format("case/1"))
    apply(lost)
    cut(lost, "case/1")
    reopen(lost)
    for number in range(4):
        lost.put("case/1", f"second {number}")
    lost.settle()
    damage(
        lost,
        tmp_path,
        "UPDATE entries SET body = x'7b7d' WHERE entity = 'case/1' AND revision = 2",
    )
    assert apply(lost).incomplete == ["case/1"]
    done = cut(lost, "case/1")
    # Those of the first history were dropped before, and are not named again.
    assert (done.through, [each.revision for each in done.dropped]) == (1, [3, 4, 5, 6])
    reopen(lost)
    assert lost.put("case/1", "third").revision == 2
    assert [revision for revision, flaw in shown(lost, "case/1") if flaw is None] == [1, 2]
    report = verification.verify(lost.settings)
    assert (report.verdict, [found.through for found in report.abandoned]) == ("clean", [2, 1])
    digest = lost.digest()
    lost.restore(tmp_path / "old")
    lost.recover()
    assert lost.digest() == digest
    lost.whole()


def test_damage_that_comes_after_is_found_in_what_was_dropped_too(
    lost: Scene, tmp_path: Path
) -> None:
    damage(lost, tmp_path, DAMAGES["mismatch"].format("case/1"))
    apply(lost)
    cut(lost, "case/1")
    reopen(lost)
    lost.put("case/1", "new")
    lost.close()
    raw(
        lost.settings.journal_file,
        "UPDATE entries SET body = x'7b7d' WHERE entity = 'case/1' AND revision = 5",
        "DELETE FROM entries WHERE entity = 'case/1' AND revision = 6",
        "DELETE FROM dropped WHERE position IN"
        " (SELECT position FROM entries WHERE entity = 'case/1' AND revision = 4)",
    )
    report = verification.verify(lost.settings)
    assert report.verdict == "mismatch"
    assert {"gap", "index", "mismatch"} <= {found.kind for found in report.findings}
    assert ("mismatch", 5) in {(found.kind, found.revision) for found in report.findings}
    damaged = {found.revision for found in report.findings if found.kind == "mismatch"}
    assert damaged == {5}


def test_an_index_that_was_lost_is_made_anew_by_a_recovery(lost: Scene, tmp_path: Path) -> None:
    damage(lost, tmp_path, DAMAGES["gap"].format("case/1"))
    apply(lost)
    cut(lost, "case/1")
    reopen(lost)
    lost.put("case/1", "new")
    lost.settle()
    digest = lost.digest()
    lost.close()
    raw(lost.settings.journal_file, "DROP TABLE dropped")
    assert "index" in {found.kind for found in verification.verify(lost.settings).findings}
    lost.open()
    lost.recover()
    assert lost.digest() == digest
    lost.whole()


# What callers seal themselves.


CONTRACT = "contract/7"


def test_a_callers_gap_is_abandoned_and_late_entries_are_evidence(
    scene: Scene, tmp_path: Path
) -> None:
    caller = scene.caller(sequenced=True)
    entries = caller.chain(CONTRACT, 6)
    scene.append(*entries[:2], *entries[3:5])
    with pytest.raises(Refused, match="begin"):
        scene.do(abandon, CONTRACT, REASON, EVIDENCE, [])
    apply(scene)
    done = cut(scene, CONTRACT)
    assert (done.through, done.missing, len(done.dropped)) == (2, 1, 2)
    reopen(scene)
    view = scene.do(reading.read_entity, CONTRACT, None)
    assert (view.revision, view.complete, view.newest) == (2, True, 2)
    count = query(scene.settings.journal_file, "SELECT count(*) FROM entries")
    # Late ones, the missing one that a dropped successor names among them.
    for late in (entries[2], entries[5], entries[5]):
        with pytest.raises(HistoryIncomplete, match="abandoned"):
            scene.append(late)
    for dropped in entries[3:5]:
        with pytest.raises(HistoryIncomplete, match="new operation ID"):
            scene.append(dropped)
    assert query(scene.settings.journal_file, "SELECT count(*) FROM entries") == count
    rivals = drive(scene.log.rivals(CONTRACT))
    assert [rival.entry for rival in rivals] == [entries[2], entries[5]]
    assert gaps(scene) == []
    # The entity goes on where it was cut, past every dropped revision.
    force = scene.control().authority
    caller.history, caller.generation = force.history, force.generation
    caller.heads[CONTRACT] = entries[1]
    for revision in (3, 4, 5, 6, 7):
        (answer,) = scene.append(caller.seal(CONTRACT, "again"))
        assert (answer.durable_through, answer.complete) == (revision, True)
    with pytest.raises(HistoryIncomplete):
        scene.append(entries[3])
    assert scene.append(entries[1])[0].outcome == "duplicate"
    reused = caller.draft(CONTRACT, operation=entries[4].envelope.operation)
    with pytest.raises(HistoryIncomplete, match="new operation ID"):
        scene.append(reused)
    assert scene.do(reading.read_entity, CONTRACT, None).revision == 7
    scene.whole()


def test_a_fork_keeps_the_boundary_until_it_is_settled_and_the_chain_goes_on(
    scene: Scene,
) -> None:
    caller = scene.caller()
    first, second = caller.chain(CONTRACT, 2)
    scene.append(first, second)
    rival = Caller(caller.history)
    rival.heads[CONTRACT] = first
    with pytest.raises(Forked):
        scene.append(rival.seal(CONTRACT, "rival"))
    third, fourth = caller.chain(CONTRACT, 2)
    for entry in (third, fourth):
        (answer,) = scene.append(entry)
        assert (answer.outcome, answer.durable_through, answer.complete) == ("accepted", 2, False)
    assert scene.do(reading.read_gate, CONTRACT, 4).gate == "held"
    drop = named(scene, CONTRACT)
    assert drop == ["contract/7-rival-2-" + caller.history[:4]]
    done = scene.do(abandon, CONTRACT, REASON, EVIDENCE, drop)
    assert (done.through, [each.kind for each in done.dropped]) == (4, ["rival"])
    assert gaps(scene) == []
    assert scene.do(reading.read_gate, CONTRACT, 4).gate == GO
    # The rival again is known, and starts nothing anew.
    with pytest.raises(HistoryIncomplete):
        scene.append(rival.heads[CONTRACT])
    assert gaps(scene) == []
    assert scene.append(caller.seal(CONTRACT))[0].durable_through == 5
    # Another one does.
    other = Caller(caller.history)
    other.heads[CONTRACT] = third
    with pytest.raises(Forked):
        scene.append(other.seal(CONTRACT, "other"))
    assert [(gap.flaw, gap.first) for gap in gaps(scene)] == [("fork", 4)]
    assert scene.append(caller.seal(CONTRACT))[0].durable_through == 5
    cut(scene, CONTRACT)
    assert scene.append(caller.seal(CONTRACT))[0].durable_through == 7
    scene.whole()


def test_damage_to_what_a_caller_sealed_is_abandoned(scene: Scene) -> None:
    scene.put("case/before", 1)
    caller = scene.caller()
    entries = caller.chain(CONTRACT, 5)
    scene.append(*entries)
    scene.settle()
    scene.close()
    raw(scene.settings.journal_file, DAMAGES["mismatch"].format(CONTRACT))
    scene.open()
    apply(scene)
    done = cut(scene, CONTRACT)
    assert (done.through, done.unreadable, len(done.dropped)) == (2, 1, 2)
    reopen(scene)
    report = verification.verify(scene.settings)
    assert (report.verdict, report.findings) == ("clean", [])
    force = scene.control().authority
    caller = Caller(force.history, force.generation)
    caller.heads[CONTRACT] = entries[1]
    assert scene.append(caller.seal(CONTRACT, "again"))[0].durable_through == 3
    with pytest.raises(StaleGeneration):
        scene.append(Caller().draft("contract/9"))
    scene.whole()


def test_entries_of_the_history_in_force_are_not_dropped(scene: Scene) -> None:
    caller = scene.caller()
    entries = caller.chain(CONTRACT, 3)
    scene.append(entries[0], entries[2])
    with pytest.raises(Refused, match="history in force"):
        scene.do(abandon, CONTRACT, REASON, EVIDENCE, [entries[2].digest])
    assert scene.append(entries[1])[0].durable_through == 3
