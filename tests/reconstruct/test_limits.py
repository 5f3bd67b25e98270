"""R18, R20, R21: what an apply may undo, that it is remembered, and that nothing is left out."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.acceptance import Decision
from journal.errors import Refused
from journal.log import Row
from journal.sql import Statement
from reconstruct import planning, recovery
from reconstruct.announcing import announced
from reconstruct.completeness import prove
from reconstruct.describing import MOST, describe
from reconstruct.recovery import Consent
from reconstruct.replay import Replay
from tests.reconstruct.scenes import Killed, Scene, fused, kill, query, raw, tree
from tests.reconstruct.test_variants import pile_up
from tests.support.tenants import make_settings, operation

ROOT = Path(__file__).resolve().parents[2]
LOCAL = ["document/1", "case/0", "case/1", "case/2", "document/2"]
MOST_COMMITS = 40


def branch(scene: Scene, folder: Path) -> list[str]:
    """Leave a store with decisions that only it has, of a tenant that went on without; their IDs.

    The two on documents decide on a version, the others do not.
    """
    scene.fill(6, entities=4)
    scene.submit(operation("document/1", "submit", {"title": "a"}, version="v1"))
    scene.settle()
    wanted = [
        operation("document/1", "approve", version="v1"),
        *(operation(entity, "set", {"value": "local"}) for entity in LOCAL[1:4]),
        operation("document/2", "submit", version="v7"),
    ]
    pile_up(scene, wanted)
    scene.keep(folder / "local")
    scene.close()
    shutil.rmtree(scene.settings.store_file.parent)
    scene.open()
    scene.recover()
    scene.fill(5, entities=5)
    scene.settle()
    scene.restore(folder / "local")
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    return [each.operation for each in wanted]


@pytest.fixture
def branched(tmp_path: Path):
    made = Scene(make_settings(tmp_path, max_undo=2))
    made.local = branch(made, tmp_path)  # type: ignore[attr-defined]
    yield made
    made.close()


# R18, R20: a limit, and names to exceed it.


def test_r18_r20_more_than_max_undo_is_undone_only_by_name(branched: Scene) -> None:
    settings = branched.settings
    force = branched.control().authority
    plan = branched.plan()
    assert (plan.undo, plan.exceptions > 0, plan.direction) == (5, True, "store")
    refused: list[tuple[Consent | None, str]] = [
        (None, "--max-undo 5 --confirm-tenant main --confirm-history " + force.history),
        (Consent(4, "main", force.history), "5 decisions"),
        (Consent(None, "main", force.history), "--max-undo 5"),
        (Consent(5), "name the tenant"),
        (Consent(5, "main"), "name the tenant"),
        (Consent(5, None, force.history), "name the tenant"),
        (Consent(5, "other", force.history), "tenant main, not other"),
        (Consent(5, "main", "f" * 32), f"history in force is {force.history}"),
    ]
    before = tree(settings.store_file.parent, settings.journal_file.parent)
    for consent, why in refused:
        with pytest.raises(Refused, match=why):
            branched.do(recovery.apply, plan.plan, consent=consent)
    assert tree(settings.store_file.parent, settings.journal_file.parent) == before
    applied = branched.do(recovery.apply, plan.plan, consent=Consent(5, "main", force.history))
    assert applied.undone == 5
    assert [item.operation for item in applied.undone_operations] == branched.local  # type: ignore[attr-defined]
    branched.do(recovery.reopen, despite={"reconciled"})
    branched.repeats()
    branched.whole()


CONFIG = """
data = "{data}"
max_undo = 2
[lifecycle]
case = {{ kind = "free" }}
contract = {{ kind = "free", owner = "caller" }}
account = {{ kind = "free", owner = "embedded", projection = "tests.support.ledger:Ledger" }}
"""


def test_r18_r20_the_command_says_which_flags_allow_it_and_takes_them(
    branched: Scene, tmp_path: Path
) -> None:
    branched.close()
    config = tmp_path / "unrewind.toml"
    config.write_text(CONFIG.format(data=branched.settings.home))

    def run(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "api.cli", "recover", *words, "--config", str(config)]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        return done.returncode, done.stdout, done.stderr

    code, told, _ = run("plan")
    assert code == 1
    last = told.splitlines()[-1].removeprefix("next: unrewind recover ")
    assert "--max-undo 5 --confirm-tenant main --confirm-history " in last
    plan = last.split()[2]
    code, _, complained = run("apply", "--plan", plan)
    assert code == 3
    assert complained.startswith("unrewind: 5 decisions that only the store has would be undone")
    assert complained.count("\n") == 1
    assert run("apply", "--max-undo", "-1")[0] == 2
    code, told, complained = run(*last.split())
    assert code == 0, complained
    assert "undone: 5\n" in told
    branched.open()
    branched.do(recovery.reopen, despite={"reconciled"})
    branched.repeats()
    branched.whole()


def test_r20_a_wrong_name_is_refused_also_where_none_is_needed(scene: Scene) -> None:
    scene.fill(3)
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    for consent in (Consent(tenant="other"), Consent(history="f" * 32)):
        with pytest.raises(Refused, match=r"tenant main|history in force"):
            scene.do(recovery.apply, consent=consent)
    scene.do(recovery.apply, consent=Consent(tenant="main"))


def test_what_approved_something_is_named_apart(branched: Scene) -> None:
    plan = branched.plan()
    told = [(item.entity, item.version, item.action) for item in plan.undone_approvals]
    assert told == [("document/1", "v1", "approve"), ("document/2", "v7", "submit")]
    lines = describe(plan)
    assert "5 decisions to undo: only the store has them" in lines
    assert sum(line.startswith("ask anew: ") for line in lines) == 2


def test_a_long_list_is_cut_where_it_is_printed_and_whole_in_the_plan(branched: Scene) -> None:
    plan = branched.plan()
    many = msgspec.structs.replace(plan, rebuild=[f"case/{number}" for number in range(50)])
    lines = [line for line in describe(many) if line.startswith("rebuild")]
    assert len(lines) == MOST
    assert f"and {50 - MOST} more like the last: see --json" in describe(many)


# What was undone is remembered: it is journalled first.


def test_p12_what_is_undone_is_journalled_before_the_first_of_it_is(
    branched: Scene, tmp_path: Path
) -> None:
    """Killed at every commit, the last apply still names everything."""
    local = branched.local  # type: ignore[attr-defined]
    branched.close()
    for number in range(1, MOST_COMMITS):
        settings = make_settings(tmp_path / f"{number}", max_undo=5)
        shutil.copytree(branched.settings.home, settings.home)
        scene = Scene(settings)
        with fused(number, after=bool(number % 2)) as fuse:
            try:
                scene.do(recovery.apply)
            except Killed:
                assert fuse.blown
        if fuse.blown:
            kill(scene.record)
            scene.records.clear()
            scene.open()
        applied = scene.do(recovery.apply)
        assert (applied.undone, [item.operation for item in applied.undone_operations]) == (
            5,
            local,
        )
        kept = scene.do(announced, applied.generation)
        assert kept.undone[0].version == "v1"
        scene.close()
        shutil.rmtree(tmp_path / f"{number}")
        if not fuse.blown:
            assert number > 5
            return
    pytest.fail("the apply never ended")


# R21: complete, per kind of action.


def submit_all(scene: Scene, folder: Path) -> None:
    """Documents that are approved, and after a snapshot some of them revoked or cancelled."""
    for number in range(4):
        entity = f"document/{number}"
        scene.submit(operation(entity, "submit", version="v1"))
        scene.submit(operation(entity, "approve", version="v1"))
    scene.keep(folder / "approved")
    for number in (0, 1):
        scene.submit(operation(f"document/{number}", "revoke"))
    scene.submit(operation("document/2", "cancel"))
    scene.fill(2)
    scene.settle()


def test_r21_r16_every_kind_of_action_is_proved_to_be_back(scene: Scene, tmp_path: Path) -> None:
    submit_all(scene, tmp_path)
    scene.restore(tmp_path / "approved")
    applied = scene.recover()
    told = {action: (of.journalled, of.applied, of.held) for action, of in applied.actions.items()}
    assert told == {"cancel": (1, 1, 0), "revoke": (2, 2, 0), "set": (2, 2, 0)}
    states = query(scene.settings.store_file, "SELECT entity, state FROM unrewind_entities")
    assert {("document/0", "revoked"), ("document/2", "cancelled")} <= set(states)
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("fault", ["left out", "written over", "not kept"])
def test_r21_a_replay_that_leaves_revocations_out_is_refused(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    submit_all(scene, tmp_path)
    scene.restore(tmp_path / "approved")
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    if fault == "left out":
        real = Replay.step

        def step(self: Replay, row: Row) -> Decision | None:
            return None if b'"action":"revoke"' in row.text else real(self, row)

        monkeypatch.setattr(Replay, "step", step)
    else:
        monkeypatch.setattr("reconstruct.recovery.prove", _after(scene, fault, prove))
    with pytest.raises(Refused, match=r"1 of 2 revoke|2 of 2 revoke") as refused:
        scene.do(recovery.apply)
    assert "document/1 revision 3" in refused.value.detail
    assert scene.control().begun is not None
    with pytest.raises(Refused):
        scene.do(recovery.reopen)
    monkeypatch.undo()
    scene.do(recovery.begin, "again")
    assert scene.plan().fresh_store is (fault == "not kept")  # rows are missing: a torn file
    assert scene.do(recovery.apply).actions["revoke"].applied == 2
    scene.do(recovery.reopen)
    scene.repeats()
    scene.whole()


def _after(scene: Scene, fault: str, prove: Any) -> Any:
    """Spoil the store just before the proof."""
    sql = {
        "written over": (
            "UPDATE unrewind_entities SET revision = 2, digest = x'00', state = 'approved'"
            " WHERE entity = 'document/1'"
        ),
        "not kept": "DELETE FROM unrewind_decisions WHERE envelope LIKE '%revoke%document/1%'",
    }[fault]

    async def spoiled(*given: Any) -> Any:
        scene.store.database.batch([Statement(sql)])
        return await prove(*given)

    return spoiled


def test_r21_what_a_named_gap_holds_is_told_apart(scene: Scene, tmp_path: Path) -> None:
    submit_all(scene, tmp_path)
    scene.submit(operation("document/3", "cancel"))
    scene.settle()
    scene.close()
    raw(
        scene.settings.journal_file,
        "UPDATE entries SET body = x'7b7d20' WHERE entity = 'document/3' AND revision = 3",
    )
    scene.open()
    scene.restore(tmp_path / "approved")
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    applied = scene.do(recovery.apply)
    assert applied.incomplete == ["document/3"]
    cancelled = applied.actions["cancel"]
    assert (cancelled.journalled, cancelled.applied, cancelled.held) == (2, 1, 1)


def test_p11_an_interrupted_apply_is_proved_from_where_its_first_attempt_began(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier attempt replayed is not taken for granted by a later one."""
    monkeypatch.setattr("reconstruct.applying.PAGE", 2)
    submit_all(scene, tmp_path)
    scene.restore(tmp_path / "approved")
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    with fused(4, after=True) as fuse, pytest.raises(Killed):
        scene.do(recovery.apply)
    assert fuse.blown
    kill(scene.record)
    scene.records.clear()
    scene.open()
    left = scene.plan().missing
    assert 0 < left < 5
    applied = scene.do(recovery.apply)
    assert applied.replayed == left
    assert sum(of.journalled for of in applied.actions.values()) == 5


# Memory: pages, whatever their number, lead to the same plan.


def test_entities_that_come_up_in_every_page_are_planned_and_rebuilt_alike(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.fill(9, entities=2)
    scene.keep(tmp_path / "old")
    scene.fill(20, entities=2)
    scene.settle()
    before = scene.digest()
    scene.restore(tmp_path / "old")
    plans = []
    for size in (1, 3, 4000):
        monkeypatch.setattr(planning, "PAGE", size)
        plans.append(scene.plan())
    assert plans[0] == plans[1] == plans[2]
    monkeypatch.setattr("reconstruct.applying.PAGE", 2)
    monkeypatch.setattr("reconstruct.applying.PAGE_BYTES", 1)
    scene.close()
    raw(scene.settings.store_file, "UPDATE unrewind_entities SET data = '{}'")
    scene.open()
    assert scene.recover().rebuilt == 2
    assert scene.digest() == before
    scene.repeats()
    scene.whole()
