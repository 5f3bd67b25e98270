"""S1 and S2: what a decision costs over HTTP, against routes that do nothing of unrewind's."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from benchmarks import ours, processes, stack
from benchmarks.load import Report
from benchmarks.measure import Context, Figure, MeasureError, Pairs, Result, why
from benchmarks.processes import Generator, Target

ENTITIES = 1000
CONNECTIONS = 64
GENERATOR_BOUND = 0.85
"""Share of a core above which the load generator may be what is measured."""


@dataclass
class Side:
    """One route under one load, with the reports of its runs."""

    generator: Generator
    target: Target
    path: str
    connections: int
    seconds: float
    reports: list[Report] = field(default_factory=list)

    def rate(self) -> float:
        report = self._run()
        return report.requests / report.seconds

    def latency(self) -> float:
        return self._run().p50

    def warm(self, seconds: float) -> None:
        """Run unmeasured, so that code and write-ahead logs have reached their lasting state."""
        self.generator.run(self.target, self.path, CONNECTIONS, seconds, warm_up=0)

    def each(self, of: Callable[[Report], float]) -> list[float]:
        return [of(report) for report in self.reports]

    def _run(self) -> Report:
        report = self.generator.run(self.target, self.path, self.connections, self.seconds)
        self.reports.append(report)
        return report


@dataclass
class Servers:
    """The running processes. `mine` is the reason where unrewind's server could not be started."""

    generator: Generator
    theirs: Target
    mine: Target | str

    def own(self, connections: int, seconds: float) -> Side | str:
        if isinstance(self.mine, str):
            return self.mine
        return Side(self.generator, self.mine, ours.DECISIONS, connections, seconds)

    def other(self, path: str, connections: int, seconds: float) -> Side:
        return Side(self.generator, self.theirs, path, connections, seconds)


@contextmanager
def servers(context: Context) -> Iterator[Servers]:
    with ExitStack() as running:
        folder = running.enter_context(context.folder())
        generator = running.enter_context(processes.generator(ENTITIES))
        theirs = running.enter_context(processes.baseline(folder))
        mine: Target | str
        try:
            mine = running.enter_context(processes.unrewind(folder / "unrewind"))
        except Exception as error:  # noqa: BLE001 - reported in the row, with its reason
            mine = why(error)
        yield Servers(generator, theirs, mine)


def single_decisions(context: Context) -> Result:
    """S1: decisions a second at 64 connections, every run of ours between two no-ops."""
    seconds = context.size(5, 1)
    with servers(context) as running:
        noop = running.other(stack.NOOP_STRAIGHT, CONNECTIONS, seconds)
        routed = running.other(stack.NOOP, CONNECTIONS, seconds)
        own = running.own(CONNECTIONS, seconds)

        def beside(side: Side) -> float:
            """The no-op through the router is measured too, beside the one that is compared."""
            if side is noop:
                through.append(routed.rate())
            return side.rate()

        through: list[float] = []
        pairs = _compared(context, noop, own, beside)
        with processes.responder() as target:
            bare = Side(running.generator, target, "/", CONNECTIONS, 1)
            ceiling = [bare.rate() for _ in range(3)]
    sides = {"no-op": noop} if isinstance(own, str) else {"no-op": noop, "ours": own}
    also = [
        Figure("a no-op through the router", "requests/s", through),
        Figure("load generator's ceiling", "requests/s", ceiling),
    ]
    notes: list[str] = []
    for name, side in sides.items():
        busy = side.each(lambda report: report.cpu / report.seconds)
        also += [
            Figure(f"{name}, p50 at {CONNECTIONS}", "ms", side.each(lambda report: report.p50)),
            Figure(f"{name}, p99 at {CONNECTIONS}", "ms", side.each(lambda report: report.p99)),
            Figure(f"{name}, generator's share of a core", "", busy),
        ]
        if max(busy) > GENERATOR_BOUND:
            notes.append(f"{name}: the load generator took most of a core and may be the limit")
    return Result("decisions/s", pairs, also, notes)


def one_at_a_time(context: Context) -> Result:
    """S2: median latency on one connection, in blocks that take turns."""
    seconds = context.size(3, 1)
    with servers(context) as running:
        floor = running.other(stack.TWO_COMMITS, 1, seconds)
        threaded = running.other(stack.TWO_COMMITS_THREADED, 1, seconds)
        noop = running.other(stack.NOOP, 1, 1)
        own = running.own(1, seconds)

        def beside(side: Side) -> float:
            """The other floors are measured too, between the blocks that are compared."""
            if side is floor:
                threaded.latency()
                noop.latency()
            return side.latency()

        pairs = _compared(context, floor, own, beside)
    also = [
        Figure("no-op, p50", "ms", noop.each(lambda report: report.p50)),
        Figure("two commits in a thread, p50", "ms", threaded.each(lambda report: report.p50)),
        Figure("two commits, p99", "ms", floor.each(lambda report: report.p99)),
    ]
    if not isinstance(own, str):
        also.append(Figure("ours, p99", "ms", own.each(lambda report: report.p99)))
    return Result("ms", pairs, also)


def _compared(
    context: Context, floor: Side, own: Side | str, figure: Callable[[Side], float]
) -> Pairs:
    warming = context.size(6, 4)
    floor.warm(warming)
    if isinstance(own, Side):
        try:
            own.warm(warming)
        except MeasureError as error:
            own = str(error)

    def mine() -> float:
        if isinstance(own, str):
            raise MeasureError(own)
        return figure(own)

    return context.pairs(lambda: figure(floor), mine)
