"""What each contract does with a lost reply: repeat it under its ID, ask, or leave it to a person.

Real receivers in processes of their own; nothing is ever sent on elapsed time alone.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from journal.asking import worker_name
from journal.lanes import Contract
from journal.outcomes import CALLING
from journal.permits import Asked
from journal.reports import Beating
from tests.api.servers import Server
from tests.support.dispatching import NEVER, Scene, lane, receiver, scene, settings_of
from tests.support.proxies import Fault, losing
from tests.support.receivers import CALLBACK_SECRET, DIGEST, Receiver, receiving
from tests.support.whole import verify_files

Opening = Callable[..., AbstractAsyncContextManager[tuple[Scene, Receiver]]]
BODY = {"digest": DIGEST, "recipient": "acct-1"}
SIGNED = {"callback_secret": CALLBACK_SECRET}

COURIER = """
[receiver.courier]
url = "{receiver.url}"
status_url = "{receiver.status_url}"
contract = "queryable"
window = 86400
poll = 3600
callback_secret_env = "COURIER_CALLBACK_SECRET"

[lane.delivery]
receiver = "courier"
"""

LOST: dict[str, dict[str, Any]] = {
    "lose-reply": {},
    "reset": {"execute": True},
    "error": {"status": 500, "execute": True},
    "delay": {"before": "answering"},
    "garbage": {"form": "not-http"},
}
"""Behaviours after which the effect has happened and nobody was told."""

NOT_DONE: dict[str, dict[str, Any]] = {
    "reset": {"execute": False},
    "error": {"status": 502},
    "garbage": {"form": "not-json", "execute": False},
}
"""The same, but it has not happened; the caller cannot know."""


@pytest.fixture
def opened(tmp_path: Path) -> Opening:
    """Opens a receiver of a contract, and a tenant with one lane to it."""

    @asynccontextmanager
    async def open_both(
        contract: str,
        *flags: str,
        asked: bool | None = None,
        through: str | None = None,
        lanes: dict[str, Any] | None = None,
        runs: bool = True,
        **changes: Any,
    ) -> AsyncIterator[tuple[Scene, Receiver]]:
        with receiving(tmp_path / "receiver", *flags, contract=contract) as made:
            status_url = made.status_url if (contract == "queryable" or asked) else None
            settings = settings_of(
                tmp_path,
                {"parcels": lane(**(lanes or {}))},
                {"courier": receiver(through or made.url, contract, status_url, **changes)},
            )
            async with scene(settings, runs=runs) as running:
                yield running, made

    return open_both


def numbers(made: Receiver, release: str) -> list[int]:
    """The attempts as the receiver saw them."""
    return [call["attempt"] for call in made.calls(release)]


# Replies that were lost.


@pytest.mark.parametrize("behave", LOST)
async def test_an_idempotent_receiver_is_sent_the_same_again(opened: Opening, behave: str) -> None:
    async with opened("idempotent", timeout=1.0) as (scene, made):
        made.tell(behave, calls=1, **LOST[behave])
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "done")
        calls = made.calls(release)
        assert numbers(made, release) == [1, 2]
        assert {call["idempotency_key"] for call in calls} == {release}
        assert len({call["body_sha256"] for call in calls}) == 1
        assert made.executions(release) == 1
        assert (row.attempts, row.failures) == (2, 1)
        assert row.receipt is not None


@pytest.mark.parametrize("behave", LOST)
async def test_a_queryable_receiver_is_asked_and_not_sent_again(
    opened: Opening, behave: str
) -> None:
    async with opened("queryable", timeout=1.0, works=NEVER) as (scene, made):
        made.tell(behave, calls=1, **LOST[behave])
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "done")
        assert (made.attempts(release), made.executions(release)) == (1, 1)
        assert made.lines("lookup", release) != []
        assert made.calls(release)[0]["idempotency_key"] is None
        assert await scene.actions(release) == [
            "parcels", "release.committed", "release.unknown", "release.confirmed",
        ]  # fmt: skip
        assert row.receipt is not None


@pytest.mark.parametrize("behave", [*LOST, "not done"])
async def test_an_opaque_receiver_leaves_it_to_its_owner(opened: Opening, behave: str) -> None:
    async with opened("opaque", timeout=1.0, works=0.1) as (scene, made):
        if behave == "not done":
            made.tell("reset", calls=1)
        else:
            made.tell(behave, calls=1, **LOST[behave])
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "unknown")
        assert (row.due, row.owner) == (None, "treasury")
        await scene.rests()
        # What comes after it is carried out as ever, and it stays where it is.
        await scene.comes_to(await scene.permit("parcels", BODY), "done")
        assert await scene.row(release) == row
        assert (row.attempts, made.attempts(release)) == (1, 1)
        (call,) = made.calls(release)
        assert call["idempotency_key"] is None
        assert made.lines("lookup") == []


@pytest.mark.parametrize("contract", [*Contract])
async def test_l16_a_lost_reply_is_never_a_final_failure(opened: Opening, contract: str) -> None:
    async with opened(str(contract), lanes={"attempts": 1}, works=NEVER) as (scene, made):
        made.tell("lose-reply")
        made.tell("unknown", on="lookup")
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "unknown", "dead")
        await scene.rests()
        assert await scene.actions(release) == [
            "parcels", "release.committed", "release.unknown",
        ]  # fmt: skip
        assert row.last_error is not None
        assert made.executions(release) == made.attempts(release) == 1


# What was lost had not happened.


@pytest.mark.parametrize("behave", NOT_DONE)
async def test_not_found_lets_it_be_sent_again_once_nobody_can_be_at_work(
    opened: Opening, behave: str
) -> None:
    async with opened("queryable", timeout=0.5, works=0.2) as (scene, made):
        made.tell(behave, calls=1, **NOT_DONE[behave])
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "done")
        assert numbers(made, release) == [1, 2]
        assert row.attempts == 2
        assert "not-found" in [line["outcome"] for line in made.lines("lookup", release)]
        assert made.executions(release) == 1


async def test_not_found_proves_nothing_while_a_request_may_be_at_work(opened: Opening) -> None:
    async with opened("queryable", timeout=0.5, works=NEVER) as (scene, made):
        made.tell("not-found-in-flight", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.seen(lambda: len(made.lines("lookup", release)) >= 4)
        await scene.rests()
        row = await scene.row(release)
        assert (row.status, row.attempts, made.attempts(release)) == ("unknown", 1, 1)
        made.finish(release)
        await scene.comes_to(release, "done")
        assert (made.attempts(release), made.executions(release)) == (1, 1)


async def test_not_found_after_the_window_proves_nothing_and_waits_for_the_owner(
    opened: Opening,
) -> None:
    async with opened("queryable", window=0.1, timeout=0.5, works=0.01) as (scene, made):
        made.tell("lose-reply", calls=1)
        made.tell("error", on="lookup", calls=8, status=503)
        made.tell("not-found", on="lookup")
        release = await scene.permit("parcels", BODY)

        async def asked_no_more() -> bool:
            row = await scene.row(release)
            return row.status == "unknown" and row.due is None

        await scene.until(asked_no_more)
        await scene.rests()
        row = await scene.row(release)
        assert (row.attempts, made.attempts(release), row.owner) == (1, 1, "treasury")
        assert "window is over" in str(row.last_error)


def named_after(process: int) -> str:
    """The name of a worker of this host."""
    return f"{worker_name('push').rpartition(':')[0]}:{process}"


def ended() -> int:
    """The number of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize(
    ("worker", "again"),
    [
        (lambda: named_after(os.getppid()), False),
        (lambda: named_after(ended()), True),
        # This process lives on, but knows that it is at work on nothing.
        (lambda: named_after(os.getpid()), True),
        (lambda: f"push:another-host:{ended()}", False),
        (lambda: "somebody", False),
    ],
    ids=["alive", "dead", "idle", "remote", "unnamed"],
)
async def test_not_found_counts_only_when_the_attempt_is_over_on_our_side(
    opened: Opening, worker: Callable[[], str], again: bool
) -> None:
    lanes = {"lease": 0.8, "sweep_after": 0.9}
    async with opened("queryable", runs=False, lanes=lanes, timeout=0.2, works=0.01) as (
        scene,
        made,
    ):
        release = await scene.permit("parcels", BODY)
        (permit,) = (await scene.lanes.claim(Asked("parcels", worker(), "claim-1"))).permits
        await scene.lanes.beat(Beating("parcels", [(permit.id, permit.lease)], CALLING))

        async def swept() -> bool:
            return (await scene.lanes.sweep()).count > 0

        await scene.until(swept)
        await scene.start()
        if again:
            await scene.comes_to(release, "done")
            assert numbers(made, release) == [2]
            return
        # Questions that last longer than any call and any work on it may.
        await scene.seen(lambda: len(made.lines("lookup", release)) >= 20)
        await scene.rests()
        assert (await scene.row(release)).status == "unknown"
        assert made.attempts(release) == 0


