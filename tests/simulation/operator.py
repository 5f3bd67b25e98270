"""The operator: looks now and then, and recovers a tenant that is closed, one command at a time.

Every command is a process of its own, which may be killed at any point. Then it is run again: that
is all an operator has to know. Sometimes the order is wrong, which has to be refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from api.opening import ask, working, writing
from api.reconciling import reconcile
from journal import handling, inquiry
from journal.control import Opening, Stage
from journal.driving import drive
from journal.errors import Refused, UnrewindError
from journal.lanes import Effect
from journal.record import Record
from journal.status import Status, status
from journal.sweeping import sweep
from reconstruct import recovery
from reconstruct.snapshots import current_history, restore, snapshot
from tests.simulation import machine
from tests.simulation.disks import read
from tests.simulation.loop import VirtualLoop
from tests.simulation.promises import Broken
from tests.simulation.service import Gone
from tests.simulation.tenant import PUSHED

if TYPE_CHECKING:
    from tests.simulation.world import World

ME = "operator"
_LOOK_EVERY = 12.0
_WAITS = "SELECT count(*) FROM unrewind_work WHERE status IN ('unknown', 'dead')"
_DOUBTED = "SELECT count(*) FROM unrewind_work WHERE step LIKE 'held: a loss of the journal%'"
_REPLAYED = 0.5


class Operator:
    """Recovers the tenant whenever it is closed, until ``stopping``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.settings = world.settings
        self.stopping = False
        self.recovered = 0
        self.snapshots: list[Any] = []
        self.last = ""

    # Commands, each in a process that may be killed.

    def run(self, name: str, command: Callable[[], Any]) -> Any:
        """Run a command; what it gave. Raises what it raises, Gone when it was killed."""
        hub, world = machine.hub(), self.world
        process = hub.process(name)
        if world.roll(world.profile.clumsy):
            world.faults.arm_kill(process, name)
        fiber = hub.spawn(process, name, command)
        done = hub.join(fiber)
        if not done:
            world.count(f"kill:{name}")
            world.note("killed", command=name)
            raise Gone(f"{name} was killed")
        process.exit()
        if fiber.error is not None:
            world.note(
                "command",
                name=name,
                error=type(fiber.error).__name__,
                detail=str(fiber.error)[:160],
            )
            self.last = f"{name}: {fiber.error}"
            raise fiber.error
        world.count(f"done:{name}")
        world.note("command", name=name)
        return fiber.result

    def look(self) -> Status | None:
        """Where the tenant stands; None: nobody can tell now."""
        try:
            found: Status = self.run("status", lambda: ask(self.settings, status))
        except UnrewindError:
            return None
        return found

    def live(self) -> None:
        """Look, and recover where that is needed."""
        hub = machine.hub()
        while not self.stopping:
            hub.sleep(_LOOK_EVERY * (0.5 + self.world.delay(1.0)))
            self.tend()

    def tend(self) -> None:
        """Look once; recover, and settle what waits for a person."""
        found = self.look()
        if found is None:
            return
        if found.stage == Stage.OPEN and found.stopped is None:
            self._settle()
            return
        try:
            self._recover(found)
        except UnrewindError as error:
            self.world.note("operator", error=type(error).__name__, detail=str(error)[:120])
        machine.hub().sleep(self.world.delay(3.0))

    # A recovery, step by step; any step may have to be run again.

    def _recover(self, found: Status) -> None:
        world = self.world
        if world.roll(world.profile.clumsy / 2):
            self._out_of_order()
        if world.roll(0.4):
            self.put_back()
        try:
            self.begin()
        except Refused:
            if not world.mirror.rolled_back:
                raise
            # Nothing can be fenced in a journal that was put back: it is healed by `apply`.
            world.count("not fenced")
        if world.roll(0.3) and not world.mirror.rolled_back:
            self.put_back()
        self.apply()
        for _ in range(6):
            if self.reconcile():
                break
            machine.hub().sleep(5.0)
        self._reopen()
        self.recovered += 1

    def _out_of_order(self) -> None:
        """Reopen before anything was recovered: it has to be refused, or to be right."""
        self.world.count("out of order")
        for step in self.world.shuffled([self._reopen, self.apply, self.reconcile]):
            try:
                step()
            except UnrewindError:
                continue

    def begin(self) -> None:
        """`unrewind recover begin`."""

        def command() -> Any:
            stopped = recovery.stop(self.settings, "the simulation said so")
            with writing(self.settings) as record:
                return drive(recovery.begin(record, "simulated", ME, stopped.evidence))

        self.run("begin", command)

    def put_back(self) -> None:
        """`unrewind restore` of a snapshot, which needs every service to be stopped."""
        if not self.snapshots:
            return
        world = self.world
        directory = world.pick(self.snapshots)
        world.hold_services()
        try:
            history = current_history_of(self)
            self.run("restore", lambda: restore(self.settings, directory, "main", history))
            world.disks.note("was restored from a snapshot")
        except UnrewindError:
            world.count("restore refused")
        finally:
            world.disks.reckon()
            world.clients.forget(world.mirror.gone)
            world.release_services()

    def apply(self) -> None:
        """`unrewind recover plan` and `apply`."""
        found = self.run("plan", lambda: ask(self.settings, recovery.plan))
        loss = None if found.healing is None else found.healing.loss
        consent = recovery.Consent(found.undo, "main", found.history)
        named = found.plan if self.world.roll(0.5) else None

        def command() -> Any:
            with writing(self.settings) as record:
                return drive(
                    recovery.apply(
                        record,
                        named,
                        ME,
                        lambda *_: None,
                        consent,
                        None if loss is None else loss.name,
                    )
                )

        done = self.run("apply", command)
        self.world.applied(done, loss)

    def reconcile(self) -> bool:
        """`unrewind recover reconcile`; whether every receiver answered."""

        def command() -> Any:
            with working(self.settings) as record:
                return VirtualLoop().run(
                    reconcile(runner(record), self.settings, incidents=True, principal=ME)
                )

        return bool(self.run("reconcile", command).complete)

    def _reopen(self) -> None:
        """`unrewind recover reopen`, in stages or all at once."""
        if self.world.roll(0.4):
            self._stage(Stage.READING)
            self._stage(Stage.INTERNAL)
            if self.world.roll(0.5):
                self._stage(Stage.EXTERNAL, Opening(lanes=PUSHED))
                machine.hub().sleep(10.0)
        self._stage(None)

    def _stage(self, to: Stage | None, opening: Opening | None = None) -> None:
        def command() -> Any:
            with writing(self.settings) as record:
                return drive(
                    recovery.reopen(
                        record,
                        ME,
                        to=to,
                        opening=opening,
                        despite=("trial", "backlog", "healed"),
                        reason="simulated",
                    )
                )

        done = self.run(f"reopen {to or 'all'}", command)
        self.world.count(f"stage:{done.stage}")
        self.last = f"reopen: {done.missing}"

    # What waits for a person.

    def _settle(self) -> None:
        """Say what became of releases of unknown outcome, and put dead letters back."""

        def command() -> Any:
            with working(self.settings) as record:
                for wanted in _UNSETTLED:
                    page = drive(inquiry.read_work(record, [*Effect], wanted, None, 100))
                    for view in page.items:
                        drive(self._settle_one(record, view))
                drive(sweep(record))

        try:
            waits = read(self.settings.store_file, _WAITS)[0][0]
            if waits:
                self.run("settle", command)
            if read(self.settings.store_file, _DOUBTED)[0][0]:
                self.reconcile()  # as their step says
        except (UnrewindError, sqlite3.Error):
            return

    async def _settle_one(self, record: Record, view: Any) -> None:
        try:
            internal = view.effect != Effect.EXTERNAL
            if internal or (view.status == "dead" and self.world.delay(1.0) < _REPLAYED):
                await handling.replay(record, [view.id], "try again", ME)
                self.world.count("replayed by hand")
                return
            effects = self.world.effects_of(view.id)
            if effects > 1 and view.id not in self.world.mirror.excused:
                raise Broken("P4", f"{view.id} had {effects} effects")
            await handling.settle(record, view.id, effects > 0, "looked", None, ME)
            self.world.count("settled by hand")
        except UnrewindError as error:
            self.world.note("settle", id=view.id[:12], error=str(error)[:100])

    def snapshot(self) -> None:
        """`unrewind snapshot`, to go back to later."""
        directory = self.world.folder / f"snapshot-{self.world.fresh()}"

        try:
            self.run("snapshot", lambda: ask(self.settings, snapshot, directory))
        except UnrewindError:
            return
        self.snapshots.append(directory)


_UNSETTLED = (inquiry.Filter(status="unknown"), inquiry.Filter(status="dead"))


def current_history_of(operator: Operator) -> str:
    """The history in force, as a person would read it off."""
    found = operator.run("history", lambda: current_history(operator.settings))
    if found is None:
        raise Refused("nobody can tell which history is in force")
    history: str = found
    return history


def runner(record: Record) -> Callable[..., Coroutine[Any, Any, Any]]:
    """What carries a reconciliation's steps out, as the command has it."""

    async def run(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return drive(function(record, *args))

    return run
