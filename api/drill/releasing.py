"""Releasing: effects outside, with kills and a lost reply between the journal and the receiver."""

from __future__ import annotations

from typing import Any

from api.drill import facts
from api.drill.accepting import document
from api.drill.copying import embedded
from api.drill.site import Hung, until
from api.drill.story import Story
from api.drill.town import PUSHED

PARCEL = "parcel/old-permit"
WORKER = "drill-worker"


def release(story: Story, name: str) -> None:
    """Permit the release of a document's approved version."""
    story.must(f"release-{name}", document(name), "release", version="1")


def permit_and_cancel(story: Story) -> None:
    """A release that is permitted, copied into a snapshot, and cancelled after that."""
    with story.step("P2", "permit the release of one document"):
        release(story, "cancelled")
    snapshot = story.site.folder / "snapshot"
    story.command("P2", "take a snapshot of the store", "snapshot", str(snapshot))
    with story.step("P2", "cancel that document"):
        # What a backup of both would have taken now: put back together they agree.
        story.facts["then"] = embedded(story.settings, story.site.folder / "then")
        story.must("cancel-cancelled", document("cancelled"), "cancel")


def send(story: Story) -> None:
    """Kill the dispatcher at two handoffs, then let one reply get lost and one arrive."""
    lost = document("lost")
    story.site.tell_receiver(mute=True, drop=[lost])
    for name, point in (("struck", "committed"), ("called", "accepted")):
        with story.step("P3", f"permit the release of {document(name)}"):
            release(story, name)
        story.strike(point, "dispatch")
    with story.step("P4", "cancel a document after its release was committed"):
        story.must("cancel-called", document("called"), "cancel")
    with story.step("P4", "send one release whose reply is lost, and one whose reply arrives"):
        release(story, "lost")
        release(story, "normal")
        child = story.site.start(
            "-m", "api.cli", "dispatch", "--config", str(story.site.config), name="dispatch"
        )
        story.site.wait_for(child, "unrewind dispatches ")
        wanted = {document("normal"): {"done"}, lost: {"unknown", "done"}}
        try:
            until("the replies are taken in", lambda: _stand(story, wanted))
        finally:
            child.kill()
            child.wait()
        calls = facts.calls(story.site.record)
        executed = sum(call["entity"] == lost and call["executed"] for call in calls)
        story.check("P4", "the receiver did the release whose reply was lost", 1, executed)


def _stand(story: Story, wanted: dict[str, set[str]]) -> bool:
    rows = facts.work(story.store).values()
    return all(
        any(row.entity == entity and row.lane == PUSHED and row.status in statuses for row in rows)
        for entity, statuses in wanted.items()
    )


def take_permit(story: Story) -> None:
    """A worker takes a permit, which it will still hold when the generation has been raised."""
    with story.step("P7", "give a worker a permit"):
        story.must("send-parcel", PARCEL, "send", version="1")
        claim = {"worker": WORKER, "operation": "claim-old"}
        status, answer = story.site.ask("POST", "lanes/hand/claim", claim)
        permits: list[dict[str, Any]] = answer.get("permits") or []
        if len(permits) != 1:
            raise Hung(f"the claim was answered {status}: {answer.get('detail', answer)}")
        story.facts["permit"] = permits[0]
