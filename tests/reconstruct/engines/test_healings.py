"""R10: a journal on a server that lost its tail, or is gone, is healed where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from journal.control import HEAL, Role
from journal.detection import Verdict
from journal.errors import Refused
from journal.tokens import create_token, revoke_token
from reconstruct import recovery
from reconstruct.fencing import alone
from reconstruct.healing import heal, survey_healing
from reconstruct.recovery import Applied
from tests.reconstruct.engines.world import JOURNALLED, ServerScene
from tests.reconstruct.scenes import Killed, fused
from tests.support.tenants import operation

pytestmark = pytest.mark.engines


def applied(scene: ServerScene) -> Applied:
    """Every step of a recovery of a journal."""
    recovery.stop(scene.settings, "a test")
    with pytest.raises(Refused, match="stopped, not fenced: do not restore"):
        scene.do(recovery.begin, "a test")
    done = scene.do(recovery.apply)
    scene.do(recovery.reopen, despite={"reconciled", "healed"})
    return done


def content(rows: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    return {row[1:] for row in rows}


@pytest.mark.parametrize("world", JOURNALLED, indirect=True)
def test_r10_a_journal_that_lost_its_tail_is_healed_by_its_store(scene: ServerScene) -> None:
    world = scene.world
    scene.fill(6)
    scene.do(create_token, Role.WRITER, "kept")
    (token,) = scene.control().tokens
    put_back = world.keep_journal(scene)
    scene.do(revoke_token, token)
    scene.fill(7, entities=4)
    scene.settle()
    lost, state = world.entries(scene), scene.digest()
    scene.close()
    put_back()
    scene.open()
    kept = world.entries(scene)
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    plan = scene.plan()
    assert (plan.direction, plan.missing) == ("journal", 7)

    done = applied(scene).healed
    assert done is not None
    assert (done.decisions, done.first, done.last, done.loss) == (7, 7, 13, None)
    now = world.entries(scene)
    assert now[: len(kept)] == kept
    assert content(lost) <= content(now)
    assert scene.control().tokens[token].revoked
    scene.repeats()
    assert scene.digest() == state
    scene.put("case/0", "after")
    scene.whole()


@pytest.mark.parametrize("world", ["postgres-postgres", "postgres-nats"], indirect=True)
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_r11_a_healing_that_was_killed_goes_on(
    scene: ServerScene, at: int, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    scene.fill(3)
    put_back = scene.world.keep_journal(scene)
    scene.fill(4)
    scene.settle()
    state = scene.digest()
    scene.close()
    put_back()
    scene.open()
    with alone(scene.settings), fused(at, after=after), pytest.raises(Killed):
        scene.do(heal, "a test")
    scene.crash()
    scene.open()
    if not (at == 2 and after):
        assert (scene.control().last == HEAL) is not (at == 1 and not after)
        assert scene.detect() is Verdict.JOURNAL_REWOUND
        assert scene.do(survey_healing).decisions == 4
        with alone(scene.settings):
            assert scene.do(heal, "a test").decisions == 4
    scene.recover()
    assert scene.digest() == state
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("world", JOURNALLED, indirect=True)
def test_r10_a_journal_that_is_gone_is_made_anew_from_its_store(scene: ServerScene) -> None:
    scene.fill(8)
    scene.settle()
    state = scene.digest()
    scene.close()
    scene.world.drop_journal()
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    done = applied(scene).healed
    assert done is not None
    assert done.decisions == 8
    scene.repeats()
    assert scene.digest() == state
    scene.whole()


@pytest.mark.parametrize("world", ["sqlite-postgres"], indirect=True)
def test_r10_both_rolled_back_together_is_a_loss_that_is_named(scene: ServerScene) -> None:
    """The witness alone knows of it; what is lost is lost only where it is accepted by name."""
    scene.fill(3)
    scene.settle()
    put_back = scene.world.keep_journal(scene)
    folder = scene.keep(scene.world.folder / "both")
    scene.fill(2)
    scene.settle()
    scene.restore(folder)
    scene.close()
    put_back()
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    loss = scene.do(survey_healing).loss
    assert loss is not None
    assert [(span.first, span.last) for span in loss.decisions] == [(4, 5)]
    with alone(scene.settings):
        with pytest.raises(Refused, match="lost: the decisions of sequence 4 to 5"):
            scene.do(heal, "a test")
        assert scene.do(heal, "a test", accept_loss=loss.name).loss is not None
    scene.do(recovery.apply)
    scene.do(recovery.reopen, despite={"reconciled", "healed"})
    scene.submit(operation("case/0", "set", {"value": "again"}))
