"""Every stored byte that verification answers for is changed, and every change is found and named.

What nothing can find is listed with its reason: a column that is in neither list fails the test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import journal
from journal.errors import Forked
from reconstruct import verification
from tests.reconstruct.mutating import Evidence, Mutant, built, doubled, resealed
from tests.soak.processes import LONG
from tests.support.proof import record
from tests.support.tenants import Tenant, make_settings

if LONG:
    pytestmark = pytest.mark.soak

MISMATCH = {"mismatch"}
STORE = {"store", "mismatch", "truncated", "forked", "rewound", "journal-rewound", "replaced"}
STORE |= {"newer format"}
HEAD = {"head"}
CLOSED = {"closed"}
INDEX = {"index", "mismatch"}
"""A name that is no text any more is damage."""
WORK = {"work", "replaced"}
"""Text that is none any more is damage of the store."""

FOUND: dict[str, dict[str, set[str]]] = {
    "entries": {
        **dict.fromkeys(
            ("sequence", "history", "entity", "revision", "operation", "digest", "envelope"),
            MISMATCH,
        ),
        "body": MISMATCH,
        "stream": MISMATCH,
        # Where nothing stands at its number, the order of the others has a hole.
        "position": {"mismatch", "gap", "journal-rewound"},
        # The last entry is missed by whoever knows that there was one.
        "row": {"gap", "mismatch", "journal-rewound"},
    },
    "authority": dict.fromkeys(
        ("history", "generation", "stage", "first", "digest", "row"), CLOSED
    ),
    "chains": dict.fromkeys(
        ("entity", "revision", "history", "digest", "state", "newest", "row"), INDEX
    ),
    "unrewind_marker": dict.fromkeys(
        (
            *("format", "tenant", "instance", "history", "generation", "sequence", "digest"),
            *("journalled", "row"),
        ),
        STORE,
    ),
    "unrewind_decisions": dict.fromkeys(("sequence", "digest", "envelope", "body", "row"), STORE),
    "unrewind_entities": dict.fromkeys(
        (
            *("entity", "revision", "history", "digest", "sequence", "state", "version"),
            *("data", "row"),
        ),
        HEAD,
    ),
    "unrewind_control": dict.fromkeys(("sequence", "digest", "envelope", "body", "row"), STORE),
    "unrewind_work": dict.fromkeys(
        (
            *("id", "lane", "effect", "name", "status", "entity", "revision", "sequence"),
            *("operation", "version", "data", "weight", "created", "row"),
        ),
        WORK,
    ),
    "unrewind_counts": dict.fromkeys(("lane", "status", "items", "weight", "row"), WORK),
}
"""For each table and column the findings, one of which every change of a value MUST lead to."""

RELEASES = {
    *("receiver", "recipient", "digest", "corrects", "committed", "lease", "attempts"),
    *("receipt", "cancel_requested"),
}
"""Columns of work that decisions give a release; of a command they are the store's own."""

OWN = {
    "unrewind_work": {
        "number": "the order in which rows were made; its value says nothing",
        "place": "of a release: the order within one action",
        "due": "moves with each retry, of which no decision tells",
        "claimed": "a lease, lost with the store",
        "claim": "a lease, lost with the store",
        "worker": "a lease, lost with the store",
        "execution": "a lease, lost with the store",
        "heartbeat": "a lease, lost with the store",
        "sweep_at": "a lease, lost with the store",
        "started": "a step, lost with the store",
        "step": "a step, lost with the store; every one in progress counts as perhaps sent",
        "maybe": "a step, lost with the store; every one in progress counts as perhaps sent",
        "failures": "counts attempts that no decision tells of",
        "expired": "counts leases that ended",
        "last_error": "words for a person",
        "owner": "who is asked; follows from the settings at the time",
        "finished": "whether there is one is checked, not when",
        "incident": "its decision is in the journal, and is what counts",
    },
    "unrewind_flow": {"*": "ten-second sums for a forecast"},
    "unrewind_budgets": {"*": "tokens of a rate"},
    "unrewind_sweeps": {"*": "when somebody swept"},
    "unrewind_processes": {"*": "who is alive"},
    "unrewind_callbacks": {"*": "which wake-ups were seen; a repeat only asks again"},
    "unrewind_reconciled": {"*": "findings of a reconciliation; another one finds them again"},
    "unrewind_needs_2": {"*": "no row ever"},
    "ledger": {"*": "the application's own table"},
    "rivals": {"*": "empty here: see the next test"},
    "flaws": {"*": "empty here: see the next test"},
    "dropped": {"*": "empty here: see the next test"},
}
"""What no other stored byte says, with the reason why that is borne."""