async def test_an_id_that_the_receiver_gave_up_is_sent_again_at_once(opened: Opening) -> None:
    async with opened("queryable", timeout=0.5, works=NEVER) as (scene, made):
        made.tell("not-found-in-flight", calls=1)
        made.tell("void", on="lookup", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.comes_to(release, "done")
        assert numbers(made, release) == [1, 2]
        assert made.executions(release) == 1


# The window of an idempotent receiver.


@pytest.mark.parametrize("asked", [False, True])
async def test_after_the_window_nothing_is_sent_again(opened: Opening, asked: bool) -> None:
    lanes = {"attempts": 10_000}
    async with opened("idempotent", asked=asked, window=1.0, lanes=lanes) as (scene, made):
        made.tell("lose-reply")
        made.tell("unknown", on="lookup")
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "unknown")
        assert (row.due is not None) is asked
        made.clear()
        await scene.rests()
        calls = made.attempts(release)
        if asked:
            row = await scene.comes_to(release, "done")
        await scene.comes_to(await scene.permit("parcels", BODY), "done")
        assert (row.attempts, made.attempts(release)) == (calls, calls)
        assert made.executions(release) == 1


# Surely not taken: safe for everybody.


@pytest.mark.parametrize("contract", [*Contract])
async def test_a_call_that_never_left_is_made_again(opened: Opening, contract: str) -> None:
    async with opened(str(contract), lanes={"attempts": 10_000}) as (scene, made):
        made.kill()
        release = await scene.permit("parcels", BODY)

        async def failed() -> bool:
            return (await scene.row(release)).failures >= 2

        await scene.until(failed)
        assert "no connection" in str((await scene.row(release)).last_error)
        made.start()
        row = await scene.comes_to(release, "done")
        assert (made.attempts(release), made.executions(release)) == (1, 1)
        assert numbers(made, release) == [row.attempts]
        assert "release.unknown" not in await scene.actions(release)


