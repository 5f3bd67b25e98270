"""The client's permits: claimed, kept alive by a thread, reported on whatever becomes of the block.

The server sweeps what is in progress beyond its time twice a second.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from api.client import (
    Abandoned,
    AsyncClient,
    ClaimLost,
    Client,
    Kept,
    NotReported,
    Outcome,
    Reception,
    Refused,
    Result,
)
from reconstruct.verification import verify
from tests.api.servers import CONFIG, ROOT, SECONDS, Server
from tests.support.callers import KINDS, calling
from tests.support.proxies import Fault, Proxy, losing, problem

LANES = """
[lifecycle.invoice.actions.pay]
from = ["draft"]
to = "approved"
releases = ["payments"]
commands = [{ name = "index", lane = "chores" }]

[lifecycle.parcel.actions.send]
from = ["draft"]
to = "sent"
releases = ["brief"]

[lane.payments]
contract = "idempotent"
window = 86400
lease = 600
sweep_after = 700
cap = 800
backoff = 0.01
backoff_cap = 0.01

[lane.chores]
effect = "internal"
backoff = 0.01
backoff_cap = 0.01

[lane.brief]
timeout = 1
lease = 2
sweep_after = 3
cap = 60
"""
LEASE = 2.0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with lanes that workers pull."""
    running = Server(tmp_path_factory.mktemp("house") / "server", UNREWIND_SWEEP_EVERY="0.5")
    (running.folder / "unrewind.toml").write_text(CONFIG + LANES)
    running.start()
    try:
        yield running
    finally:
        assert running.end() == 0, running.errors
    report = verify(running.settings)
    assert (report.verdict, report.findings) == ("clean", [])


@pytest.fixture
def proxy(house: Server) -> Iterator[Proxy]:
    with losing(house.port) as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(kind: str, proxy: Proxy, house: Server) -> Iterator[Any]:
    with calling(kind, proxy.url, house.token) as made:
        yield made


@pytest.fixture(autouse=True)
def leave_nothing(house: Server) -> Iterator[None]:
    """Nothing of a test is due in the next, and no heart beats on."""
    yield
    with Client(f"http://127.0.0.1:{house.port}", house.token) as rest:
        for lane in ("delivery", "payments", "chores", "brief"):
            permit: Any = object()
            while permit is not None:
                with rest.permit(lane) as permit:
                    if permit is not None:
                        permit.confirm()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("unrewind")])


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def released(server: Server, kind: str = "document", **data: Any) -> str:
    """Permit a release of a new document; its entity."""
    entity = f"{kind}/{uuid.uuid4().hex}"
    if kind == "document":
        server.decide(f"{entity}-1", entity, "submit", body=data)
        server.decide(f"{entity}-2", entity, "approve", version="v1")
    action = {"document": "release", "invoice": "pay", "parcel": "send"}[kind]
    body = {} if kind == "document" else {"body": data}
    reply = server.decide(f"{entity}-3", entity, action, version="v1", **body)
    assert reply.status == 201, reply.body
    return entity


def actions(server: Server, entity: str) -> list[str]:
    steps = server.get(f"entities/{entity}/history").json["revisions"]
    return [
        step["action"].removeprefix("release.") for step in steps if "release." in step["action"]
    ]


def work(server: Server, release: str) -> dict[str, Any]:
    found: dict[str, Any] = server.get(f"releases/{release}").json
    return found


# A permit's life.


def test_a_permit_is_claimed_and_its_confirmation_is_a_decision(client: Any, house: Server) -> None:
    entity = released(house, total=12, recipient="bank")
    with client.permit("delivery", worker="w1", execution="run-7") as permit:
        assert (permit.data["total"], permit.grant.recipient) == (12, "bank")
        assert (permit.grant.entity, permit.grant.version) == (entity, "v1")
        # The receiver is opaque: it must not be taken at a promise that it never made.
        assert permit.key is None
        assert not permit.lost
        permit.check()
        reception = permit.confirm(receipt="r-1")
    assert (reception.kept, reception.stored, reception.status) == (Kept.DECIDED, True, "done")
    assert reception.receipt["state"] == "released"
    assert actions(house, entity) == ["committed", "confirmed"]
    found = work(house, permit.id)
    assert (found["receipt"], found["worker"], found["execution"]) == ("r-1", "w1", "run-7")


def test_an_idempotent_receiver_may_be_given_the_key(client: Any, house: Server) -> None:
    released(house, "invoice")
    with client.permit("payments") as permit:
        assert permit.key == permit.id
        permit.confirm()


