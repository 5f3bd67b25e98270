"""Every measure, in the order of section 12. A new row is one line here and one function."""

from benchmarks import effects, over_http, reading, reconciling, recoveries, writing
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
    Measure(
        "S7",
        "plan and apply of 1,000 lost decisions, journal of 1,000,000",
        "the same with a journal of 10,000",
        1.3,
        recoveries.plan_and_apply,
        better="lower",
    ),
    Measure(
        "S9",
        "peak memory of verify and recover, 1,000,000 entries",
        "100,000 entries",
        1.3,
        recoveries.peak_memory,
        better="lower",
    ),
    Measure(
        "S10",
        "detection at a start after a clean stop, 1,000,000 entries",
        "10,000 entries",
        1.3,
        recoveries.starting,
        better="lower",
    ),
    Measure(
        "R1",
        "releases end to end to an idempotent receiver",
        "a bare httpx loop of the same calls",
        0.5,
        effects.end_to_end,
    ),
    Measure(
        "R2",
        "claim cost beside 1,000,000 finished rows",
        "beside 10,000",
        1.3,
        effects.claims,
        better="lower",
    ),
    Measure(
        "R3",
        "sweep of 10,000 expired leases",
        "bare updates of the same rows, one a commit",
        None,
        effects.sweeping,
    ),
    Measure(
        "R4",
        "peak memory of reconciling 10,000 releases with their receiver",
        "1,000 releases",
        1.3,
        reconciling.peak_memory,
        better="lower",
    ),
)
