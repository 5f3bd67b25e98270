"""Recovering: every step killed once and run again, until the tenant decides and has no backlog."""

from __future__ import annotations

import json
import time
from typing import Any

from api.drill import facts
from api.drill.accepting import document
from api.drill.releasing import PARCEL, WORKER
from api.drill.site import Hung, until
from api.drill.story import Story
from api.drill.town import HOUSE, PUSHED
from api.drill.wire import Unanswered
from reconstruct.verification import verify

OPEN = "open"
_ATTEMPTS = 3


def fence(story: Story) -> None:
    """Begin: from here on nothing older decides anything."""
    story.times["begun"] = time.monotonic()
    _killed_first(story, "begin", "recover", "begin", "--reason", "a drill")
    ran = story.command("P7", "begin the recovery", "recover", "begin", "--reason", "a drill")
    story.check("P7", "it is fenced", True, (ran.json or {}).get("safe_to_restore"))


def _killed_first(story: Story, point: str, *arguments: str) -> None:
    """Kill a step once before it is done; only where that is part of what is checked."""
    if story.wants("P11"):
        story.strike(point, *arguments)


def rebuild(story: Story) -> None:
    """Plan and apply, twice: the state that was lost is there again, whatever was interrupted."""
    _killed_first(story, "plan", "recover", "plan")
    ran = story.command("P2", "plan", "recover", "plan", codes=(0, 1))
    story.facts["plan"] = plan_of(ran.json or {})
    _killed_first(story, "apply", "recover", "apply")
    # A kill may have changed what is left to do, and so the plan: apply makes its own.
    story.command("P2", "apply", "recover", "apply")
    _same_state(story, "after apply")
    if story.wants("P11"):
        story.command("P11", "apply once more", "recover", "apply")
        _same_state(story, "after apply, run again")


