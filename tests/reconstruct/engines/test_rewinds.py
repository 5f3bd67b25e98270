"""P2, P8, P11: a store that was rewound, replaced or lost, on every pair of engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.control import Stage
from journal.detection import Verdict
from journal.errors import Recovering, UnrewindError
from reconstruct import recovery
from tests.reconstruct.engines.world import ALL, STORED, ServerScene
from tests.reconstruct.scenes import Killed, fused
from tests.support.tenants import operation

pytestmark = pytest.mark.engines


@pytest.mark.parametrize("world", ALL, indirect=True)
def test_p2_a_rewound_store_is_noticed_and_brought_forward(
    scene: ServerScene, tmp_path: Path
) -> None:
    scene.fill(6)
    older = scene.keep(tmp_path / "older")
    scene.fill(6, entities=4)
    scene.settle()
    state = scene.digest()
    restored = scene.restore(older)
    assert restored.replaced is not None
    assert scene.detect() is Verdict.REWOUND
    with pytest.raises(Recovering):
        scene.turn(operation("case/0", "set", {"value": 1}))
    plan = scene.plan()
    assert (plan.missing, plan.undo, plan.fresh_store) == (6, 0, False)
    applied = scene.recover()
    assert applied.replayed == 6
    assert scene.control().authority.stage is Stage.OPEN
    assert scene.digest() == state
    scene.repeats()
    scene.put("case/1", "after")
    scene.whole()


@pytest.mark.parametrize("world", ALL, indirect=True)
def test_p2_a_store_that_is_gone_is_rebuilt_from_nothing(scene: ServerScene) -> None:
    scene.fill(9, entities=4)
    scene.settle()
    state = scene.digest()
    scene.close()
    scene.world.drop_store()
    scene.open()
    assert scene.detect() is Verdict.REPLACED
    assert scene.plan().fresh_store
    assert scene.recover().replayed == 9
    assert scene.digest() == state
    scene.repeats()
    scene.put("case/1", "after")
    scene.whole()


@pytest.mark.parametrize("world", ALL, indirect=True)
def test_p7_what_only_the_store_has_is_undone(scene: ServerScene, tmp_path: Path) -> None:
    scene.fill(4)
    scene.local_only(operation("case/0", "set", {"value": "never told"}))
    ahead = scene.keep(tmp_path / "ahead")
    # The journal goes on without it, in a history that a recovery starts.
    scene.recover()
    scene.fill(2)
    scene.settle()
    state = scene.digest()
    scene.restore(ahead)
    assert not scene.detect().sound
    scene.recover()
    assert scene.digest() == state
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("world", STORED, indirect=True)
def test_p8_a_store_of_another_tenant_in_its_place_is_kept_and_replaced(
    scene: ServerScene,
) -> None:
    scene.fill(5)
    scene.settle()
    state = scene.digest()
    scene.close()
    schema = f"unrewind_{scene.world.tenant}"
    assert scene.world.store_url is not None
    scene.world.sql(
        scene.world.store_url, f"UPDATE \"{schema}\".unrewind_marker SET instance = 'staging'"
    )
    scene.open()
    assert scene.detect() is Verdict.REPLACED
    assert scene.recover().replayed == 5
    assert scene.digest() == state
    (kept,) = scene.world.sql(
        scene.world.store_url,
        f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{schema}_replaced%'",
    )
    rows = scene.world.sql(
        scene.world.store_url, f'SELECT count(*) FROM "{kept[0]}".unrewind_decisions'
    )
    assert rows == [(5,)]
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("world", ["postgres-postgres", "postgres-nats"], indirect=True)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [2, 5, 8])
def test_r11_p11_an_apply_killed_at_a_commit_ends_the_same(
    scene: ServerScene, tmp_path: Path, at: int, *, after: bool
) -> None:
    scene.fill(4)
    older = scene.keep(tmp_path / "older")
    scene.fill(5, entities=4)
    scene.settle()
    state = scene.digest()
    scene.restore(older)
    recovery.stop(scene.settings, "a test")
    with fused(at, after=after) as fuse:
        try:
            scene.do(recovery.begin, "a test")
            scene.do(recovery.apply)
            scene.do(recovery.reopen, despite={"reconciled"})
        except (Killed, UnrewindError):
            assert fuse.blown
    scene.crash()
    scene.open()
    scene.recover()
    assert scene.digest() == state
    scene.repeats()
    scene.whole()
