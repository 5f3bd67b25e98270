"""Permits: the right to attempt one piece of work, and the duty to say what became of it.

    with client.permit("delivery") as permit:
        if permit is not None:
            charge = pay(permit.data, idempotency_key=permit.key)
            permit.confirm(receipt=charge.id)

A block that ends in any other way than by a report leaves *unknown* behind, never *failed*: what
was not said to have failed may have happened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from msgspec import Struct

from api.client.attempts import Steps
from api.client.beating import Heart, Hearts
from api.client.calls import Grant, Report
from api.client.core import LOGGER, Claimed, Core
from api.client.ids import time_ordered
from api.client.results import ClaimLost, NotReported, Reception, Refused
from journal.outcomes import Outcome as Said

R = TypeVar("R")


class Wanted(Struct, frozen=True):
    """The claim that is to be made. ``given`` says that the caller chose the operation ID."""

    lane: str
    worker: str
    operation: str
    execution: str | None
    wait: float
    given: bool


def wanted(
    lane: str, worker: str | None, operation: str | None, execution: str | None, wait: float
) -> Wanted:
    """A claim with its worker's name and its operation ID.

    The name made up here is not one from which anybody concludes that a process is dead: this one
    may run on another machine.
    """
    name = worker or f"client/{os.uname().nodename}/{os.getpid()}"
    return Wanted(lane, name, operation or time_ordered(), execution, wait, operation is not None)


class Permit(Generic[R]):
    """The right to attempt one piece of work, kept alive by a thread until it is reported on.

    ``key`` is what to hand to a payment SDK as its idempotency key; None where the lane's contract
    allows none. ``data`` is the entity's data, ``grant`` everything that the server gave. A report
    is repeated until it is stored or given up, and tells how it was kept; of an `AsyncClient` it is
    awaited. Only one is taken, unless it was given up.
    """

    def __init__(
        self,
        core: Core,
        claim: Wanted,
        grant: Grant,
        heart: Heart,
        run: Callable[[Steps[Reception]], R],
    ) -> None:
        self.grant = grant
        self.id = grant.id
        self.key = grant.key
        self.data = grant.data
        self.reception: Reception | None = None
        self._core = core
        self._claim = claim
        self._heart = heart
        self._saying: Report | None = None
        self._refused: str | None = None
        self._run = run

    def __repr__(self) -> str:
        return f"<permit {self.id} of lane {self.grant.lane}, claim {self.grant.lease}>"

    @property
    def lost(self) -> bool:
        """Whether the claim no longer holds, or could not be renewed before its lease was over."""
        return self._heart.why_lost is not None

    @property
    def until(self) -> str:
        """When the lease ends unless it is renewed, in the server's time."""
        return self._heart.until

    def check(self) -> None:
        """Call it before every risky step. Raises ClaimLost."""
        why = self._heart.why_lost
        if why is not None:
            raise ClaimLost(self.id, why)

    # Reports.

    def confirm(
        self, *, receipt: str | None = None, digest: str | None = None, evidence: str | None = None
    ) -> R:
        """It happened. ``digest`` is that of the content that the receiver says it got."""
        said = Report(outcome=Said.CONFIRMED, evidence=evidence, receipt=receipt, digest=digest)
        return self._run(self._say(said))

    def refuse(self, evidence: str) -> R:
        """It was refused for good; nothing happened."""
        return self._run(self._say(Report(outcome=Said.REFUSED, evidence=evidence)))

    def fail(self, evidence: str, retry_after: float | None = None) -> R:
        """Surely nothing happened; it may be attempted again, after that many seconds."""
        said = Report(outcome=Said.FAILED, evidence=evidence, retry_after=retry_after)
        return self._run(self._say(said))

    def unknown(self, evidence: str) -> R:
        """It may have happened."""
        return self._run(self._say(Report(outcome=Said.UNKNOWN, evidence=evidence)))

    def _say(self, said: Report) -> Steps[Reception]:
        """Report, until it is stored or given up. Raises Refused."""
        if self.reception is not None and self.reception.stored:
            raise RuntimeError(f"{self.id}: {self.reception.said} was reported already")
        return (yield from self._send(said, patient=True))

    def _send(self, said: Report, *, patient: bool) -> Steps[Reception]:
        core, claim = self._core, self._claim
        policy = core.patient if patient else core.policy
        self._saying = said
        self._heart.hush(True)
        try:
            self.reception = yield from core.report(
                self.grant, said, claim.worker, claim.execution, policy
            )
        except Refused:
            self._saying = None
            self._refused = str(said.outcome)
            raise
        finally:
            self._heart.hush(False)
        if self.reception.stored:
            self._heart.stop()
        return self.reception

    # Leaving the block.

    def parting(self, error: BaseException | None) -> Steps[Reception | None] | None:
        """The report that is still due when the block is left; None when there is none.

        A report that was interrupted is repeated as it was. Where nothing was said it is *unknown*,
        with the exception's type and not its message, which may hold secrets.
        """
        if self.reception is not None:
            return None
        if self._saying is not None:
            return self._last_words(self._saying, patient=True)
        with_what = "out a report" if error is None else f" {type(error).__qualname__}"
        evidence = f"the worker ended with{with_what}"
        if self._refused is not None:
            evidence += f"; it had said {self._refused}, which was refused"
        return self._last_words(Report(outcome=Said.UNKNOWN, evidence=evidence), patient=False)

    def end(self, error: BaseException | None, *, silent: bool) -> None:
        """The block is over. Raises NotReported for a ``silent`` one that no exception ended."""
        self._heart.stop()
        if silent and error is None:
            raise NotReported(self.id, self.reception)

    @property
    def silent(self) -> bool:
        """Whether nothing was said that the server took, or may have taken."""
        return self.reception is None and self._saying is None

    def _last_words(self, said: Report, *, patient: bool) -> Steps[Reception | None]:
        """Report for the last time: nobody but the log is left to hear of a refusal."""
        try:
            return (yield from self._send(said, patient=patient))
        except Refused as refused:
            LOGGER.error("%s: the last report was refused: %s", self.id, refused)
            return None
        except BaseException as error:
            why = f"interrupted by {type(error).__name__}"
            self.reception = self._core.unkept(self.grant, said, why)
            raise
        finally:
            self._heart.stop()


