"""A world: one seed's tenant, its processes and everybody around them, from founding to rest."""

from __future__ import annotations

import gc
import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.simulation import connections, happenings, judging, machine, promises
from tests.simulation.callers import Callers
from tests.simulation.clients import Clients
from tests.simulation.disks import AUTHORITY, Disks, journal_lines, read
from tests.simulation.faults import Faults, say
from tests.simulation.hub import Hub, Process
from tests.simulation.locks import LooseLock
from tests.simulation.machine import Machine
from tests.simulation.operator import Operator
from tests.simulation.promises import Broken, Line, Mirror
from tests.simulation.receivers import Receiver
from tests.simulation.service import Gone, Service
from tests.simulation.tenant import PUSHED, settings_in
from tests.simulation.workers import Workers
from tests.simulation.workload import SECONDS, Event, Profile

T = TypeVar("T")
_LONGEST = 20_000.0
"""Virtual seconds after which a world that has not come to rest never will."""


class World:
    """One seed. ``run`` raises Broken where a promise does not hold."""

    def __init__(
        self, seed: int, folder: Path, template: Path, events: Sequence[Event], profile: Profile
    ) -> None:
        self.seed, self.folder, self.profile = seed, folder, profile
        self.events = events
        self.settings = settings_in(folder)
        shutil.copytree(template, folder / "data")
        self.hub = Hub(seed)
        self.machine = Machine(self.hub, seed, self)
        self.machine.connect = connections.connect
        if profile.loose:
            holders: dict[str, LooseLock] = {}
            self.machine.lock = lambda settings: LooseLock(holders, settings.lock_timeout)
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self._hash = hashlib.sha256()
        self._numbers = 0
        self.running = True
        self.calm = False
        self.held = False
        self.happening = 0
        self.paused: list[Callable[[], None]] = []
        """What lets lanes run again, where an event paused one and could not."""
        self.disks = Disks(self, folder / "copies")
        self.faults = Faults(self)
        self.mirror = Mirror()
        self.services = [Service(self, number) for number in range(profile.services)]
        self.clients = Clients(self)
        self.workers = Workers(self)
        self.callers = Callers(self)
        self.receivers = {name: Receiver(self, name) for name in PUSHED}
        self.operator = Operator(self)
        self.outside = self.hub.process("outside")
        self.hub.own.append(self.outside)

    # What others ask of it.

    def note(self, what: str, /, **facts: Any) -> None:
        """One line of the trace."""
        told = say(facts).replace(f"{self.folder}/", "")
        line = f"{self.hub.now:9.3f} {self.hub.steps:6d} {what} {told}"
        self._hash.update(line.encode())
        self.trace.append(line)

    def count(self, what: str) -> None:
        """Count that something happened."""
        self.counts[what] += 1

    def fresh(self) -> int:
        """A number that nobody else has."""
        self._numbers += 1
        return self._numbers

    def roll(self, chance: float) -> bool:
        """Whether something happens that has this chance; in a calm world nothing does."""
        return not self.calm and chance > 0 and self.hub.random.random() < chance

    def choose(self, fates: Mapping[str, int]) -> str:
        """One of these, by their weights; in a calm world *fine*."""
        if self.calm or not self.profile.rough:
            return "fine"
        fate = self.hub.random.choices([*fates], [*fates.values()])[0]
        if fate == "later" and self.profile.clocks:
            return "lost"
        return fate

    def delay(self, most: float = 0.3) -> float:
        """Some seconds, at the most so many."""
        return self.hub.random.random() * most

    def pick(self, among: Sequence[T]) -> T:
        """One of these."""
        return self.hub.random.choice(among)

    def shuffled(self, items: list[T]) -> list[T]:
        """The same in any order."""
        self.hub.random.shuffle(items)
        return items

    def after(self, seconds: float, function: Callable[[], Any]) -> None:
        """Have something happen later, outside of every process."""

        def run() -> None:
            self.hub.sleep(seconds)
            function()

        self.hub.spawn(self.outside, "later", run)

    def service(self) -> Service:
        """A service that takes calls. Raises Gone."""
        up = [service for service in self.services if service.up]
        if not up:
            raise Gone("no service is there")
        return self.pick(up)

    def freeze(self, process: Process, seconds: float) -> None:
        """Let a process stand still for a while."""
        self.count("freeze")
        process.freeze()
        self.after(seconds, process.thaw)

    def hold_services(self) -> None:
        """Stop every service, and start none until ``release_services``."""
        self.held = True
        for service in self.services:
            service.stop()
        for _ in range(40):
            if not any(s.process is not None and s.process.alive for s in self.services):
                return
            self.hub.sleep(1.0)
        for service in self.services:
            service.kill()

    def release_services(self) -> None:
        """Start them again."""
        self.held = False
        for service in self.services:
            service.start()

    def effects_of(self, release: str) -> int:
        """How often a release has had its effect in the world."""
        pushed = sum(receiver.effects[release] for receiver in self.receivers.values())
        return pushed + self.workers.effects[release]

    # What the code does.

    def journalled(self, lines: list[Line], authority: tuple[Any, ...] | None) -> None:
        """A commit to the journal has had its effect."""
        history = self.mirror.history
        if not self.recovering and any(line.stream == "decisions" for line in lines):
            self.mirror.check_deciding(lines[0].operation)
        self.mirror.take(lines, authority)
        for line in lines:
            self.count("decisions" if line.stream == "decisions" else line.stream)
            # Not its digest: a control entry names evidence, where paths and times of files stand.
            at = f"{line.entity}@{line.revision}"
            self.note("journal", op=line.operation, at=at, action=line.action, state=line.state)
        if self.mirror.history != history:
            self.disks.behind.clear()

    @property
    def recovering(self) -> bool:
        """Whether what runs now is a command of the operator's, which may rebuild a store."""
        fiber = self.hub.current
        return fiber is not None and not fiber.process.name.startswith("serve")

    def applied(self, done: Any, loss: Any) -> None:
        """A recovery was applied: the store is what the journal says (P2, P11)."""
        self.count("recoveries")
        # Run again in the history that it has started, it starts no other one.
        self.disks.behind.clear()
        self.mirror.foreign.clear()
        judging.state(self)
        self.note("applied", replayed=done.replayed, undone=done.undone, lost=loss is not None)
        if done.healed is not None:
            self.count("healed")

    # Running.

    def run(self) -> None:
        """From the first event to rest."""
        machine.present(self.machine)
        connections.guard(self.faults)
        gc.disable()
        promises.found.clear()
        self.hub.every_step = _check
        self._load()
        for service in self.services:
            service.start()
        for event in self.events:
            self.after(event.at, lambda event=event: self.happen(event))  # type: ignore[misc]
        self.living = self.hub.spawn(self.outside, "operator", self.operator.live)
        self.hub.run(until=SECONDS)
        end = self.hub.spawn(self.outside, "end", self._come_to_rest)
        self.hub.run(until=_LONGEST, stop=lambda: end.done)
        if not end.done:
            raise Broken("liveness", f"no rest after {_LONGEST:.0f} s: {self.operator.last}")
        if end.error is not None:
            raise end.error
        self.running = False
        judging.files(self)
        self.count("steps")
        self.counts["steps"] = self.hub.steps
        self.note("end", steps=self.hub.steps)

    def _load(self) -> None:
        lines = journal_lines(self.settings.journal_file)
        self.mirror.history = lines[0].history
        for line in lines:
            self.mirror._add(line)
        self.mirror._enforce(*read(self.settings.journal_file, AUTHORITY)[0])

    @property
    def digest(self) -> str:
        """A hash of everything that happened."""
        return self._hash.hexdigest()

    def happen(self, event: Event) -> None:
        """Let an event of the workload happen."""
        facts = event.facts
        told = {name: value for name, value in facts.items() if name != "wishes"}
        self.note("event", event=event.kind, facts=told)
        self.happening += 1
        happenings.HAPPENS[event.kind](self, facts)
        self.happening -= 1

    # Rest.

    def _come_to_rest(self) -> None:
        """Nothing fails any more: everybody gets an answer, and all work comes to an end."""
        self.note("calm")
        self.calm = True
        self.faults.calm()
        for process in self.hub.processes:
            if process.frozen:
                process.thaw()
        self.operator.stopping = True
        for service in self.services:
            service.start()
        self.hub.join(self.living)
        while self.happening:
            self.hub.sleep(1.0)
        for _ in range(30):
            if all(service.up and not service.poisoned for service in self.services):
                break
            self.hub.sleep(1.0)
        judging.come_to_rest(self)
        self.running = False
        for service in self.services:
            service.stop()
        for _ in range(100):
            if not any(s.process is not None and s.process.alive for s in self.services):
                break
            self.hub.sleep(5.0)
        else:
            raise Broken("liveness", "a service does not stop")
        if self.mirror.stage != "open":
            # A file that was written over in place: what does not fit was seen by the last look.
            self.count("closed at the end")
            judging.recover(self)


def _check() -> None:
    if promises.found:
        raise promises.found[0]
