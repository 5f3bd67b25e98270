"""S3 and S4: what it costs to write decisions in process."""

from dataclasses import replace
from pathlib import Path

from benchmarks import floors, material, ours, peer
from benchmarks.isolated import isolated
from benchmarks.measure import Context, Figure, Pairs, Result
from benchmarks.workload import Slice

ENTITIES = 1000
MANY_ENTITIES = 100_000
IN_FLIGHT = 512
BATCH = 1000
PEER_WARM_UP = 2000
OUR_WARM_UP = 10_000
"""Decisions before the clock starts, enough for each side's write-ahead log to reach its size."""


def accept_in_flight(context: Context) -> Result:
    """S3: `accept` with 512 in flight, against the peer's decisions one after the other.

    Every run has a new file in which each entity has its first decision. Ours is given more
    decisions than the peer, of the same kind and in the same order, so that both run for seconds.
    """
    pairs = _accepted(context, ENTITIES)
    many = context.size(MANY_ENTITIES, MANY_ENTITIES // 10)
    more = _accepted(replace(context, rounds=min(context.rounds, 3)), many)
    uncached = [_peer_rate(context, ENTITIES, cached=False) for _ in range(2)]
    also = [
        Figure("the peer without its aggregate cache (its default)", "decisions/s", uncached),
        Figure(f"the peer over {many:,} entities", "decisions/s", more.theirs),
    ]
    if more.reason is None:
        also.append(Figure(f"ours over {many:,} entities", "decisions/s", more.ours))
        also.append(Figure(f"the ratio over {many:,} entities", "", more.ratios))
    return Result("decisions/s", pairs, also)


def import_in_batches(context: Context) -> Result:
    """S4: import into a new tenant, against `executemany` of the rows that an import leaves."""
    decisions = Slice(0, context.size(100_000, 10_000), ENTITIES)
    with context.folder() as folder:
        source = material.written(folder, decisions)

        def theirs() -> float:
            with context.folder() as into:
                files = [source.store, source.journal]
                took = isolated(floors.write_same_rows, files, into, decisions.count, BATCH)
            return decisions.count / took

        def mine() -> float:
            with context.folder() as into:
                took = isolated(material.import_slice, into / "data", decisions)
            return decisions.count / took

        pairs = context.pairs(theirs, mine)
    return Result("decisions/s", pairs)


def _accepted(context: Context, entities: int) -> Pairs:
    return context.pairs(
        lambda: _peer_rate(context, entities, cached=True), lambda: _our_rate(context, entities)
    )


def _peer_rate(context: Context, entities: int, *, cached: bool) -> float:
    measured = context.size(10_000, 2000)
    given = Slice(entities, PEER_WARM_UP + measured, entities)
    with context.folder() as folder:
        database = folder / "peer.db"
        isolated(peer.fill, database, _opening(entities))
        return measured / isolated(peer.decide, database, given, PEER_WARM_UP, cached=cached)


def _our_rate(context: Context, entities: int) -> float:
    measured = context.size(60_000, 10_000)
    given = Slice(entities, OUR_WARM_UP + measured, entities)
    with context.folder() as folder:
        data = folder / "data"
        isolated(material.import_slice, data, _opening(entities))
        return measured / isolated(_accept, data, given)


def _opening(entities: int) -> Slice:
    """The first decision of each entity."""
    return Slice(0, entities, entities, sweep=True)


def _accept(data: Path, decisions: Slice) -> float:
    given = list(decisions)
    return ours.accept_in_flight(data, given[:OUR_WARM_UP], given[OUR_WARM_UP:], IN_FLIGHT).seconds
