"""S5 and S6: what it costs to read decisions back and check them."""

from pathlib import Path

from benchmarks import floors, material, ours, peer
from benchmarks.isolated import isolated
from benchmarks.measure import Context, Figure, Pairs, Result, why
from benchmarks.workload import Slice

ENTITIES = 1000


def verify(context: Context) -> Result:
    """S5: verify every entry, against one process that reads and hashes the same bytes.

    Both sides find the files in the page cache.
    """
    decisions = Slice(0, context.size(200_000, 20_000), ENTITIES)
    with context.folder() as folder:
        source = material.written(folder, decisions)
        entries, _ = _hashed(source, each=False)

        def mine() -> float:
            return entries / isolated(ours.verify, source.data)

        pairs = context.pairs(lambda: _hash_rate(source, each=False), mine)
        each = [_hash_rate(source, each=True) for _ in range(context.rounds)]
    also = [Figure("the same with a digest for each part", "entries/s", each)]
    return Result("entries/s", pairs, also)


def replay(context: Context) -> Result:
    """S6: replay into the store's rows, against the peer's replay of the same events."""
    decisions = Slice(0, context.size(100_000, 10_000), ENTITIES)
    with context.folder() as folder:
        database = folder / "peer.db"
        isolated(peer.fill, database, decisions)
        source = material.written(folder, decisions)

        def theirs() -> float:
            return decisions.count / isolated(peer.replay, database, decisions)

        def mine() -> float:
            data = source.data
            with context.folder() as target:
                return decisions.count / isolated(ours.replay, data, target)

        pairs = context.pairs(theirs, mine)
        also, notes = _in_memory(context, source, decisions, pairs)
    return Result("events/s", pairs, also, notes)


def _in_memory(
    context: Context, source: material.Material, decisions: Slice, pairs: Pairs
) -> tuple[list[Figure], list[str]]:
    if pairs.reason is not None:
        return [], []
    try:
        took = [isolated(ours.replay_in_memory, source.data) for _ in range(context.rounds)]
    except Exception as error:  # noqa: BLE001 - reported below the row, with its reason
        return [], [f"in memory: not measured: {why(error)}"]
    return [Figure("ours, in memory", "events/s", [decisions.count / one for one in took])], []


def _hash_rate(source: material.Material, *, each: bool) -> float:
    entries, took = _hashed(source, each=each)
    return entries / took


def _hashed(source: material.Material, *, each: bool) -> tuple[int, float]:
    path: Path = source.journal
    return isolated(floors.read_and_hash, path, ours.ENTRY_BYTES, each=each)
