"""Every measure, in the order of section 12. A new row is one line here and one function."""

from benchmarks import over_http, reading, writing
from benchmarks.measure import Measure

MEASURES = (
    Measure(
        "S1",
        "single decisions over HTTP, 64 connections",
        "a no-op POST behind the same authentication",
        0.85,
        over_http.single_decisions,
    ),
    Measure(
        "S2",
        "latency of one decision at a time over HTTP",
        "a route of two bare SQLite commits",
        1.2,
        over_http.one_at_a_time,
        better="lower",
    ),
    Measure(
        "S3",
        "accept in process, 512 in flight, 1,000 entities",
        "eventsourcing on SQLite, one event a transaction",
        10,
        writing.accept_in_flight,
    ),
    Measure(
        "S4",
        "batch accept / import, known operations looked up",
        "bare executemany of the same rows, 1,000 a commit",
        0.8,
        writing.import_in_batches,
    ),
    Measure(
        "S5",
        "verify every entry",
        "bare read + SHA-256 of the same bytes, one process",
        0.85,
        reading.verify,
    ),
    Measure(
        "S6",
        "replay into the store's rows, all checks",
        "eventsourcing replay of the same events",
        2.5,
        reading.replay,
    ),
)
