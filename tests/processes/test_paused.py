"""P1, P7: a process that stands still in its turn, and comes back when others have had theirs.

Its session of the store's server is ended by whoever waits too long, so it comes back without the
turn lock. What it was about to do is done again from where things stand now, or refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import journal
from journal import Journal
from journal.acceptance import Acceptance, Operation
from journal.lanes import Effect, Lane
from journal.outcomes import Outcome, Reported
from journal.permits import Asked, Permit
from journal.record import Record
from journal.settings import Settings
from reconstruct import recovery
from tests.processes.pausing import APPENDED, COMMITTED, LOOKED, Pauses, pausing

pytestmark = pytest.mark.engines

ENTITY = "document/7"
CHORES, RATED = "chores", "rated"
_LANES = {
    CHORES: Lane(effect=Effect.INTERNAL, lease=0.4, sweep_after=0.5),
    RATED: Lane(effect=Effect.INTERNAL, rate=0.001, concurrency=10),
}


@pytest.fixture(scope="module")
def pauses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pauses]:
    with pausing(tmp_path_factory.mktemp("paused")) as made:
        yield made


@pytest.fixture
def beside(tmp_path: Path, store_url: str, journal_url: str) -> Settings:
    """The settings of another machine: the same servers, another data directory."""
    return Settings(
        data=str(tmp_path / "beside"),
        store=store_url,
        journal=journal_url,
        lock_timeout=0.3,
        lane=_LANES,
    )


@pytest.fixture
async def service(tmp_path: Path, beside: Settings) -> AsyncIterator[Journal]:
    """A process that goes on."""
    here = msgspec.structs.replace(beside, data=str(tmp_path / "here"))
    async with journal.open(here) as made:
        yield made
    assert entries(beside) == []


def entries(settings: Settings) -> list[str]:
    """What is wrong with the order of the journal's decisions, or with the store's beside them."""
    with psycopg.connect(settings.journal or "") as client:
        sql = "SELECT sequence, entity, revision, encode(digest, 'hex') FROM {}entries"
        sql += " WHERE stream = 'decisions' ORDER BY sequence"
        journalled = client.execute(sql.format("unrewind_journal_main.")).fetchall()
    with psycopg.connect(settings.store or "") as client:
        sql = "SELECT sequence, encode(digest, 'hex') FROM unrewind_main.unrewind_decisions"
        stored = client.execute(f"{sql} ORDER BY sequence").fetchall()
    found = []
    if [row[0] for row in journalled] != [*range(1, len(journalled) + 1)]:
        found.append(f"the order has holes: {journalled}")
    if [(row[0], row[3]) for row in journalled] != stored:
        found.append(f"the store holds {stored}, the journal {journalled}")
    for entity in {row[1] for row in journalled}:
        revisions = [row[2] for row in journalled if row[1] == entity]
        if revisions != [*range(1, len(revisions) + 1)]:
            found.append(f"{entity} has the revisions {revisions}")
    return found


def submit(operation: str, entity: str = ENTITY, **fields: Any) -> dict[str, Any]:
    made = {"operation": operation, "entity": entity, "action": "submit", "body": b"{}"}
    return {**made, "body_type": "application/json", **fields}


def sent(**fields: Any) -> dict[str, Any]:
    """The same as JSON has it, for another process."""
    return {**submit(**fields), "body": "e30="}


async def decide(service: Journal, operation: str, entity: str = ENTITY) -> Acceptance:
    return await service.accept(Operation(**submit(operation, entity)))


async def test_p7_paused_before_its_commit_it_decides_from_where_things_stand(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    child = pauses(beside, LOOKED, "decide", **sent(operation="late"))
    first = await decide(service, "first")
    assert first.revision == 1
    told = child.go_on()
    assert (told["outcome"], told["revision"]) == ("accepted", 2)
    assert told["predecessor"]["digest"] == first.digest
    assert (await decide(service, "late")).digest == told["digest"]


async def test_p6_paused_before_its_commit_the_loser_is_told_what_losers_are_told(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    child = pauses(beside, LOOKED, "decide", **sent(operation="late", expected_revision=0))
    await decide(service, "first")
    told = child.go_on()
    assert told["error"] == "RevisionMismatch"
    with pytest.raises(journal.errors.NotFound):
        await service.operation("late")


async def test_p1_paused_between_store_and_journal_its_decision_is_handed_off_by_others(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    child = pauses(beside, COMMITTED, "decide", **sent(operation="late"))
    second = await decide(service, "second")
    assert second.revision == 2
    told = child.go_on()
    assert (told["outcome"], told["revision"]) == ("accepted", 1)
    assert second.predecessor is not None
    assert second.predecessor.digest == told["digest"]


async def test_p1_paused_between_store_and_journal_beside_a_change_of_control(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    child = pauses(beside, COMMITTED, "decide", **sent(operation="late"))
    await service.create_token(journal.control.Role.READER, "meanwhile")
    told = child.go_on()
    assert (told["outcome"], told["revision"]) == ("accepted", 1)
    assert (await service.status()).verdict == "clean"


async def test_p1_paused_after_the_journal_it_answers_as_ever(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    child = pauses(beside, APPENDED, "decide", **sent(operation="late"))
    assert (await decide(service, "second")).revision == 2
    assert child.go_on()["outcome"] == "accepted"
    assert (await service.status()).stage == "open"


async def test_p6_the_same_operation_in_two_processes_is_one_decision(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    child = pauses(beside, LOOKED, "decide", **sent(operation="once"))
    first = await decide(service, "once")
    told = child.go_on()
    assert (told["outcome"], told["digest"]) == ("duplicate", first.digest)


@pytest.mark.parametrize("point", [LOOKED, COMMITTED])
async def test_p7_paused_while_a_recovery_begins_it_decides_nothing_more(
    service: Journal, beside: Settings, pauses: Pauses, tmp_path: Path, point: str
) -> None:
    await decide(service, "before")
    child = pauses(beside, point, "decide", **sent(operation="late"))

    async def begin(record: Record) -> int:
        return (await recovery.begin(record, "a test")).generation

    assert await service.write(begin) == 2
    told = child.go_on()
    if point == LOOKED:
        assert told["error"] == "Recovering"
        with pytest.raises(journal.errors.NotFound):
            await service.operation("late")
    else:
        # Handed off before the generation was raised, it is as good as any other.
        assert told["outcome"] == "accepted"
        assert (await service.operation("late")).digest == told["digest"]


# Work moves no marker.


async def claim(service: Journal, lane: str, operation: str, limit: int = 1) -> list[Permit]:
    return (await service.lanes.claim(Asked(lane, "here", operation, limit))).permits


async def test_a_command_is_not_claimed_twice_where_a_process_was_paused(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    await service.lanes.enqueue(CHORES, "tidy", [("one", b"{}")])
    child = pauses(beside, LOOKED, "claim", lane=CHORES, worker="late", operation="late")
    (permit,) = await claim(service, CHORES, "first")
    assert child.go_on()["permits"] == []
    done = await service.lanes.report(
        Reported(permit.id, Outcome.CONFIRMED, permit.lease, worker="here")
    )
    assert done.status == "done"


async def test_a_rate_holds_where_a_process_was_paused(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    await service.lanes.enqueue(RATED, "tidy", [(str(number), b"{}") for number in range(4)])
    child = pauses(beside, LOOKED, "claim", lane=RATED, worker="late", operation="late")
    assert len(await claim(service, RATED, "first", 4)) == 1
    assert child.go_on()["permits"] == []


async def test_a_report_under_a_claim_that_ended_meanwhile_is_not_taken(
    service: Journal, beside: Settings, pauses: Pauses
) -> None:
    await service.lanes.enqueue(CHORES, "tidy", [("one", b"{}")])
    (permit,) = await claim(service, CHORES, "first")
    fields = {"id": permit.id, "lease": permit.lease, "worker": "here"}
    child = pauses(beside, LOOKED, "report", outcome="confirmed", **fields)
    while not (await service.lanes.sweep()).moved:
        pass
    told = child.go_on()
    assert told.get("observed") or told["error"] == "LeaseLost", told
    assert (await service.lanes.one(permit.id)).status != "done"