class Tally:
    """How many changes were tried, refused by the schema, found, and found as what they are."""

    def __init__(self) -> None:
        self.tried = self.refused = self.found = self.classed = 0
        self.missed: list[str] = []

    def take(self, mutant: Mutant, kinds: set[str] | None, wanted: set[str]) -> None:
        if kinds is None:
            self.refused += 1
            return
        self.tried += 1
        self.found += bool(kinds)
        self.classed += bool(kinds & wanted)
        if not kinds & wanted:
            where = f"{mutant.table}.{mutant.what} {mutant.how} in {mutant.where}"
            self.missed.append(f"{where}: {sorted(kinds) or 'nothing'}")


TALLY = Tally()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> journal.Settings:
    return built(tmp_path_factory.mktemp("mutations"))


@pytest.fixture(scope="module", autouse=True)
def proof() -> Iterator[None]:
    """Nobody decides meanwhile: verification need not wait before it looks again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_PAUSE", 0.0)
        yield
    if LONG:
        record(
            "mutations",
            "UNREWIND_SOAK=1 python -m pytest -m soak tests/reconstruct/test_mutations.py",
            scope=TALLY.tried,
            found=TALLY.found,
            classed=TALLY.classed,
            refused_by_the_schema=TALLY.refused,
            missed=TALLY.missed[:100],
        )


def evidence_of(settings: journal.Settings, table: str) -> Evidence:
    in_store = table.startswith("unrewind_")
    return Evidence(settings, settings.store_file if in_store else settings.journal_file)


def fits(evidence: Evidence, mutant: Mutant) -> bool:
    """Whether the change is one that another stored byte contradicts."""
    table, what = mutant.table, mutant.what
    if what in OWN.get(table, {}):
        return False
    names = evidence.columns[table]
    keyed = {
        str(tuple(row[names.index(key)] for key in evidence.keys[table])): row
        for row in evidence.rows[table]
    }
    if table == "unrewind_work" and what in RELEASES:
        return bool(keyed[mutant.where][names.index("effect")] == "external")
    if table == "unrewind_work" and mutant.how == "swapped":
        return False  # they only have each other's number
    if (table, what, mutant.how) == ("unrewind_marker", "format", "flipped"):
        return False  # the other format that this code knows; which one is needed is in control
    if table == "unrewind_counts":
        row = keyed[mutant.where]
        return bool(row[names.index("items")]) or what in {"items", "weight"}
    if table == "unrewind_control" and mutant.how == "gone":
        # The newest copy comes with the next turn.
        return mutant.where != str((max(row[0] for row in evidence.rows[table]),))
    if table == "entries" and (what, mutant.how) in {("row", "swapped"), ("position", "flipped")}:
        return _one_stream(evidence, mutant)
    return True


def _one_stream(evidence: Evidence, mutant: Mutant) -> bool:
    """Whether both are of one order; how streams lie between each other nothing says twice."""
    streams = {row[0]: row[1] for row in evidence.rows["entries"]}
    if mutant.how != "swapped":
        return True
    one, other = (streams[int(at)] for at in mutant.where.split(", "))
    return one == other and not one.startswith("caller/")


@pytest.mark.parametrize("table", FOUND)
def test_h6_p10_a_changed_value_is_found_and_named(settings: journal.Settings, table: str) -> None:
    evidence = evidence_of(settings, table)
    chance = random.Random(7)
    assert evidence.rows[table]
    covered = {*FOUND[table], *OWN.get(table, {}), *evidence.keys[table]}
    if table == "unrewind_work":
        covered |= RELEASES
    assert {*evidence.columns[table]} <= covered, "a column that nobody thought of"
    tally = Tally()
    for mutant in evidence.mutants(table, chance, thorough=LONG):
        if fits(evidence, mutant):
            wanted = FOUND[table].get(mutant.what) or (WORK if mutant.what in RELEASES else set())
            tally.take(mutant, evidence.found(mutant), wanted or {"?"})
    _keep(tally)
    assert tally.missed == []
    assert tally.tried


def _keep(tally: Tally) -> None:
    for name in ("tried", "refused", "found", "classed"):
        setattr(TALLY, name, getattr(TALLY, name) + getattr(tally, name))
    TALLY.missed += tally.missed


def test_h6_p10_what_says_that_a_history_is_incomplete_is_answered_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rivals, flaws and the index of dropped entries: a gate that they hold must not open."""
    monkeypatch.setattr(verification, "_PAUSE", 0.0)
    tenant = Tenant(make_settings(tmp_path))
    try:
        caller = tenant.caller()
        first, second, _, fourth = caller.chain("contract/1", 4)
        tenant.append(first, second, fourth)
        other = tenant.caller()
        whole = other.chain("contract/2", 2)
        tenant.append(*whole)
        rival = tenant.caller()
        with pytest.raises(Forked):
            tenant.append(rival.seal("contract/2", actor="somebody else"))
    finally:
        tenant.close()
    evidence = Evidence(tenant.settings, tenant.settings.journal_file)
    before = verification.verify(tenant.settings)
    assert before.verdict == "fork"
    tally = Tally()
    chance = random.Random(5)
    for table, columns in {
        "rivals": {"digest", "envelope", "body", "row"},
        "flaws": {"entity", "flaw", "first", "last", "row"},
        "chains": {"entity", "revision", "history", "digest", "state", "newest", "row"},
    }.items():
        for mutant in evidence.mutants(table, chance, thorough=True):
            if mutant.what in columns and mutant.how != "swapped":
                tally.take(mutant, evidence.found(mutant), INDEX)
    dropped = Mutant("dropped", "row", "added", "1", [("INSERT INTO dropped VALUES (?)", (1,))])
    tally.take(dropped, evidence.found(dropped), INDEX)
    _keep(tally)
    assert tally.missed == []