@pytest.mark.parametrize("contract", [*Contract])
async def test_retry_after_is_kept_to(opened: Opening, contract: str) -> None:
    async with opened(str(contract)) as (scene, made):
        made.tell("rate-limit", calls=1, retry_after=1)
        release = await scene.permit("parcels", BODY)
        await scene.comes_to(release, "done")
        first, second = made.calls(release)
        assert (first["answer"], second["outcome"]) == (429, "executed")
        assert seconds_between(first, second) >= 1.0


async def test_a_503_with_retry_after_is_kept_to_where_a_repeat_is_safe(opened: Opening) -> None:
    async with opened("idempotent") as (scene, made):
        made.tell("error", calls=1, status=503, retry_after=1)
        release = await scene.permit("parcels", BODY)
        await scene.comes_to(release, "done")
        assert seconds_between(*made.calls(release)) >= 1.0


def seconds_between(first: dict[str, Any], second: dict[str, Any]) -> float:
    one, other = (datetime.fromisoformat(line["at"]) for line in (first, second))
    return (other - one).total_seconds()


# Answers that settle it.


@pytest.mark.parametrize("contract", [*Contract])
async def test_a_refusal_is_final_and_visible(opened: Opening, contract: str) -> None:
    async with opened(str(contract)) as (scene, made):
        made.tell("refuse", detail="the account is closed")
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "refused")
        assert "the account is closed" in str(row.last_error)
        assert (row.attempts, made.attempts(release), made.executions(release)) == (1, 1, 0)


