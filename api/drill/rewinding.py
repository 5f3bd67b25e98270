"""Rewinding: a faulty migration, a restored snapshot, and a service that has to notice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from api.drill import elder, facts
from api.drill.accepting import document
from api.drill.site import Hung, ended
from api.drill.story import Story
from reconstruct.verification import verify

ALTERED = document("plain")
_FAULT = (
    "UPDATE unrewind_entities SET data = '{\"title\": \"migrated\"}', state = 'approved'"
    f" WHERE entity = '{ALTERED}'"
)


def keep_elder(story: Story) -> None:
    """A writer that has judged an operation and not yet committed it."""
    with story.step("P7", "let a writer judge an operation and stand still before its commit"):
        arguments = (str(story.site.config), "elder-1", document("elder"), "submit")
        child = story.site.start("-m", "api.drill.elder", *arguments, name="elder")
        story.site.wait_for(child, elder.PREPARED)
        story.facts["elder"] = child


def stop_service(story: Story, service: Any) -> None:
    """Kill the service, and note in which state the store then is."""
    with story.step("P2", "kill -9 the service"):
        service.kill()
        ended(service)
    with story.step("P11", "hand off what waits, and note the store's state digest"):
        ran = story.site.run("status")
        facts_of = ran.json or {}
        story.facts["history"] = facts_of.get("history")
        report = verify(story.settings)
        story.check("P2", "store and journal agree before the rewind", "clean", report.verdict)
        story.digests["before"] = report.state_digest
        story.facts["before"] = facts.newest(story.journal)


def alter(story: Story) -> None:
    """A migration gone wrong: one row of the store is altered by SQL."""
    with story.step("P8", "alter a row of the store by SQL"):
        facts.alter(story.store, _FAULT)
        report = verify(story.settings)
        named = [finding.entity for finding in report.findings if finding.entity == ALTERED]
        story.check("P8", "the altered row is found, by name", [ALTERED], named[:1])


def restore(story: Story) -> None:
    """Put the snapshot back; the migration goes wrong in it again."""
    folder = story.site.folder
    history = story.facts.get("history") or _history(folder / "snapshot")
    tenant = story.settings.tenant
    story.command(
        "P2",
        "restore the store from the snapshot",
        "restore",
        str(folder / "snapshot"),
        "--confirm-tenant",
        tenant,
        "--confirm-history",
        history,
    )
    with story.step("P8", "alter the same row of the restored store"):
        facts.alter(story.store, _FAULT)


def _history(snapshot: Path) -> str:
    manifest = json.loads((snapshot / "snapshot.json").read_text())
    history: str = manifest["place"]["history"]
    return history


def notice(story: Story) -> Any:
    """Start the service over the rewound store: it acknowledges nothing and says why."""
    with story.step("P8", "start the service over the rewound store"):
        service = story.site.serve()
    with story.step("P8", "send an operation to the rewound service"):
        status = story.decide("while-rewound", document("while-rewound"), "submit", body={})
        story.check("P8", "an operation sent to the rewound tenant is refused", 503, status)
        told = story.site.ask("GET", "status")[1]
        story.check("P8", "its status names the verdict", "rewound", told.get("verdict"))
        story.check("P8", "its stage", "closed", told.get("stage"))
        read, _ = story.site.ask("GET", f"entities/{document('lost')}")
        story.check("P8", "its entities are not shown", 503, read)
        if story.facts["before"] != facts.newest(story.journal):
            story.judge("P8", "no decision is journalled", "none", "one was", held=False)
    if not story.wants("P8") and service.poll() is not None:
        raise Hung("the service ended")
    return service
