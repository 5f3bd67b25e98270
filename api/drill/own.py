"""A drill on a copy of an operator's own data: stop, rewind, recover, reconcile, reopen."""

from __future__ import annotations

import json
import time
from pathlib import Path

from msgspec import Struct

from api.drill import comparing, facts, recovering, verdict
from api.drill.rolling import roll_back
from api.drill.site import Hung, ended, until
from api.drill.story import Story, Stuck
from journal.settings import Settings
from reconstruct.verification import verify

PROMISES = ("P2", "P3", "P4", "P7", "P8", "P11", "P12")
"""What such a drill checks; the others need operations of its own."""

_BACKLOG_SECONDS = 60.0


class Source(Struct, frozen=True):
    """What is rehearsed with: the operator's settings, and how far the copy is rewound."""

    settings: Settings
    snapshot: Path | None
    back: int


def play(story: Story, source: Source) -> None:
    """Play the acts on the copy and judge. A step that fails ends the acts, not the verdict."""
    try:
        _play(story, source)
    except Stuck:
        pass
    finally:
        _judge(story)


def _play(story: Story, source: Source) -> None:
    with story.step("P11", "verify the copy as it is"):
        report = verify(story.settings)
        story.facts["found"] = report.verdict
        sound = report.verdict in {"clean", "crashed"}
        story.digests["before"] = report.state_digest if report.verdict == "clean" else None
        facts.copy(story.settings.store_file, _before(story))
    ran = story.command("P8", "look at the copy", "status", codes=(0, 1))
    history = (ran.json or {}).get("history")
    if source.snapshot is not None:
        story.command(
            "P2",
            "restore your snapshot over the copy",
            *("restore", str(source.snapshot), "--confirm-tenant", story.settings.tenant),
            *("--confirm-history", str(history)),
        )
    else:
        with story.step("P2", f"roll the copied store back by {source.back} decisions"):
            story.facts["rolled"] = roll_back(story.settings, source.back)
    ran = story.command("P8", "look at the rewound copy", "status", codes=(0, 1))
    told = ran.json or {}
    story.facts["rewound"] = told.get("verdict")
    story.check("P8", "the rewound copy is noticed", "rewound", told.get("verdict"))
    if not sound:
        story.facts["remark"] = f"the data was {report.verdict} before it was rewound"
    _recover(story)


def _recover(story: Story) -> None:
    recovering.fence(story)
    ran = story.command("P2", "plan", "recover", "plan", codes=(0, 1))
    story.facts["plan"] = recovering.plan_of(ran.json or {})
    story.command("P2", "apply", "recover", "apply", *recovering.limit_of(story, ran.json or {}))
    _state(story, "after apply")
    story.command("P11", "apply once more", "recover", "apply")
    _state(story, "after apply, run again")
    recovering.reconcile(story)
    ran = story.command("P2", "reopen as far as the tests hold", "recover", "reopen", codes=(0, 1))
    told = ran.json or {}
    story.facts["reopened"] = told
    decides = told.get("stage") in {"internal", "external", "open"}
    found = f"{told.get('stage')}; missing: {'; '.join(told.get('missing') or ()) or 'nothing'}"
    story.judge("P2", "the tenant decides again", "a stage that decides", found, held=decides)
    if not decides:
        return
    story.times["safe"] = time.monotonic()
    with story.step("P4", "let the service work on the backlog"):
        service = story.site.serve()
        try:
            until("the backlog clears", lambda: not _waiting(story), _BACKLOG_SECONDS)
            story.times["clear"] = time.monotonic()
        except Hung:
            story.facts["waiting"] = _waiting(story)
        finally:
            service.terminate()
            ended(service)


def _state(story: Story, when: str) -> None:
    with story.step("P11", f"compute the state digest {when}"):
        report = verify(story.settings)
        before = story.digests.get("before") or story.digests.get("after apply")
        story.digests[when] = report.state_digest
        if before is not None:
            same = before == report.state_digest
            found = "the same" if same else f"{report.state_digest} ({report.verdict})"
            story.judge("P11", f"the state digest {when}", f"the same, {before}", found, held=same)


def _waiting(story: Story) -> int:
    """How much goes on by itself: its lane has a receiver, and nobody else has to act."""
    lanes = sorted(name for name, lane in story.settings.lanes.items() if lane.receiver is not None)
    return comparing.waiting(story.settings.store_file, json.dumps(lanes))


def _before(story: Story) -> Path:
    """The copied store as it was before it was rewound."""
    return story.site.folder / "store-before.db"


def _judge(story: Story) -> None:
    """What came of the copy, from its files and the receiver's record."""
    journal, store = story.settings.journal_file, story.settings.store_file
    before = _before(story)
    if not all(map(facts.readable, (store, journal, before))):
        story.judge("P2", "store and journal can be read", "yes", "no", held=False)
        return
    lost = comparing.decisions_lacking(journal, store)
    story.check("P2", "journalled decisions that the store lacks", "none", verdict.names(lost))
    verdict.attempts(story)
    called = {call["release"] for call in facts.calls(story.site.record)}
    again = comparing.done_before(before, called)
    story.check("P4", "calls for releases whose receipt was known", "none", verdict.names(again))
    gone = comparing.releases_lacking(before, store)
    story.check("P12", "releases that disappeared", "none", verdict.names(gone))
    owners = comparing.unfinished(store)
    story.check("P12", "unfinished work without an owner", 0, owners.pop("", 0))
    story.facts["unresolved"] = owners