def test_work_that_stays_in_the_house_is_noted_in_its_lane(client: Any, house: Server) -> None:
    released(house, "invoice")
    with client.permit("chores") as permit:
        assert (permit.grant.effect, permit.grant.commitment) == ("internal", None)
        assert permit.fail("busy").kept is Kept.NOTED
    with client.permit("chores", wait=30) as again:
        assert (again.id, again.grant.attempt) == (permit.id, 2)
        reception = again.confirm()
    assert (reception.kept, reception.status) == (Kept.NOTED, "done")


def test_nothing_due_is_none_and_says_what_holds_the_lane(client: Any, house: Server) -> None:
    with client.permit("delivery") as permit:
        assert permit is None
    entity = released(house)
    house.post("lanes/delivery/pause", {"reason": "the bank is closed"})
    with Client(f"http://127.0.0.1:{house.port}", house.token) as other:
        claiming = other.permit("delivery")
        with claiming as held:
            assert held is None
        assert "the bank is closed" in (claiming.held or "")
    assert actions(house, entity) == []
    house.post("lanes/delivery/resume", {"reason": "it is open"})
    with client.permit("delivery") as permit:
        permit.confirm()
    with pytest.raises(Refused, match="not-found"), client.permit("nowhere"):
        pass


def test_a_claim_waits_for_what_becomes_due(client: Any, house: Server, proxy: Proxy) -> None:
    found: list[str] = []

    def permit_later() -> None:
        proxy.wait_for(lambda: len(proxy.requests("claim")) > 2)
        found.append(released(house))

    thread = threading.Thread(target=permit_later)
    thread.start()
    with client.permit("delivery", wait=SECONDS) as permit:
        thread.join()
        assert permit.grant.entity == found[0]
        permit.confirm()
    assert len({seen.json["operation"] for seen in proxy.requests("claim")}) == 1


@pytest.mark.parametrize(
    ("say", "status", "ends"),
    [
        (lambda permit: permit.confirm(receipt="r", evidence="seen"), "done", "confirmed"),
        (lambda permit: permit.refuse("no such account"), "refused", "refused"),
        (lambda permit: permit.unknown("the line went dead"), "unknown", "unknown"),
        (lambda permit: permit.fail("no connection", retry_after=1000), "retry", None),
    ],
    ids=["confirm", "refuse", "unknown", "fail"],
)
def test_l16_each_report_is_stored_through_a_line_that_loses_its_reply(
    client: Any,
    house: Server,
    proxy: Proxy,
    say: Callable[[Any], Reception],
    status: str,
    ends: str | None,
) -> None:
    entity = released(house)
    proxy.meets(Fault("reset", "outcome"), Fault("lose", "outcome"))
    with client.permit("delivery", worker="w1") as permit:
        reception = say(permit)
    assert reception.stored
    assert reception.attempts == len(proxy.requests("outcome")) == 3
    assert len({seen.body for seen in proxy.requests("outcome")}) == 1
    # A failure is no decision, so its repeat comes from a claim that has ended: it is evidence.
    assert reception.kept is (Kept.DECIDED if ends else Kept.OBSERVED)
    assert work(house, permit.id)["status"] == status
    assert actions(house, entity) == ["committed", *([ends] if ends else [])]
    assert client.unstored == 0


# Left without a report.


def test_a_block_that_ends_without_a_report_leaves_unknown_and_raises(
    client: Any, house: Server
) -> None:
    entity = released(house)
    with (
        pytest.raises(NotReported, match="confirm, refuse, fail") as found,
        client.permit("delivery"),
    ):
        pass
    assert found.value.reception is not None
    assert found.value.reception.kept is Kept.DECIDED
    assert actions(house, entity) == ["committed", "unknown"]
    found_work = work(house, found.value.release)
    assert found_work["last_error"] == "the worker ended without a report"


def test_a_block_that_ends_by_an_exception_leaves_unknown_and_tells_no_secret(
    client: Any, house: Server
) -> None:
    entity = released(house)
    with pytest.raises(OSError, match="sk_live_secret"), client.permit("delivery") as permit:
        raise ConnectionResetError("the key sk_live_secret was sent")
    assert actions(house, entity) == ["committed", "unknown"]
    assert work(house, permit.id)["last_error"] == "the worker ended with ConnectionResetError"
    files = (house.folder / "data").rglob("*")
    assert not [file for file in files if file.is_file() and b"sk_live" in file.read_bytes()]


