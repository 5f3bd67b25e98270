"""Begin: what stops, what is in flight, and that nothing older or elsewhere goes on."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import journal
from api.alerts import Alerts
from api.dispatcher import Dispatcher
from api.opening import writing
from journal import Settings
from journal.asking import worker_name
from journal.callbacks import hear
from journal.control import Stage
from journal.errors import FenceFailed, Recovering, Refused, StaleGeneration, UnrewindError
from journal.log import CALLER, DECISIONS, Append, Moved
from journal.outcomes import CALLING, Outcome, Reported
from journal.permits import Asked
from journal.record import Record
from journal.reports import Beating
from journal.standing import examine
from journal.store import tables
from journal.worker import drive
from journal.writepath import decide, make_ready
from reconstruct import inflight, recovery
from reconstruct.inflight import InFlight, State
from tests.soak.processes import Site, until
from tests.support.dispatching import Scene, lane, receiver, scene, settings_of
from tests.support.receivers import Receiver, receiving
from tests.support.releases import PAST, Yard, lane_settings, releasing
from tests.support.sealing import Caller, items
from tests.support.tenants import LIFECYCLES, operation
from tests.support.whole import verify_files


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(lane_settings(tmp_path))
    yield made
    made.close()


@pytest.fixture
def courier(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path / "receiver", contract="queryable") as running:
        yield running


def dead_worker() -> str:
    """The name of a worker of this machine whose process has ended."""
    words = "from journal.asking import worker_name; print(worker_name('push'))"
    told = subprocess.run(
        [sys.executable, "-c", words],
        cwd=Path(journal.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout.strip()


def begin(yard: Yard) -> dict[str, InFlight]:
    """What a begin tells of each attempt under way, by release."""
    stopped = recovery.stop(yard.settings, "a test")
    begun = yard.do(recovery.begin, "a test", None, stopped.evidence)
    assert begun.safe_to_restore
    return {call.id: call for call in begun.in_flight}


def carry_on(yard: Yard) -> None:
    """What follows a begin; what is open is not asked about here."""
    yard.do(recovery.apply)
    yard.do(recovery.reopen, despite={"reconciled"})


# Calls in flight.


def test_each_attempt_under_way_is_told_and_followed_to_its_end(yard: Yard) -> None:
    pulled = yard.release("letter/1")
    own = yard.permit("post")
    yard.release("letter/2")
    late = yard.permit("post")
    yard.meddle(late.id, claimed=PAST, heartbeat=PAST)
    yard.release("transfer/1")
    calling = yard.permit("bank", worker=worker_name("push"))
    yard.beat(calling, CALLING)
    yard.release("transfer/2")
    dead = yard.permit("bank", worker=dead_worker())
    yard.release("payment/1")
    over = yard.permit("pay")
    yard.report(over, "confirmed", receipt="r-1")

    told = begin(yard)
    assert {call: told[call].state for call in told} == {
        pulled: State.MAY_LAST,
        late.id: State.OVER,
        calling.id: State.MAY_LAST,
        dead.id: State.DEAD,
    }
    call = told[calling.id]
    assert (call.lane, call.receiver, call.step, call.lease) == (
        "bank",
        "bank",
        CALLING,
        calling.lease,
    )
    assert call.found == "store"
    assert 10.0 <= inflight.default_wait(yard.settings, told.values()) <= 12.0

    yard.observe(own, "confirmed", receipt="r-2")
    yard.observe(calling, "failed")
    after = {each.id: each for each in yard.do(inflight.follow, told.values())}
    assert (after[pulled].state, after[calling.id].state) == (State.ENDED, State.ENDED)
    assert "confirmed" in after[pulled].evidence
    assert inflight.pending(after.values()) == []
    assert inflight.default_wait(yard.settings, after.values()) == 0.0
    for each in [*told.values(), *after.values()]:
        assert each.id in inflight.describe(each)
    carry_on(yard)


def test_an_attempt_that_the_store_was_put_back_before_is_told_from_the_journal(
    yard: Yard, tmp_path: Path
) -> None:
    yard.release("transfer/1")
    yard.release("letter/1")
    copy = yard.snapshot(tmp_path / "copies")
    lost, ended = yard.permit("bank", worker="w1"), yard.permit("post")
    yard.report(ended, "confirmed", receipt="r-1")
    yard.rewind(copy)
    told = begin(yard)
    assert set(told) == {lost.id}
    call = told[lost.id]
    assert (call.found, call.state, call.lease) == ("journal", State.MAY_LAST, lost.lease)
    assert (call.lane, call.receiver, call.worker) == ("bank", "bank", "w1")
    carry_on(yard)


def test_l10_a_call_under_way_that_was_cancelled_can_end_as_it_happened(yard: Yard) -> None:
    release = yard.release("letter/1")
    permit = yard.permit("post")
    yard.accept(operation("letter/1", "revoke"))
    assert yard.row(release).cancel_requested
    assert begin(yard)[release].state is State.MAY_LAST
    with pytest.raises(Recovering):
        yard.report(permit, "confirmed", receipt="r-1")
    yard.observe(permit, "confirmed", receipt="r-1")
    carry_on(yard)
    yard.sweep()
    row = yard.row(release)
    assert (row.status, row.receipt) == ("done", "r-1")


CONFIG = """
[lane.delivery]
receiver = "courier"