def test_every_table_is_thought_of(settings: journal.Settings) -> None:
    for file in (settings.store_file, settings.journal_file):
        for table in Evidence(settings, file).columns:
            assert table in FOUND or "*" in OWN.get(table, {}), table


@pytest.mark.soak
@pytest.mark.parametrize("column", ["envelope", "body", "digest", "history", "operation", "entity"])
def test_h6_p10_each_byte_of_the_journal_is_answered_for(
    settings: journal.Settings, column: str
) -> None:
    evidence = evidence_of(settings, "entries")
    tally = Tally()
    for mutant in evidence.every_byte("entries", column, random.Random(11)):
        tally.take(mutant, evidence.found(mutant), MISMATCH)
    _keep(tally)
    assert tally.missed == []


def test_h6_p10_an_entry_that_is_sealed_anew_is_an_orphan_or_no_head(
    settings: journal.Settings,
) -> None:
    """Its own digest is right: what contradicts it is its successor, or the store."""
    evidence = evidence_of(settings, "entries")
    names = evidence.columns["entries"]
    tally = Tally()
    for row in evidence.rows["entries"]:
        entry = dict(zip(names, row, strict=True))
        if entry["stream"] != "decisions":
            continue
        later = any(
            other[names.index("entity")] == entry["entity"]
            and other[names.index("revision")] == entry["revision"] + 1
            for other in evidence.rows["entries"]
        )
        mutant = resealed(evidence, row, actor="somebody else")
        tally.take(mutant, evidence.found(mutant), {"orphan"} if later else {"head", "forked"})
    _keep(tally)
    assert tally.missed == []


def test_h6_p10_a_second_successor_is_a_fork(settings: journal.Settings) -> None:
    evidence = evidence_of(settings, "entries")
    names = evidence.columns["entries"]
    tally = Tally()
    for row in evidence.rows["entries"]:
        if row[names.index("stream")] == "decisions":
            mutant = doubled(evidence, row)
            tally.take(mutant, evidence.found(mutant), {"fork"})
    _keep(tally)
    assert tally.missed == []
