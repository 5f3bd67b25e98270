"""P3, P4, L11: releases over a rewind of a store on a server; abandoning in a journal on one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import reading
from journal.errors import Recovering
from journal.gate import GO
from reconstruct import verification
from tests.reconstruct.cuts import apply, cut, reopen
from tests.reconstruct.engines.world import ServerScene, World
from tests.support import receivers
from tests.support.reconciled import Quay, courier, quay_settings
from tests.support.tenants import operation

pytestmark = pytest.mark.engines


class ServedQuay(ServerScene, Quay):
    """Releases to a real receiver, from a store on a server."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[receivers.Receiver]:
    with receivers.receiving(tmp_path / "receiver", contract="queryable") as running:
        yield running


@pytest.fixture
def quay(
    store_url: str, journal_url: str, tmp_path: Path, server: receivers.Receiver
) -> Iterator[ServedQuay]:
    world = World("postgres-postgres", tmp_path, store_url, journal_url)
    world.settings = quay_settings(tmp_path, courier(server), store=store_url, journal=journal_url)
    made = ServedQuay(world)
    made.server = server
    try:
        yield made
    finally:
        made.close()


def test_p4_a_release_that_went_out_is_asked_about_and_not_sent_again(
    quay: ServedQuay, tmp_path: Path
) -> None:
    quay.accept(operation("case/0", "set", {"value": 1}))
    quay.keep(tmp_path / "before")
    permit = quay.ship("transfer/1")
    applied = quay.rewound(tmp_path / "before")
    assert applied.replayed == 3
    assert quay.status(permit.id) == "running"
    done = quay.reconcile()
    assert (done.complete, done.counts, done.exceptions) == (True, {"confirmed": 1}, 0)
    assert quay.row(permit.id).status == "done"
    assert quay.opened() == "open"
    quay.sweep()
    assert quay.claim("bank").permits == []
    assert quay.server.attempts() == 1
    quay.whole()


def test_p4_a_step_that_is_newer_than_a_snapshot_of_the_same_marker_is_doubted(
    quay: ServedQuay, tmp_path: Path
) -> None:
    """The marker is the same: only that the tables were put back tells."""
    quay.release("transfer/1")
    permit = quay.permit("bank")
    quay.settle()
    quay.keep(tmp_path / "before")
    quay.beat(permit, "calling")
    quay.restore(tmp_path / "before")
    assert quay.detect().sound
    assert quay.record.doubtful


def test_p4_p8_the_table_of_work_put_back_alone_gives_no_second_permit(quay: ServedQuay) -> None:
    work = '"unrewind_main".unrewind_work'
    release = quay.release("transfer/1")
    quay.world.sql(quay.world.store_url or "", f"CREATE TABLE kept AS TABLE {work}")
    quay.report(quay.permit("bank"), "confirmed", receipt="r-1")
    put_back = (f"DELETE FROM {work}", f"INSERT INTO {work} SELECT * FROM kept")
    quay.world.sql(quay.world.store_url or "", *put_back)
    with pytest.raises(Recovering, match=release):
        quay.claim("bank")
    quay.recover()
    assert quay.status(release) == "done"
    assert quay.claim("bank").permits == []
    quay.whole()


@pytest.mark.parametrize("world", ["postgres-postgres"], indirect=True)
@pytest.mark.parametrize("kind", ["gap", "mismatch"])
def test_an_entity_goes_on_from_its_last_continuous_revision(
    scene: ServerScene, tmp_path: Path, kind: str
) -> None:
    from tests.reconstruct.engines.test_verifying import damage

    scene.put("case/before", 1)
    scene.settle()
    older = scene.keep(tmp_path / "older")
    scene.fill(12, entities=3)
    scene.settle()
    scene.restore(older)
    here = "entity = 'case/1' AND revision = 3"
    what = {
        "gap": f"DELETE FROM entries WHERE {here}",
        "mismatch": f"UPDATE entries SET body = '\\x7b7d' WHERE {here}",
    }
    damage(scene.world, what[kind])
    assert apply(scene).incomplete == ["case/1"]
    done = cut(scene, "case/1")
    assert (done.missing, done.unreadable) == ((1, 0) if kind == "gap" else (0, 1))
    report = verification.verify(scene.settings)
    assert (report.verdict, report.findings) == ("clean", [])
    assert [(each.entity, each.through) for each in report.abandoned] == [("case/1", 2)]
    reopen(scene)
    assert scene.do(reading.read_gate, "case/1", None).gate == GO
    assert scene.put("case/1", "goes on").revision == 3
    digest = scene.digest()
    scene.restore(older)
    assert scene.recover().incomplete == []
    assert scene.digest() == digest
    scene.whole()
