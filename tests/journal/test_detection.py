"""Detection as a table: every verdict of the comparison, and their order."""

from typing import Any

import msgspec
import pytest

from journal import decrees
from journal.acceptance import Place
from journal.control import Authority, Control, Stage, fold
from journal.detection import MAX_WAITING, Seen, Verdict, compare
from journal.entry import GENESIS
from journal.log import Look
from journal.store.tables import FORMAT, Marker
from tests.support.sealing import HISTORY, MOMENT, OTHER_HISTORY

ENDED, FORCE = HISTORY, OTHER_HISTORY
FIRST = 65_540
BASE = "b" * 64
TIP = Place(FORCE, 0, FIRST + 9, "9" * 64)
AUTHORITY = Authority(FORCE, 2, Stage.OPEN, FIRST, BASE)


def control() -> Control:
    """Two histories: the first ended at sequence 3, the second begins at 65,540."""
    entry = decrees.founding("main", "production", "j" * 32, ENDED, "control-1", MOMENT)
    facts = {"first": FIRST, "digest": BASE}
    begun = decrees.change(fold([entry], "main"), "history", AUTHORITY, facts, "c-2", MOMENT)
    return fold([entry, begun], "main")


def look(last: Place | None = TIP) -> Look:
    return Look(20, AUTHORITY, last, 2, flawed=False)


def marker(place: Place | None = None, journalled: int | None = None, **changes: Any) -> Marker:
    at = place or Place(FORCE, 2, TIP.sequence, TIP.digest)
    handed = at.sequence if journalled is None else journalled
    base = Marker(FORMAT, "main", "production", at, handed)
    return msgspec.structs.replace(base, **changes)


def at(sequence: int, digest: str, history: str = FORCE, generation: int = 2) -> Place:
    return Place(history, generation, sequence, digest)


AHEAD = at(TIP.sequence + 2, "b2" * 32)
BEHIND = at(TIP.sequence - 1, "8" * 64)
OLD = at(3, "3" * 64, ENDED, 1)

