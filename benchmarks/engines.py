"""E1 to E4: what it costs to decide where store and journal are servers.

Every run of ours has databases and streams of its own, in which each entity has its first decision.
Both sides run on the same servers, and every commit and message is synced before it counts.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import mean

from benchmarks import material, ours, peer_postgres, publishing, servers
from benchmarks.isolated import isolated
from benchmarks.measure import Absent, Context, Figure, Result
from benchmarks.usage import Spent
from benchmarks.workload import Slice
from tests.support.jetstream import NatsCluster

ENTITIES = 1000
IN_FLIGHT = 64
WARM_UP = 3000
THREADS = (1, 4, 16)
"""How many the peer is tried with before the fastest is measured."""
US = 1e6
_names = count(1)


@dataclass
class Ours:
    """Our side over a place to decide in: each run's rate, and what of CPU a decision took."""

    context: Context
    pids: Sequence[int]
    measured: int
    in_flight: int = IN_FLIGHT
    warm_up: int = WARM_UP
    client: list[float] = field(default_factory=list)
    servers: list[float] = field(default_factory=list)

    def rate(self, where: dict[str, str]) -> float:
        """Decisions a second in a new tenant."""
        given = Slice(ENTITIES, self.warm_up + self.measured, ENTITIES)
        with self.context.folder() as folder:
            spent = isolated(
                _accept, folder / "data", where, given, self.warm_up, self.in_flight, self.pids
            )
        self.client.append(US * spent.client / self.measured)
        self.servers.append(US * spent.servers / self.measured)
        return self.measured / spent.seconds

    def figures(self) -> list[Figure]:
        return [
            Figure("CPU of ours a decision", "µs", self.client),
            Figure("CPU of the servers a decision", "µs", self.servers),
        ]


def _accept(
    data: Path,
    where: dict[str, str],
    given: Slice,
    warm_up: int,
    in_flight: int,
    pids: Sequence[int],
) -> Spent:
    decisions = list(given)
    ours.import_decisions(data, list(_opening()), where)
    earlier, measured = decisions[:warm_up], decisions[warm_up:]
    return ours.accept_in_flight(data, earlier, measured, in_flight, where, pids)


def _opening() -> Slice:
    """The first decision of each entity."""
    return Slice(0, ENTITIES, ENTITIES, sweep=True)


def entry_size(context: Context) -> int:
    """Bytes that a decision's envelope and body take, on average."""
    with context.folder() as folder:
        source = material.written(folder, Slice(0, ENTITIES, ENTITIES))
        with closing(sqlite3.connect(source.journal)) as file:
            rows = file.execute(ours.ENTRY_BYTES).fetchall()
    return round(mean(len(envelope) + len(body) for envelope, body in rows))


def against_inserts(context: Context) -> Result:
    """E1: `accept` on two PostgreSQL servers, against `pgbench` inserting one row of the bytes."""
    size, seconds = entry_size(context), context.size(5, 3)
    with servers.two_postgres() as two, context.folder() as folder:
        side = Ours(context, two.pids, context.size(20_000, 6000))
        pairs = context.pairs(
            lambda: servers.inserts(two.stores, folder, IN_FLIGHT, seconds, size),
            lambda: side.rate(two.new()),
        )
    return Result("/s", pairs, side.figures())


def against_peer(context: Context) -> Result:
    """E2: the same against `eventsourcing` on PostgreSQL, as it is fastest; also as it comes."""
    measured = context.size(4000, 1500)
    given = Slice(ENTITIES, WARM_UP // 3 + measured, ENTITIES)
    with servers.two_postgres() as two:

        def theirs(threads: int, *, by_function: bool = True) -> float:
            took = isolated(
                peer_postgres.decide, two.stores.create_database(), _opening(), given,
                WARM_UP // 3, threads, by_function=by_function,
            )  # fmt: skip
            return measured / took

        tried = {threads: [theirs(threads) for _ in range(2)] for threads in THREADS}
        best = max(tried, key=lambda threads: mean(tried[threads]))
        side = Ours(context, two.pids, context.size(20_000, 6000))
        pairs = context.pairs(lambda: theirs(best), lambda: side.rate(two.new()))
        usual = [theirs(1, by_function=False) for _ in range(2)]
    also = [
        Figure("the peer as it comes, one thread", "decisions/s", usual),
        *(
            Figure(f"by its database function, {threads} threads", "decisions/s", rates)
            for threads, rates in tried.items()
        ),
    ]
    note = f"theirs: by its database function, {best} threads"
    return Result("decisions/s", pairs, [*also, *side.figures()], [note])


def against_publishes(context: Context) -> Result:
    """E3: `accept` with its journal in JetStream, against bare awaited publishes of the bytes."""
    size, messages = entry_size(context), context.size(20_000, 4000)
    with servers.three_nats() as cluster:
        side = Ours(context, servers.pids_of(cluster), context.size(20_000, 6000))

        def theirs() -> float:
            took = isolated(
                publishing.publish, cluster.url, messages, WARM_UP // 3, size, IN_FLIGHT, 3
            )
            return messages / took

        pairs = context.pairs(theirs, lambda: side.rate(_stream(cluster)))
    return Result("/s", pairs, side.figures())


def one_at_a_time(context: Context) -> Result:
    """E4: milliseconds of one decision at a time on each combination, beside the embedded one."""
    measured = context.size(1500, 400)
    with servers.two_postgres() as two, _perhaps_nats() as stream:

        def latency(where: dict[str, str]) -> float:
            return 1000 / Ours(context, [], measured, in_flight=1, warm_up=300).rate(where)

        def only(part: str) -> dict[str, str]:
            return {part: two.new()[part]}

        combinations = {
            "journal on PostgreSQL": lambda: only("journal"),
            "store on PostgreSQL": lambda: only("store"),
        }
        if stream is not None:
            combinations |= {
                "journal in JetStream": lambda: _stream(stream),
                "the same, store on PostgreSQL": lambda: only("store") | _stream(stream),
            }
        pairs = context.pairs(lambda: latency({}), lambda: latency(two.new()))
        also = [
            Figure(label, "ms", [latency(made()) for _ in range(3)])
            for label, made in combinations.items()
        ]
    notes = [] if stream is not None else ["nats-server is not installed: JetStream is left out"]
    return Result("ms", pairs, also, notes)


def _stream(cluster: NatsCluster) -> dict[str, str]:
    """A tenant whose journal is a new stream."""
    return {"tenant": f"bench-{next(_names)}", "journal": servers.named(cluster)}


@contextmanager
def _perhaps_nats() -> Iterator[NatsCluster | None]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(servers.three_nats())
        except Absent:
            yield None
