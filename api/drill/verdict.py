"""The verdict: whether each promise held, from what callers were told and what the files say.

Independent of what the service says: acknowledgements from the notebook, effects from the
receiver's record, decisions and work by plain SQL.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from api.drill import facts
from api.drill.accepting import document
from api.drill.damaging import fingerprints
from api.drill.story import Check, Story
from journal.errors import EngineError, UnrewindError
from reconstruct.verification import verify

_NAMED = 5


def judge(story: Story) -> None:
    """Hold every promise against the facts. One about which nothing was found was not reached."""
    with suppress(EngineError):
        held = facts.entries(story.journal)
        _acknowledged(story, held)
        attempts(story)
        _effects(story, held)
        _operations(story, held)
        _evidence(story)
    with suppress(EngineError):
        _fates(story, facts.work(story.store))


def broken(story: Story) -> dict[str, Check]:
    """The promises that broke, each with the first check that shows it."""
    found: dict[str, Check] = {}
    for check in story.checks:
        if not check.held:
            found.setdefault(check.promise, check)
    return dict(sorted(found.items(), key=lambda item: int(item[0][1:])))


def names(found: Any) -> str:
    """Some of these, by name; `none` where there are none."""
    names = sorted(map(str, found))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) + more) or "none"


def _acknowledged(story: Story, held: list[facts.Held]) -> None:
    """P1 and P2: what was acknowledged is in the journal, whole, and in the store after it all."""
    whole = {entry.digest for entry in held if entry.whole}
    told = {operation: answer["digest"] for operation, answer in story.notebook.told.items()}
    absent = {operation for operation, digest in told.items() if digest not in whole}
    story.check("P1", "acknowledgements that the journal does not hold", "none", names(absent))
    looked = f"{story.facts.get('seen', 0)} answers"
    story.judge("P1", "looked up in both files at once", "every answer", looked, held=True)
    if not story.wants("P2"):
        return
    story.check("P2", "acknowledgements that the journal lost", "none", names(absent))
    sql = "SELECT lower(hex(digest)) FROM unrewind_decisions"
    stored = {digest for (digest,) in facts.rows_of(story.store, sql)}
    lost = {operation for operation, digest in told.items() if digest not in stored}
    story.check("P2", "acknowledgements that the store lost", "none", names(lost))
    differing = names(story.notebook.differing)
    story.check("P2", "operations that a repeat answers otherwise", "none", differing)


def attempts(story: Story) -> None:
    """P3 and P4: no call before its commitment was journalled, no effect twice."""
    calls = facts.calls(story.site.record)
    early = {call["release"] for call in calls if call["journalled"] < call["attempt"]}
    name = f"calls before their commitment was journalled, of {len(calls)}"
    story.check("P3", name, "none", names(early))
    executed = Counter(call["release"] for call in calls if call["executed"])
    twice = {release for release, times in executed.items() if times > 1}
    story.check("P4", "releases with two effects", "none", names(twice))


def _effects(story: Story, held: list[facts.Held]) -> None:
    """P3, P4, P7: effects that were to happen did, and none for what was cancelled."""
    calls = facts.calls(story.site.record)
    story.judge("P3", "calls that were seen", "some", str(len(calls)), held=bool(calls))
    executed = {call["release"] for call in calls if call["executed"]}
    receipts = {entry.release for entry in held if entry.action == "release.confirmed"}
    missing = receipts - executed - {None}
    story.check("P4", "receipts of effects that nobody made", "none", names(missing))
    of_cancelled = [call for call in calls if call["entity"] == document("cancelled")]
    story.check("P7", "calls for the cancelled version", 0, len(of_cancelled))


def _operations(story: Story, held: list[facts.Held]) -> None:
    """P6: each operation is at most one decision."""
    counted = Counter(entry.operation for entry in held)
    twice = {operation for operation, times in counted.items() if times > 1}
    story.check("P6", "operations that are two decisions", "none", names(twice))
    if story.wants("P6"):
        differing = names(story.notebook.differing)
        story.check("P6", "repeats with another answer", "none", differing)


def _evidence(story: Story) -> None:
    """P10: what the journal held once it holds still, byte for byte, and it is whole."""
    if not story.wants("P10"):
        return
    before: list[str] = story.facts.get("fingerprints", [])
    now = fingerprints(story.journal)
    same = now[: len(before)] == before
    found = "the same" if same else "others"
    name = f"the bytes of the first {len(before)} entries"
    story.judge("P10", name, "the same", found, held=same)
    try:
        report = verify(story.settings)
    except UnrewindError as error:
        story.judge("P10", "the original, verified", "clean", str(error), held=False)
        return
    story.check("P10", "the original, verified", "clean", report.verdict)


def _fates(story: Story, rows: dict[str, facts.Row]) -> None:
    """P12: every accepted operation has ended, or somebody answers for it until a deadline."""
    if not story.wants("P12"):
        return
    expected = {**story.releases, **story.facts.get("commands", {})}
    gone = expected.keys() - rows.keys()
    story.check("P12", "work of accepted operations that disappeared", "none", names(gone))
    ownerless = {row.id for row in rows.values() if not row.over and not row.owner}
    story.check("P12", "unfinished work without an owner", "none", names(ownerless))
    states = Counter(
        row.status if row.over else "unresolved" for row in rows.values() if row.id in expected
    )
    story.facts["fates"] = dict(sorted(states.items()))