async def test_a_cancelled_task_leaves_unknown_however_often_it_is_cancelled(
    house: Server, proxy: Proxy
) -> None:
    entity = released(house)
    proxy.meets(Fault("hold", "outcome"))
    entered = asyncio.Event()
    async with AsyncClient(proxy.url, house.token) as client:

        async def work_on() -> None:
            async with client.permit("delivery"):
                entered.set()
                await asyncio.sleep(SECONDS)

        task = asyncio.create_task(work_on())
        await entered.wait()
        task.cancel()
        await asyncio.to_thread(proxy.wait_for, lambda: proxy.requests("outcome"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert actions(house, entity) == ["committed"]
        proxy.release()
    # Letting go of the client waits for the report.
    assert actions(house, entity) == ["committed", "unknown"]


async def test_a_confirmation_that_is_cancelled_is_repeated_and_not_made_unknown(
    house: Server, proxy: Proxy
) -> None:
    entity = released(house)
    proxy.meets(Fault("reset", "outcome"), Fault("hold", "outcome"))
    async with AsyncClient(proxy.url, house.token) as client:

        async def work_on() -> None:
            async with client.permit("delivery") as permit:
                assert permit is not None
                await permit.confirm(receipt="r-1")

        task = asyncio.create_task(work_on())
        await asyncio.to_thread(proxy.wait_for, lambda: len(proxy.requests("outcome")) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.release()
        assert client.unstored == 0
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_confirmation_that_ctrl_c_interrupts_is_finished_first(
    house: Server, proxy: Proxy
) -> None:
    entity = released(house)
    proxy.meets(Fault("swallow", "outcome"))

    def press() -> None:
        proxy.wait_for(lambda: any(b"confirmed" in told for told in proxy.answers))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with Client(proxy.url, house.token, timeout=SECONDS) as client:
        claiming: Any = client.permit("delivery")
        with pytest.raises(KeyboardInterrupt), claiming as permit:
            permit.confirm(receipt="r-1")
        assert permit.reception.kept is Kept.DECIDED
        assert client.unstored == 0
    thread.join()
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_report_is_taken_once(client: Any, house: Server) -> None:
    entity = released(house)
    with client.permit("delivery") as permit:
        permit.confirm()
        with pytest.raises(RuntimeError, match="confirmed was reported already"):
            permit.unknown("or was it")
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_report_that_is_refused_is_alarmed_and_can_be_made_again(
    kind: str, house: Server, proxy: Proxy
) -> None:
    entity, alarms = released(house), list[Reception]()
    with (
        calling(kind, proxy.url, house.token, on_unstored=alarms.append) as client,
        client.permit("delivery") as permit,
    ):
        with pytest.raises(Refused, match="invalid"):
            permit.confirm(digest="no digest")
        assert (len(alarms), client.unstored) == (1, 1)
        assert permit.confirm(receipt="r-1").kept is Kept.DECIDED
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_block_left_by_the_refusal_of_its_report_says_what_it_had_said(
    client: Any, house: Server
) -> None:
    entity = released(house)
    with pytest.raises(Refused, match="invalid"), client.permit("delivery") as permit:
        permit.confirm(digest="no digest")
    assert actions(house, entity) == ["committed", "unknown"]
    error = work(house, permit.id)["last_error"]
    assert error == "the worker ended with Refused; it had said confirmed, which was refused"


def test_an_effect_whose_result_cannot_be_stored_is_critical(
    kind: str, house: Server, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    entity, alarms = released(house), list[Reception]()
    proxy.meets(Fault("lose", "outcome"), Fault("reset", "outcome"))
    proxy.meets(Fault("answer", "outcome", content=problem(503, "recovering")), always=True)
    with (
        calling(
            kind, proxy.url, house.token, report_deadline=2.0, on_unstored=alarms.append
        ) as client,
        client.permit("delivery") as permit,
    ):
        reception = permit.confirm(receipt="r-1")
        assert (reception.kept, reception.stored) == (Kept.ABANDONED, False)
        assert (alarms, client.unstored) == ([reception], 1)
        (record,) = [one for one in caplog.records if one.levelno == logging.CRITICAL]
        assert permit.id in record.getMessage()
        assert str(permit.grant.lease) in record.getMessage()
        with pytest.raises(TypeError):
            bool(reception)
        sent = len(proxy.requests("outcome"))
    # Nothing else is said in its place, and nobody is told that nothing was.
    assert len(proxy.requests("outcome")) == sent > 2
    assert actions(house, entity) == ["committed", "confirmed"]


# Claims whose reply was lost.


def test_a_claim_whose_reply_was_lost_gives_the_same_permit_again(
    client: Any, house: Server, proxy: Proxy
) -> None:
    entity = released(house)
    proxy.meets(Fault("reset", "claim"), Fault("lose", "claim"))
    with client.permit("delivery") as permit:
        assert permit.grant.attempt == 1
        permit.confirm()
    assert len({seen.json["operation"] for seen in proxy.requests("claim")}) == 1
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_claim_that_could_not_be_established_is_alarmed_and_begins_nothing(
    kind: str, house: Server, proxy: Proxy
) -> None:
    alarms: list[Result] = []
    entity, began = released(house), False
    proxy.meets(Fault("lose", "claim"), always=True)
    with calling(kind, proxy.url, house.token, attempts=2, on_abandoned=alarms.append) as client:
        with pytest.raises(Abandoned, match="claim of lane delivery"), client.permit("delivery"):
            began = True
        assert not began
        assert [alarm.outcome for alarm in alarms] == [Outcome.ABANDONED]
        proxy.clear()
        # Whoever keeps the ID can still have the permit.
        with client.permit("delivery", operation=alarms[0].operation) as permit:
            assert permit.grant.attempt == 1
            permit.confirm()
    assert actions(house, entity) == ["committed", "confirmed"]


# Signs of life.


def swept(server: Server, release: str) -> bool:
    return bool(work(server, release)["status"] == "unknown")


@contextlib.contextmanager
def lifeless(server: Server) -> Iterator[str]:
    """A claim without a sign of life: it is swept while the block runs."""
    released(server, "parcel")
    claimed = server.post("lanes/brief/claim", {"worker": "silent"}).json["permits"][0]
    yield claimed["id"]
    server.wait_for(lambda: swept(server, claimed["id"]))


async def test_l12_the_event_loop_is_blocked_for_two_leases_and_the_lease_is_held(
    house: Server,
) -> None:
    with lifeless(house):
        entity = released(house, "parcel")
        async with (
            AsyncClient(f"http://127.0.0.1:{house.port}", house.token) as client,
            client.permit("brief") as permit,
        ):
            assert permit is not None
            time.sleep(2.5 * LEASE)  # noqa: ASYNC251 - this is the case
            assert not permit.lost
            assert work(house, permit.id)["status"] == "running"
            reception = await permit.confirm(receipt="r-1")
    assert reception.kept is Kept.DECIDED
    assert actions(house, entity) == ["committed", "confirmed"]


def test_l12_the_main_thread_is_blocked_for_two_leases_and_the_lease_is_held(
    house: Server, proxy: Proxy
) -> None:
    with lifeless(house):
        entity = released(house, "parcel")
        with (
            Client(proxy.url, house.token) as client,
            client.permit("brief") as permit,
        ):
            assert permit is not None
            until = permit.until
            # Through a line that loses some of them, too.
            proxy.meets(Fault("reset", "heartbeat"), Fault("lose", "heartbeat"))
            time.sleep(2.5 * LEASE)
            assert permit.until > until
            permit.check()
            assert permit.confirm().kept is Kept.DECIDED
    assert actions(house, entity) == ["committed", "confirmed"]


def test_signs_of_life_come_three_to_a_lease(house: Server, proxy: Proxy) -> None:
    released(house, "parcel")
    with Client(proxy.url, house.token) as client, client.permit("brief") as permit:
        assert permit is not None
        assert permit.grant.beat_every * 3 == pytest.approx(LEASE)
        proxy.wait_for(lambda: len(proxy.requests("heartbeat")) >= 6)
        permit.confirm()
    beats = [seen.at for seen in proxy.requests("heartbeat")]
    assert beats[5] - beats[0] > LEASE


def test_signs_of_life_go_on_while_a_report_is_under_way(house: Server, proxy: Proxy) -> None:
    entity = released(house, "parcel")
    proxy.meets(Fault("hold", "outcome"))
    with Client(proxy.url, house.token) as client, client.permit("brief") as permit:
        assert permit is not None
        kept: list[Reception] = []
        thread = threading.Thread(target=lambda: kept.append(permit.confirm()))
        thread.start()
        proxy.wait_for(lambda: proxy.requests("outcome"))
        before = len(proxy.requests("heartbeat"))
        proxy.wait_for(lambda: len(proxy.requests("heartbeat")) > before + 4)
        proxy.release()
        thread.join()
        assert not permit.lost
    assert kept[0].kept is Kept.DECIDED
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_claim_that_has_ended_is_told_and_its_report_is_kept_as_evidence(
    client: Any, house: Server, caplog: pytest.LogCaptureFixture
) -> None:
    entity = released(house, "parcel")
    with client.permit("brief") as permit:
        said = {"lease": permit.grant.lease, "outcome": "unknown", "evidence": "told elsewhere"}
        assert house.post(f"releases/{permit.id}/outcome", said).status == 200
        house.wait_for(lambda: permit.lost)
        with pytest.raises(ClaimLost, match="lease-lost"):
            permit.check()
        assert "begin nothing more" in caplog.text.lower()
        reception = permit.confirm(receipt="r-1")
    assert reception.stored
    assert actions(house, entity)[:2] == ["committed", "unknown"]


def test_a_claim_that_cannot_be_renewed_in_time_is_lost_and_stays_lost(
    client: Any, house: Server, proxy: Proxy
) -> None:
    released(house, "parcel")
    proxy.meets(Fault("reset", "heartbeat"), always=True)
    with client.permit("brief") as permit:
        house.wait_for(lambda: permit.lost)
        proxy.clear()
        before = len(proxy.requests("heartbeat"))
        proxy.wait_for(lambda: len(proxy.requests("heartbeat")) > before + 1)
        with pytest.raises(ClaimLost, match="renewed in time"):
            permit.check()
        permit.unknown("stopped half way")


def test_a_claim_that_ended_by_our_own_report_is_not_called_lost(
    kind: str, house: Server, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    entity = released(house, "parcel")
    proxy.meets(Fault("swallow", "outcome"))
    with (
        calling(kind, proxy.url, house.token, timeout=2.0) as client,
        client.permit("brief") as permit,
    ):
        # The server has the report, and refuses each sign of life from then on.
        assert permit.confirm().kept is Kept.DECIDED
        assert not permit.lost
    answered = [told for told in proxy.answers if b"lease-lost" in told]
    assert answered != []
    assert "no longer holds" not in caplog.text
    assert actions(house, entity) == ["committed", "confirmed"]


def test_a_repeated_claim_shows_a_sign_of_life_at_once(house: Server, proxy: Proxy) -> None:
    released(house, "invoice")
    operation = uuid.uuid4().hex
    asked = {"worker": "before", "operation": operation}
    assert house.post("lanes/payments/claim", asked).json["permits"]
    with (
        Client(proxy.url, house.token) as client,
        client.permit("payments", operation=operation, worker="before") as permit,
    ):
        assert permit is not None
        # The lane's lease is ten minutes; how much of it is left, nobody here can tell.
        proxy.wait_for(lambda: proxy.requests("heartbeat"))
        permit.confirm()


def test_leaving_a_block_does_not_wait_for_a_sign_of_life_under_way(
    house: Server, proxy: Proxy
) -> None:
    released(house, "parcel")
    proxy.meets(Fault("hold", "heartbeat"), always=True)
    with Client(proxy.url, house.token, timeout=30) as client:
        with client.permit("brief") as permit:
            assert permit is not None
            proxy.wait_for(lambda: proxy.requests("heartbeat"))
            assert permit.confirm().kept is Kept.DECIDED
        # The block is over while the beat is still under way.
        assert [t for t in threading.enumerate() if t.name.startswith("unrewind-heart")]
        proxy.release()


def test_the_documents_examples_run_as_they_are_written(
    house: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = (ROOT / "docs/client.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.setenv("UNREWIND_TOKEN", house.token)
    delivered: list[Any] = []

    def deliver(data: Any, idempotency_key: str | None) -> str:
        delivered.append((data, idempotency_key))
        return "receipt-1"

    names: dict[str, Any] = {"deliver": deliver}
    for block in blocks:
        exec(block.replace("http://127.0.0.1:8420", proxy.url), names)  # noqa: S102 - it is ours
    names["client"].close()
    assert delivered == [({"total": 120}, None)]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ignored 1 ")
    assert said[1] == "decide again on revision 1"
    assert [line.rpartition("Outcome.")[2] for line in said[2:4]] == [
        "IGNORED: 'ignored'>)",
        "ACCEPTED: 'accepted'>)",
    ]
    assert said[4] == "decided done"
