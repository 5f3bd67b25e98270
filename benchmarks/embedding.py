"""E5: what a decision inside the application's own transaction adds to it."""

from contextlib import closing
from pathlib import Path
from time import perf_counter

import psycopg

from benchmarks import ours, servers
from benchmarks.isolated import isolated
from benchmarks.measure import Context, Figure, Result
from benchmarks.workload import Decision, Slice
from journal import Operation
from journal.entry import JSON_TYPE
from journal.inside import Inside

ENTITIES = 1000
WARM_UP = 300
_TABLE = "CREATE TABLE IF NOT EXISTS cases (operation text PRIMARY KEY, body text NOT NULL)"
_INSERT = "INSERT INTO cases VALUES (%s, %s)"


def decided_inside(context: Context) -> Result:
    """E5: milliseconds of a transaction with `decide_in` and of `confirmed`, beside it bare."""
    given = Slice(0, WARM_UP + context.size(2000, 500), ENTITIES)
    commits: list[float] = []
    with servers.two_postgres() as two:

        def mine() -> float:
            with context.folder() as folder:
                both, commit = isolated(decide, folder / "data", two.new(), given)
            commits.append(commit)
            return both

        pairs = context.pairs(lambda: isolated(insert, two.stores.create_database(), given), mine)
    return Result("ms", pairs, [Figure("ours without `confirmed`", "ms", commits)])


def insert(url: str, given: Slice) -> float:
    """Milliseconds of a transaction that inserts the application's row."""
    decisions = list(given)
    with closing(psycopg.connect(url)) as connection:
        _make(connection)
        started = perf_counter()
        for number, one in enumerate(decisions):
            if number == WARM_UP:
                started = perf_counter()
            with connection.transaction():
                _write(connection, one)
        return 1000 * (perf_counter() - started) / (len(decisions) - WARM_UP)


def decide(data: Path, where: dict[str, str], given: Slice) -> tuple[float, float]:
    """Milliseconds until it is confirmed, and until it is committed."""
    decisions = [
        (one, Operation(one.operation, one.entity, one.action, one.body, JSON_TYPE))
        for one in given
    ]
    total = committing = 0.0
    with (
        closing(Inside(ours.settings_of(data, where))) as inside,
        closing(psycopg.connect(where["store"])) as connection,
    ):
        _make(connection)
        for number, (one, operation) in enumerate(decisions):
            started = perf_counter()
            with connection.transaction():
                decision = inside.decide_in(connection, operation)
                _write(connection, one)
            committed = perf_counter()
            inside.confirmed(decision)
            if number >= WARM_UP:
                total += perf_counter() - started
                committing += committed - started
    measured = len(decisions) - WARM_UP
    return 1000 * total / measured, 1000 * committing / measured


def _make(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    with connection.transaction():
        connection.execute(_TABLE)


def _write(connection: psycopg.Connection[tuple[object, ...]], one: Decision) -> None:
    connection.execute(_INSERT, (one.operation, one.body.decode()))