@pytest.mark.parametrize("contract", [*Contract])
async def test_l18_a_redirect_is_not_followed_and_ends_visibly(
    opened: Opening, contract: str, tmp_path: Path
) -> None:
    with receiving(tmp_path / "elsewhere") as elsewhere:
        lanes = {"attempts": 2}
        async with opened(str(contract), lanes=lanes, works=0.01, timeout=0.2) as (scene, made):
            made.tell("redirect", location=f"{elsewhere.url}?key=secret")
            release = await scene.permit("parcels", BODY)
            row = await scene.comes_to(release, "unknown" if contract == "opaque" else "dead")
            said = " ".join(map(str, [*await scene.evidence(release), row.last_error]))
            assert f"to {elsewhere.url}; redirects are not followed" in said
            assert "secret" not in said
            assert made.attempts(release) == row.attempts == (1 if contract == "opaque" else 2)
            assert elsewhere.lines() == []


@pytest.mark.parametrize("contract", ["idempotent", "queryable"])
async def test_pending_work_is_asked_about_until_it_is_done(opened: Opening, contract: str) -> None:
    async with opened(contract, asked=True) as (scene, made):
        made.tell("pending", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.seen(lambda: len(made.lines("lookup", release)) >= 2)
        assert (await scene.row(release)).status == "pending"
        made.finish(release)
        await scene.comes_to(release, "done")
        assert (made.attempts(release), made.executions(release)) == (1, 1)


async def test_pending_work_that_ends_refused_is_refused(opened: Opening) -> None:
    async with opened("queryable") as (scene, made):
        made.tell("pending", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.comes_to(release, "pending")
        made.finish(release, "refused")
        await scene.comes_to(release, "refused")


async def test_pending_work_that_nobody_can_be_asked_about_is_sent_again_to_learn_its_end(
    opened: Opening,
) -> None:
    async with opened("idempotent") as (scene, made):
        made.tell("pending", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.seen(lambda: made.attempts(release) >= 2)
        made.finish(release)
        row = await scene.comes_to(release, "done")
        assert (row.failures, made.executions(release)) == (0, 1)


async def test_pending_work_of_an_opaque_receiver_waits_for_its_owner(opened: Opening) -> None:
    async with opened("opaque") as (scene, made):
        made.tell("pending", calls=1)
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "unknown")
        assert (row.due, row.owner, made.attempts(release)) == (None, "treasury", 1)


@pytest.mark.parametrize("behave", ["wrong-digest", "wrong-release"])
@pytest.mark.parametrize("contract", [*Contract])
async def test_a_receipt_for_something_else_is_no_receipt(
    opened: Opening, contract: str, behave: str
) -> None:
    async with opened(str(contract), asked=True, works=NEVER) as (scene, made):
        made.tell(behave, calls=1)
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "unknown" if contract == "opaque" else "done")
        said = "digest of other content" if behave == "wrong-digest" else "about another release"
        assert said in str(row.last_error)
        # An ID answered with another's content is asked about, not repeated.
        repeated = contract == "idempotent" and behave == "wrong-release"
        assert made.attempts(release) == 1 + repeated
        assert made.executions(release) == 1


# Budgets.


async def test_a_spent_budget_is_a_dead_letter_with_the_last_evidence(opened: Opening) -> None:
    async with opened("idempotent", lanes={"attempts": 3}) as (scene, made):
        made.tell("error", calls=2, status=500)
        made.tell("error", status=503)
        release = await scene.permit("parcels", BODY)
        row = await scene.comes_to(release, "dead")
        await scene.rests()
        assert numbers(made, release) == [1, 2, 3]
        assert row.attempts == 3
        assert "answered 503" in str(row.last_error)
        assert row.step.startswith("dead after: calling")


# Cancelling what is under way.


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "lost"])
async def test_l10_what_is_cancelled_in_flight_can_end_as_it_happened(
    opened: Opening, answered: bool
) -> None:
    timeout = 20.0 if answered else 0.5
    async with opened("queryable", timeout=timeout, works=NEVER) as (scene, made):
        made.tell("not-found-in-flight", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.seen(lambda: made.attempts(release))
        said = await scene.lanes.cancel(release, "the customer called")
        assert said.status == "cancel-requested"
        if not answered:
            await scene.comes_to(release, "unknown")
        made.finish(release)
        row = await scene.comes_to(release, "done")
        assert row.cancel_requested
        assert (made.attempts(release), made.executions(release)) == (1, 1)
        assert "release.cancel-requested" in await scene.actions(release)


async def test_l10_what_is_cancelled_and_surely_never_left_is_not_sent_again(
    opened: Opening,
) -> None:
    async with opened("idempotent") as (scene, made):
        made.tell("delay", calls=1)
        release = await scene.permit("parcels", BODY)
        await scene.seen(lambda: made.attempts(release))
        await scene.lanes.cancel(release, "the customer called")
        made.tell("rate-limit")
        made.finish(release, "void")
        await scene.comes_to(release, "cancelled")
        assert (made.attempts(release), made.executions(release)) == (1, 0)


# What lies between.


async def test_l17_connections_that_break_are_counted_as_the_receiver_sees_them(
    opened: Opening, tmp_path: Path
) -> None:
    with receiving(tmp_path / "behind") as behind, losing(behind.port) as proxy:
        through = f"{proxy.url}/releases"
        async with opened("idempotent", through=through, timeout=5.0) as (scene, _):
            proxy.meets(Fault("reset"), Fault("lose"), Fault("lose"))
            release = await scene.permit("parcels", BODY)
            row = await scene.comes_to(release, "done")
            assert (row.attempts, row.failures, len(proxy.seen)) == (4, 3, 4)
            assert numbers(behind, release) == [2, 3, 4]
            assert behind.executions(release) == 1


# Callbacks, through a server.


def test_a_callback_only_says_when_to_ask(tmp_path: Path) -> None:
    with receiving(tmp_path / "receiver", contract="queryable", **SIGNED) as made:
        server = Server(
            tmp_path / "server",
            COURIER_CALLBACK_SECRET=CALLBACK_SECRET,
            UNREWIND_DISPATCH_EVERY="0.02",
        )
        (server.folder / "unrewind.toml").write_text(COURIER.format(receiver=made))
        server.start()
        try:
            token = server.post("tokens", {"role": "receiver", "name": "courier"}).json["token"]
            made.call_back_to(f"http://127.0.0.1:{server.port}/v1/main/callbacks/courier", token)
            made.tell("pending", callback="early")
            assert server.decide("op-1", "document/1", "submit").status == 201
            assert server.decide("op-2", "document/1", "approve", version="v1").status == 201
            permitted = server.decide("op-3", "document/1", "release", version="v1")
            (release,) = permitted.json["releases"]

            def status() -> str:
                return str(server.get(f"releases/{release}").json["status"])

            # It says "done" at once and is asked: it is at work, and nothing follows but that.
            server.wait_for(lambda: made.lines("callback", release) != [])
            server.wait_for(lambda: status() == "pending")
            lookups = len(made.lines("lookup", release))
            (told,) = made.callback("early", release)
            assert told["status"] == 202
            server.wait_for(lambda: len(made.lines("lookup", release)) > lookups)
            assert status() == "pending"
            # When it is true, the next question is not due for an hour; the callback brings it on.
            made.finish(release)
            (told,) = made.callback("ok", release)
            server.wait_for(lambda: status() == "done")
            assert (made.attempts(release), made.executions(release)) == (1, 1)
        finally:
            assert server.end() == 0
        assert "Traceback" not in server.errors
    assert verify_files(server.settings) == []