[receiver.courier]
url = "{0.url}"
status_url = "{0.status_url}"
contract = "queryable"
window = 86400
timeout = 20
"""


def called(site: Site, courier: Receiver) -> str:
    """The ID of a release whose call is under way and gets no answer yet."""
    courier.tell("delay", seconds=600)
    for action in ("submit", "approve", "release"):
        answer = site.servers[-1].decide(f"op-{action}", "document/1", action, version="v1")
        assert answer[0] == 201, answer
    courier.wait_for(lambda: courier.attempts() == 1)
    return answer[1]["releases"][0]


def test_begin_waits_beside_a_hung_server_until_what_is_in_flight_has_ended(
    tmp_path: Path, courier: Receiver
) -> None:
    site = Site(tmp_path / "site", CONFIG.format(courier))
    try:
        server = site.start()
        release = called(site, courier)
        server.freeze()
        with site.popen("recover", "begin", "--wait", "50", "--json") as process:
            until("it is fenced", lambda: site.status()["generation"] == 2)
            assert process.poll() is None
            courier.finish(release)
            server.thaw()
            out, err = process.communicate()
        begun = msgspec.json.decode(out)
        assert (process.returncode, err, begun["safe_to_restore"]) == (0, "", True)
        (call,) = begun["in_flight"]
        assert (call["id"], call["state"], call["step"]) == (release, "ended", CALLING)
        site.do("recover", "apply")
        ran = site.run("recover", "reopen", "--despite", "reconciled", "--reason", "a test")
        assert site.status()["stage"] == "open", ran
        site.do("sweep")
        row = site.do("releases", "show", release)
        assert (row["status"], courier.executions()) == ("done", 1)
        assert server.stop() == 0
        assert verify_files(site.settings) == []
    finally:
        site.close()


def test_begin_after_the_server_was_killed_in_a_call_says_so_and_does_not_wait(
    tmp_path: Path, courier: Receiver
) -> None:
    site = Site(tmp_path / "site", CONFIG.format(courier))
    try:
        server = site.start()
        release = called(site, courier)
        server.kill()
        begun = site.do("recover", "begin", "--wait", "600")
        assert [(call["id"], call["state"]) for call in begun["in_flight"]] == [(release, "dead")]
        assert begun["safe_to_restore"]
        assert site.status()["stage"] == "closed"
    finally:
        site.close()


def test_begin_over_http_keeps_the_note_and_tells_what_is_in_flight(
    tmp_path: Path, courier: Receiver
) -> None:
    site = Site(tmp_path / "site", CONFIG.format(courier))
    try:
        server = site.start()
        release = called(site, courier)
        asked = {"reason": "a test", "note": "bookmark 17", "wait": 0}
        for wait in (-1, 601, "long"):
            assert server.ask("POST", "/v1/main/recovery/begin", {**asked, "wait": wait})[0] == 400
        assert not site.settings.beside("stop").exists()
        status, begun = server.ask("POST", "/v1/main/recovery/begin", asked)
        assert (status, begun["safe_to_restore"]) == (200, True), begun
        assert [(call["id"], call["state"]) for call in begun["in_flight"]] == [
            (release, "may last")
        ]
        assert server.ask("POST", "/v1/main/recovery/begin", asked)[1]["resumed"]
        folder = site.folder / "data" / begun["evidence"]
        assert (folder / "notes.txt").read_text() == "bookmark 17\n"
        assert [each["journalled"] for each in site.do("evidence", "--verify")["bundles"]] == [
            True,
            True,
        ]
        courier.finish(release)
        assert server.stop() == 0
    finally:
        site.close()


# Ways to stop.


def test_a_stop_file_put_up_by_hand_stops_everything_until_reopened(yard: Yard) -> None:
    release = yard.release("letter/1")
    permit = yard.permit("post")
    yard.release("letter/2")
    yard.settings.beside("stop").touch()
    other = yard.companion()
    for attempt in (
        lambda: yard.accept(operation("letter/3", "approve", version="1")),
        lambda: yard.claim("post"),
        lambda: yard.beat(permit, CALLING),
        lambda: yard.report(permit, "confirmed"),
        yard.sweep,
        lambda: yard.sweep(other),
        lambda: yard.claim("post", by=other),
    ):
        with pytest.raises(Recovering, match="stopped by an operator"):
            attempt()
    assert yard.control().authority.stage is Stage.OPEN
    told = begin(yard)
    assert (set(told), yard.control().authority.generation) == ({release}, 2)
    carry_on(yard)
    assert not yard.settings.beside("stop").exists()
    yard.release("letter/4")


def test_with_nobody_alive_begin_stops_and_the_next_start_is_closed(yard: Yard) -> None:
    yard.close()
    stopped = recovery.stop(yard.settings, "nobody is there")
    with writing(yard.settings) as record:
        begun = drive(recovery.begin(record, "nobody is there", None, stopped.evidence))
    assert (begun.generation, begun.in_flight, begun.resumed) == (2, [], False)
    yard.open()
    with pytest.raises(Recovering, match="nobody is there"):
        yard.release("letter/1")
    carry_on(yard)


# L11.


def raised_to(generation: int, settings: Settings) -> None:
    """A tenant in this generation, by as many recoveries."""
    yard = Yard(settings)
    while yard.control().authority.generation < generation:
        begin(yard)
        carry_on(yard)
    yard.close()


async def test_l11_a_writer_of_generation_7_after_8_is_refused_in_store_journal_and_call(
    tmp_path: Path, courier: Receiver
) -> None:
    """It was stopped between looking and writing, and wakes after the recovery; twice."""
    lanes = {"parcels": lane()}
    declared = {"courier": receiver(courier.url, "queryable", courier.status_url)}
    types = {**LIFECYCLES, "parcel": releasing("parcels")}
    settings = settings_of(tmp_path, lanes, declared, lifecycle=types)
    raised_to(7, settings)
    worker, writer = Record(settings), Record(settings)
    async with scene(settings, runs=False) as made:
        await made.dispatcher.start(loops=False)
        carrier = made.dispatcher._carriers["parcels"]
        await made.decide("approve", entity="parcel/1")
        release = await made.permit("release", entity="parcel/1")
        permits = await carrier._claim(1)
        assert [permit.id for permit in permits] == [release]
        for record in (worker, writer):
            drive(record.open())
        ready = drive(make_ready(writer))
        assert ready.control.authority.generation == 7
        history = ready.control.authority.history
        contract = sealed_by(history, 7)

        stopped = await asyncio.to_thread(recovery.stop, settings, "a test")
        begun = await made.journal.write(recovery.begin, "a test", None, stopped.evidence)
        assert begun.generation == 8
        await refused(worker, writer, ready, contract)
        assert (await carrier._begin(permits), courier.calls()) == ([], [])

        await made.journal.write(recovery.apply)
        await made.journal.write(open_again)
        assert (await made.journal.status()).stage == "open"
        await refused(worker, writer, ready, contract)
        assert (await carrier._begin(permits), courier.calls()) == ([], [])
        said = Reported(release, Outcome.CONFIRMED, permits[0].lease, receipt="r-1")
        assert (await made.lanes.report(said)).observed
        for record in (worker, writer):
            drive(record.close())
        await made.lanes.sweep()
        row = await made.row(release)
        assert (row.status, row.receipt, courier.calls()) == ("done", "r-1", [])
        await made.dispatcher.stop()


def sealed_by(history: str, generation: int) -> Any:
    return Caller(history, generation).seal("contract/1")


async def open_again(record: Record) -> None:
    await recovery.reopen(record, despite={"reconciled"})


async def refused(worker: Record, writer: Record, ready: Any, contract: Any) -> None:
    """Nothing of generation 7 gets into the store or the journal, with real files."""
    look = await writer.look()
    place = ready.marker.place
    # The store: the turn that was looking then commits now.
    with pytest.raises(FenceFailed):
        await decide(writer, ready, [operation("case/late", "set", {"n": 1})])
    # The journal: what a caller sealed, and an append as it was looked at then.
    with pytest.raises((StaleGeneration, Recovering)):
        await journal.intake.append_sealed(worker, items(contract))
    for stream in (DECISIONS, f"{CALLER}contract"):
        with pytest.raises(Moved):
            await writer.journal().append(Append(entries=[(stream, contract)]), ready.look)
    with pytest.raises(FenceFailed):
        await write_marker(worker, ready)
    assert await writer.look() == look
    marker = await writer.marker()
    assert marker is not None
    assert marker.place != place


async def write_marker(record: Record, ready: Any) -> None:
    """Write the marker of generation 7 over the present one."""
    await examine(record)
    assert record.store is not None
    fence = tables.fence(ready.marker, ready.marker.place, ready.marker.journalled)
    await record.store.batch([fence])


# R22.


async def test_r22_a_copy_under_another_instance_name_sends_asks_and_takes_nothing(
    tmp_path: Path, courier: Receiver
) -> None:
    lanes = {"parcels": lane(), "letters": lane()}
    declared = {"courier": receiver(courier.url, "queryable", courier.status_url)}
    live = settings_of(tmp_path / "live", lanes, declared, instance="production")
    async with scene(live, runs=False) as made:
        unknown = await made.permit("letters")
        (permit,) = (await made.lanes.claim(Asked("letters", "w1", "claim-1"))).permits
        await made.lanes.beat(Beating("letters", [(permit.id, permit.lease)], CALLING))
        await made.lanes.report(Reported(unknown, Outcome.UNKNOWN, permit.lease))
        ready = await made.permit("parcels")
        assert (await made.row(unknown)).status == "unknown"
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    copied = settings_of(tmp_path / "copy", lanes, declared, instance="staging")

    async with journal.open(copied) as tenant:
        alerts = Alerts(copied)
        dispatcher = Dispatcher(tenant, alerts)
        await dispatcher.start()
        copy = Scene(tenant, alerts)
        copy.dispatcher = dispatcher
        looks = {loop: loop.looks for loop in dispatcher._loops}
        dispatcher.wake()
        await copy.seen(lambda: all(loop.looks > looks[loop] + 1 for loop in looks))
        assert (await tenant.status()).verdict == "closed"
        for attempt in (
            tenant.lanes.claim(Asked("parcels", "w2", "claim-2")),
            tenant.lanes.to_ask("letters", 10),
            tenant.lanes.sweep(),
            tenant.write(hear, "courier", "evt-1", unknown),
            tenant.write(recovery.apply),
            copy.decide("parcels"),
        ):
            with pytest.raises(UnrewindError):
                await attempt
        await dispatcher.stop()
        await alerts.close()
        stopped = await asyncio.to_thread(recovery.stop, copied, "a test")
        why = "not fenced: do not restore.*belongs to instance production, the settings say staging"
        with pytest.raises(Refused, match=why):
            await tenant.write(recovery.begin, "a test", None, stopped.evidence)
    assert courier.lines() == []

    # The same files under their own name: the receiver would have been reached.
    async with scene(live) as made:
        await made.comes_to(ready, "done")
        await made.seen(lambda: courier.lines("lookup", unknown))