def plan_of(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan says, in numbers."""
    listed = ("rebuild", "local_only", "incomplete")
    counts = {name: len(plan.get(name) or ()) for name in listed}
    return {"missing": plan.get("missing"), **counts}


def limit_of(story: Story, plan: dict[str, Any]) -> tuple[str, ...]:
    """What has to be said where a plan undoes more than the settings allow."""
    undone = plan.get("undo") or 0
    if not isinstance(undone, int) or undone <= story.settings.max_undo:
        return ()
    confirmed = ("--confirm-tenant", story.settings.tenant)
    history = ("--confirm-history", str(plan.get("history")))
    return ("--max-undo", str(undone), *confirmed, *history)


def _same_state(story: Story, when: str) -> None:
    with story.step("P11", f"compute the state digest {when}"):
        report = verify(story.settings)
        story.digests[when] = report.state_digest
        same = report.state_digest == story.digests["before"]
        found = "the same" if same else f"{report.state_digest} ({report.verdict})"
        wanted = f"the same as before the rewind, {story.digests['before']}"
        story.judge("P11", f"the state digest {when}", wanted, found, held=same)


def reconcile(story: Story) -> None:
    """Ask the receiver what became of what was under way, until nothing is left to ask about."""
    story.site.tell_receiver(mute=False)
    _killed_first(story, "reconcile", "recover", "reconcile")
    told: dict[str, Any] = {}
    left = _ATTEMPTS
    while left and not told.get("complete"):
        ran = story.command("P4", "reconcile", "recover", "reconcile", codes=(0, 1))
        told, left = ran.json or {}, left - 1
    story.facts["reconciled"] = {name: told.get(name) for name in ("counts", "left")}
    story.check("P4", "every release is reconciled", True, told.get("complete"))


def reopen(story: Story) -> None:
    """Reopen for decisions, and wait for the running service to take them."""
    _killed_first(story, "reopen", *_REOPEN, "--to", "internal")
    story.command("P2", "reopen for decisions", *_REOPEN, "--to", "internal")
    with story.step("P2", "wait for the running service to take decisions"):
        until("the service decides again", lambda: _decides(story))
        story.times["safe"] = time.monotonic()


def consume(story: Story) -> None:
    """Run the commands that waited: none of them is of the version that was cancelled."""
    with story.step("P7", "run the internal commands that waited"):
        claim = {"worker": WORKER, "operation": "claim-house", "limit": 100}
        _, answer = story.site.ask("POST", f"lanes/{HOUSE}/claim", claim)
        permits: list[dict[str, Any]] = answer.get("permits") or []
        stale = [p["id"] for p in permits if p["entity"] == document("cancelled")]
        story.check("P7", "commands of the cancelled version that may run", [], stale)
        for permit in permits:
            said = {"lease": permit["lease"], "outcome": "confirmed", "worker": WORKER}
            story.site.ask("POST", f"work/{permit['id']}/outcome", said)


_REOPEN = ("recover", "reopen")


def let_out(story: Story) -> None:
    """Let out the releases of one lane, at a rate; then, when they have ended well, everything."""
    stage = ("--to", "external", "--lanes", PUSHED, "--rate", "20")
    story.command("P4", "let out the releases of one lane", *_REOPEN, *stage)
    with story.step("P4", "wait for the backlog to clear"):
        until("every release has ended", lambda: not _waiting(story))
        story.times["clear"] = time.monotonic()
        rows = facts.work(story.store).values()
        ends = {row.entity: row.status for row in rows if row.lane == PUSHED}
        for name, end in _ENDS.items():
            if document(name) in ends:
                story.check("P4", f"how the release {name} ends", end, ends[document(name)])
    ran = story.command("P2", "reopen altogether", *_REOPEN)
    story.check("P2", "the stage that reopening reaches", OPEN, (ran.json or {}).get("stage"))


def _decides(story: Story) -> bool:
    return story.decide("after-recovery", document("after-recovery"), "submit", body={}) in {
        200,
        201,
    }


_ENDS = {
    "struck": "done",
    "called": "done",  # cancelled after its commitment: what the receiver has done stays done
    "lost": "done",
    "normal": "done",
    "cancelled": "cancelled",
}


def _waiting(story: Story) -> list[str]:
    return [
        row.id
        for row in facts.work(story.store).values()
        if row.effect == "external" and row.entity != PARCEL and not row.over
    ]


# What is of the old generation.


def try_old_work(story: Story) -> None:
    """What was prepared before the recovery tries to go on."""
    _old_writer(story)
    _old_permit(story)
    _stale_command(story)


def _old_writer(story: Story) -> None:
    child = story.facts.pop("elder", None)
    if child is None:
        return
    with story.step("P7", "let the old writer commit and append what it has in hand"):
        try:
            out, _ = child.communicate("go\n", timeout=60)
            told = json.loads(out)
        except ValueError:
            raise Hung("the old writer said nothing") from None
        for port in ("store", "journal"):
            held = str(told[port]).startswith("refused")
            story.judge(
                "P7", f"the old writer's batch in the {port}", "refused", told[port], held=held
            )
        held = not facts.journal_holds(story.journal, told["digest"])
        found = "not there" if held else "there"
        story.judge("P7", "its decision in the journal", "not there", found, held=held)


def _old_permit(story: Story) -> None:
    permit = story.facts.get("permit")
    if permit is None:
        return
    with story.step("P7", "let the worker go on with its old permit"):
        path = f"releases/{permit['id']}"
        beat = {"lease": permit["lease"], "step": "calling"}
        status, _ = story.site.ask("POST", f"{path}/heartbeat", beat)
        story.check("P7", "the old permit allows no call", 409, status)
        before = facts.newest(story.journal)
        said = {"lease": permit["lease"], "outcome": "failed", "worker": WORKER}
        status, answer = story.site.ask("POST", f"{path}/outcome", said)
        kept = (status, answer.get("observed"))
        story.check("P7", "its report is evidence and no decision", (202, True), kept)
        story.check("P7", "the journal's order has not moved", before, facts.newest(story.journal))


def _stale_command(story: Story) -> None:
    """A message that was queued for the approved version is still on its way to a consumer."""
    with story.step("P7", "let a consumer ask whether a queued message still holds"):
        told = story.notebook.told.get("release-cancelled", {})
        path = f"entities/{document('cancelled')}/gate?revision={told.get('revision')}"
        answer = story.site.ask("GET", path)[1]
        story.check("P7", "the gate of the cancelled version", "held", answer.get("gate"))


def account(story: Story) -> None:
    """Ask the ledger: each operation has one fate, and what has no end has an owner and a date."""
    ran = story.command("P12", "list what became of every operation", "operations", codes=(0, 1))
    items = (ran.json or {}).get("items") or []
    fates = {item["operation"]: item.get("fate") or {} for item in items}
    absent = story.notebook.told.keys() - fates.keys()
    story.check("P12", "acknowledged operations without a fate", [], sorted(absent))
    strange = {fate.get("fate") for fate in fates.values()} - _FATES
    story.check("P12", "fates that are none", [], sorted(map(str, strange)))
    open_ones = {name: fate for name, fate in fates.items() if fate.get("fate") == "unresolved"}
    unowned = [name for name, fate in open_ones.items() if not (fate["owner"] and fate["deadline"])]
    story.check("P12", "unresolved operations without owner and deadline", [], unowned)
    story.facts["unresolved"] = {
        name: f"{fate['owner']}, until {fate['deadline']}" for name, fate in open_ones.items()
    }


def look_back(story: Story) -> None:
    """What the recovery left behind: its evidence, and its report."""
    ran = story.command("P10", "hash the evidence of the recovery anew", "evidence", "--verify")
    bundles = (ran.json or {}).get("bundles") or []
    story.judge("P10", "bundles of evidence", "some", str(len(bundles)), held=bool(bundles))
    ran = story.command("P12", "print the recovery's report", "recover", "report", codes=(0, 1))
    told = ran.json or {}
    story.check("P12", "unresolved beyond their deadlines", 0, told.get("overdue"))
    seconds = {name: (told.get(name) or {}).get("seconds") for name in ("safe", "drained")}
    story.facts["report"] = {**seconds, "unresolved": told.get("unresolved")}


_FATES = {"completed", "cancelled", "rejected", "unresolved"}


def repeat_everything(story: Story) -> None:
    """Every operation again: what was acknowledged has its first answer, whatever was lost."""
    with story.step("P2", "repeat every operation"):
        for operation, item in list(story.notebook.sent.items()):
            known = operation in story.notebook.told
            try:
                status = story.send(item)
            except Unanswered as error:
                raise Hung(str(error)) from error
            if known and status != 200:  # noqa: PLR2004 - HTTP
                story.judge("P2", f"{operation} again", "200", str(status), held=False)
            elif not known and status not in {200, 201}:
                story.judge(
                    "P12", f"{operation}, never answered", "decided", str(status), held=False
                )