class _Claiming(Generic[R]):
    """A claim, and the block that its permit is good for. Good for one block."""

    def __init__(
        self, core: Core, hearts: Hearts, claim: Wanted, run: Callable[[Steps[Reception]], R]
    ) -> None:
        self.operation = claim.operation
        self.held: str | None = None
        self._core = core
        self._hearts = hearts
        self._claim = claim
        self._run = run
        self._permit: Permit[R] | None = None

    def _steps(self) -> Steps[Claimed]:
        claim = self._claim
        return self._core.claim(
            claim.lane, claim.operation, claim.worker, claim.execution, claim.wait
        )

    def _begin(self, claimed: Claimed) -> Permit[R] | None:
        self.held = claimed.held
        if claimed.grant is not None:
            # Under an ID of the caller's the claim may have been made long ago.
            at_once = self._claim.given
            heart = self._hearts.start(claimed.grant, claimed.began, at_once=at_once)
            self._permit = Permit(self._core, self._claim, claimed.grant, heart, self._run)
        return self._permit


class Claiming(_Claiming[Reception]):
    """What `Client.permit` gives: enter it for a permit, or None when nothing is due.

    ``held`` then says what holds the lane back, if anything does; ``operation`` is the claim's ID.
    """

    def __init__(
        self,
        core: Core,
        hearts: Hearts,
        claim: Wanted,
        drive: tuple[Callable[[Steps[Claimed]], Claimed], Callable[[Steps[Reception]], Reception]],
    ) -> None:
        self._claim_now, run = drive
        super().__init__(core, hearts, claim, run)

    def __enter__(self) -> Permit[Reception] | None:
        return self._begin(self._claim_now(self._steps()))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._permit is not None:
            silent = self._permit.silent
            due = self._permit.parting(error)
            if due is not None:
                self._hearts.drive(due)
            self._permit.end(error, silent=silent)


class AsyncClaiming(_Claiming[Awaitable[Reception]]):
    """What `AsyncClient.permit` gives. See ``Claiming``."""

    def __init__(
        self,
        core: Core,
        hearts: Hearts,
        claim: Wanted,
        drive: tuple[
            Callable[[Steps[Claimed]], Awaitable[Claimed]],
            Callable[[Steps[Reception]], Awaitable[Reception]],
        ],
    ) -> None:
        self._claim_now, run = drive
        super().__init__(core, hearts, claim, run)

    async def __aenter__(self) -> Permit[Awaitable[Reception]] | None:
        return self._begin(await self._claim_now(self._steps()))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._permit is not None:
            silent = self._permit.silent
            due = self._permit.parting(error)
            if due is not None:
                # In a thread: cancelled once more, the task leaves, and the report is still made.
                await asyncio.shield(asyncio.wrap_future(self._hearts.drive_apart(due)))
            self._permit.end(error, silent=silent)