CASES: dict[str, tuple[Verdict, Seen]] = {
    "clean": (Verdict.CLEAN, Seen(look(), marker(), TIP, TIP, TIP.digest)),
    "clean, the watermark lagging": (
        Verdict.CLEAN,
        Seen(look(), marker(journalled=FIRST), TIP, at(FIRST, "0" * 64), TIP.digest),
    ),
    "clean at the beginning of a history": (
        Verdict.CLEAN,
        Seen(look(OLD), marker(at(FIRST - 1, BASE))),
    ),
    "clean at the founding": (
        Verdict.CLEAN,
        Seen(look(None), marker(at(FIRST - 1, BASE), journalled=0)),
    ),
    "crashed": (
        Verdict.CRASHED,
        Seen(look(), marker(AHEAD, TIP.sequence), None, TIP, TIP.digest),
    ),
    "crashed by as many as may wait": (
        Verdict.CRASHED,
        Seen(
            look(),
            marker(at(TIP.sequence + MAX_WAITING, "f" * 64), TIP.sequence),
            None,
            TIP,
            TIP.digest,
        ),
    ),
    "crashed before the first handoff of a history": (
        Verdict.CRASHED,
        Seen(look(OLD), marker(at(FIRST + 1, "1" * 64), FIRST - 1)),
    ),
    "store missing or empty": (Verdict.REPLACED, Seen(look(), None)),
    "store of another instance": (
        Verdict.REPLACED,
        Seen(look(), marker(instance="staging"), TIP, TIP, TIP.digest),
    ),
    "store of another tenant": (
        Verdict.REPLACED,
        Seen(look(), marker(tenant="other"), TIP, TIP, TIP.digest),
    ),
    "p8 another digest at the marker": (
        Verdict.FORKED,
        Seen(look(), marker(at(TIP.sequence, "x" * 64)), TIP, TIP, "x" * 64),
    ),
    "p8 another digest at a marker behind": (
        Verdict.FORKED,
        Seen(look(), marker(at(BEHIND.sequence, "x" * 64)), BEHIND, BEHIND),
    ),
    "p8 ahead over another decision at the journal's tip": (
        Verdict.FORKED,
        Seen(look(), marker(AHEAD, TIP.sequence), None, TIP, "x" * 64),
    ),
    "p8 ahead without the decision at the journal's tip": (
        Verdict.FORKED,
        Seen(look(), marker(AHEAD, TIP.sequence), None, TIP, None),
    ),
    "another digest at the beginning of a history": (
        Verdict.FORKED,
        Seen(look(OLD), marker(at(FIRST - 1, "x" * 64))),
    ),
    "more waiting than can": (
        Verdict.FORKED,
        Seen(
            look(),
            marker(at(TIP.sequence + MAX_WAITING + 1, "f" * 64), TIP.sequence),
            None,
            TIP,
            TIP.digest,
        ),
    ),
    "r10 the journal has nothing at the watermark": (
        Verdict.JOURNAL_REWOUND,
        Seen(look(), marker(AHEAD), None, None, TIP.digest),
    ),
    "r10 the journal has lost every decision": (
        Verdict.JOURNAL_REWOUND,
        Seen(look(None), marker()),
    ),
    "r10 the journal knows only an older generation": (
        Verdict.JOURNAL_REWOUND,
        Seen(look(), marker(at(TIP.sequence, TIP.digest, FORCE, 3)), TIP, TIP, TIP.digest),
    ),
    "r10 the journal has lost its newest control": (
        Verdict.JOURNAL_REWOUND,
        Seen(look(), marker(), TIP, TIP, TIP.digest, copied=3),
    ),
    "clean with every control entry copied": (
        Verdict.CLEAN,
        Seen(look(), marker(), TIP, TIP, TIP.digest, copied=2),
    ),
    "p8 r6 rewound": (Verdict.REWOUND, Seen(look(), marker(BEHIND), BEHIND, BEHIND)),
    "p8 rewound by one over a history's beginning": (
        Verdict.REWOUND,
        Seen(look(at(FIRST, "0" * 64)), marker(at(FIRST - 1, BASE))),
    ),
    "p7 the store's history has ended": (Verdict.REWOUND, Seen(look(), marker(OLD), OLD, OLD)),
    "p7 the store's generation is not in force": (
        Verdict.REWOUND,
        Seen(look(), marker(at(TIP.sequence, TIP.digest, FORCE, 1)), TIP, TIP, TIP.digest),
    ),
    "rewound to before anything was decided": (
        Verdict.REWOUND,
        Seen(look(), marker(at(0, GENESIS, ENDED, 1))),
    ),
    "r10 before p8: nothing at the watermark, and behind": (
        Verdict.JOURNAL_REWOUND,
        Seen(look(), marker(BEHIND, journalled=TIP.sequence + 5), BEHIND, None),
    ),
    "forked before journal-rewound": (
        Verdict.FORKED,
        Seen(look(), marker(at(TIP.sequence, "x" * 64), TIP.sequence + 5), TIP, None),
    ),
    "replaced before forked": (
        Verdict.REPLACED,
        Seen(look(), marker(at(TIP.sequence, "x" * 64), instance="staging"), TIP, TIP),
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_the_verdict_table(what: str) -> None:
    wanted, seen = CASES[what]
    found = compare(control(), seen, "production")
    assert found.verdict is wanted, found.detail
    assert found.verdict.sound == (wanted in {Verdict.CLEAN, Verdict.CRASHED})


@pytest.mark.parametrize("what", CASES)
def test_r18_r22_a_journal_of_another_instance_comes_before_everything(what: str) -> None:
    found = compare(control(), CASES[what][1], "staging")
    assert found.verdict is Verdict.CLOSED
    assert "production" in found.detail


def test_r17_nothing_waits_is_never_said_of_a_store_that_is_behind() -> None:
    found = compare(control(), CASES["p8 r6 rewound"][1], "production")
    assert found.facts["store"]["sequence"] < found.facts["journal"]["sequence"]
