"""S3 and S4: what it costs to write decisions in process."""

from collections.abc import Iterator
from itertools import count
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

    Both sides start from a file in which every entity has its first decision, and their files grow
    from round to round. Ours is given more decisions than the peer, of the same kind, so that both
    run for seconds.
    """
    pairs, also = _accepted(context, ENTITIES, plain=True)
    many = context.size(MANY_ENTITIES, MANY_ENTITIES // 10)
    more, _ = _accepted(context, many, plain=False)
    also.append(Figure(f"the peer over {many:,} entities", "decisions/s", more.theirs))
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
            source.own()
            with context.folder() as into:
                took = isolated(material.import_slice, into / "data", decisions)
            return decisions.count / took

        pairs = context.pairs(theirs, mine)
    return Result("decisions/s", pairs, notes=source.notes)


def _accepted(context: Context, entities: int, *, plain: bool) -> tuple[Pairs, list[Figure]]:
    opening = Slice(0, entities, entities, sweep=True)
    peer_count, our_count = context.size(10_000, 2000), context.size(60_000, 10_000)
    also: list[Figure] = []
    with context.folder() as folder:
        database, data = folder / "peer.db", folder / "data"
        isolated(peer.fill, database, opening)
        peer_slices = _slices(entities, PEER_WARM_UP + peer_count)
        our_slices = _slices(entities, OUR_WARM_UP + our_count)

        def theirs(*, cached: bool = True) -> float:
            given = next(peer_slices)
            return peer_count / isolated(peer.decide, database, given, PEER_WARM_UP, cached=cached)

        def mine() -> float:
            if not data.exists():
                isolated(material.import_slice, data, opening)
            return our_count / isolated(_accept, data, next(our_slices))

        pairs = context.pairs(theirs, mine)
        if plain:
            label = "the peer without its aggregate cache (its default)"
            also.append(Figure(label, "decisions/s", [theirs(cached=False) for _ in range(2)]))
    return pairs, also


def _slices(entities: int, size: int) -> Iterator[Slice]:
    """Successive runs of decisions, after those that open the entities."""
    return (Slice(entities + number * size, size, entities) for number in count())


def _accept(data: Path, decisions: Slice) -> float:
    given = list(decisions)
    return ours.accept_in_flight(data, given[:OUR_WARM_UP], given[OUR_WARM_UP:], IN_FLIGHT)
