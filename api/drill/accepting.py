"""Accepting: documents, repeats and reuse, a delayed entry, and kills between store and journal."""

from __future__ import annotations

import base64
import signal
from contextlib import suppress
from hashlib import sha256
from typing import Any

from api.drill import facts
from api.drill.notebook import moment
from api.drill.site import ended
from api.drill.story import Story
from api.drill.struck import MARK
from journal.entry import Entry, Envelope, Outcome, Predecessor, body_of, seal
from journal.errors import EngineError

DOCUMENTS = ("plain", "lost", "struck", "called", "normal", "cancelled")
CONTRACT = "contract/delayed"
DELAYED = 41
"""The revision that arrives after its successor."""


def document(name: str) -> str:
    """A document of the drill."""
    return f"document/{name}"


def accept(story: Story) -> None:
    """Accept documents, looking into the journal's file right after each answer."""
    with story.step("P1", "accept documents"):
        for name in DOCUMENTS:
            _submit(story, name)
        for name in DOCUMENTS[1:]:
            story.must(f"approve-{name}", document(name), "approve", version="1")
            _see_journalled(story, f"approve-{name}")
    if story.wants("P6"):
        with story.step("P6", "repeat an operation, and use its ID for something else"):
            _repeat(story)


def control(story: Story) -> None:
    """Entries of control, so that there is one in their middle."""
    with story.step("P9", "create tokens, which are entries of control"):
        for name in ("first", "second"):
            status, _ = story.site.ask("POST", "tokens", {"role": "reader", "name": name})
            story.check("P9", f"the {name} token is created", 201, status)


def _submit(story: Story, name: str) -> None:
    digest = sha256(name.encode()).hexdigest()
    body = {"title": name, "recipient": f"{name}@example.org", "digest": digest}
    story.must(f"submit-{name}", document(name), "submit", body=body)
    _see_journalled(story, f"submit-{name}")


def _see_journalled(story: Story, operation: str) -> None:
    """The journal's file has to hold what was just acknowledged, and so has the store's."""
    told = story.notebook.told[operation]
    in_journal = in_store = False
    with suppress(EngineError):
        in_journal = facts.journal_holds(story.journal, told["digest"])
        in_store = facts.head(story.store, told["entity"]) is not None
    if not (in_journal and in_store):
        missing = "journal" if in_store else "store"
        found = f"{operation} was acknowledged and is not in the {missing}"
        story.judge("P1", "acknowledged after the journal", "in both", found, held=False)
    story.facts["seen"] = story.facts.get("seen", 0) + 1


def _repeat(story: Story) -> None:
    item = story.notebook.sent["submit-plain"]
    story.check("P6", "the same operation again", 200, story.send(item))
    other = {**item, "body": {"title": "another"}}
    status, answer = story.site.ask("POST", "decisions", other)
    story.check("P6", "its ID for something else is refused", 422, status)
    story.check("P6", "the refusal names what differs", ["body"], answer.get("differing"))


# Sealed entries that arrive out of order.


def seal_out_of_order(story: Story) -> None:
    """An approval whose entry is delayed past its cancellation: 42 arrives before 41."""
    with story.step("P5", "append revision 42, a cancellation, before 41, the approval"):
        force = story.site.ask("GET", "status")[1]
        chain = _chain(force["tenant"], force["history"], force["generation"])
        story.facts["sealed"] = chain[0]
        _append(story, chain[: DELAYED - 1])
        answer = _append(story, chain[DELAYED:])
        boundary = answer.get("durable_through")
        story.check("P5", "the boundary stays before the gap", DELAYED - 1, boundary)
        held = story.site.ask("GET", f"entities/{CONTRACT}/gate")[1]
        gap = f"revision {DELAYED} is missing"
        found = f"{held.get('gate')}: {'; '.join(held.get('reasons', ()))}"
        good = held.get("gate") == "held" and gap in found
        story.judge("P5", "the gate of the entity with the gap", f"held: {gap}", found, held=good)
        story.check("P5", "the gate before the gap, too", "held", _gate(story, DELAYED - 1))
        other = story.decide("beside-a-gap", document("beside-a-gap"), "submit", body={})
        story.check("P5", "another entity goes on", 201, other)
        answer = _append(story, [chain[DELAYED - 1]])
        boundary = answer.get("durable_through")
        story.check("P5", "the delayed entry closes the gap", DELAYED + 1, boundary)
        story.check("P5", "the order of the decisions is kept", "cancelled", answer.get("state"))
        story.check("P5", "the delayed approval permits nothing", "held", _gate(story, DELAYED))


def _gate(story: Story, revision: int) -> str | None:
    """What the gate says of a revision of the entity."""
    answer = story.site.ask("GET", f"entities/{CONTRACT}/gate?revision={revision}")[1]
    return answer.get("gate")


def _chain(tenant: str, history: str, generation: int) -> list[Entry]:
    """42 decisions of one entity, as its caller seals them; the last two approve and cancel."""
    actions = ["noted"] * (DELAYED - 1) + ["approved", "cancelled"]
    chain: list[Entry] = []
    for revision, action in enumerate(actions, 1):
        now = moment()
        before = chain[-1] if chain else None
        envelope = Envelope(
            action=action,
            actor=None,
            at=now,
            body=body_of(b"", "application/octet-stream"),
            entity=CONTRACT,
            generation=generation,
            history=history,
            lifecycle="1",
            operation=f"contract-{revision}",
            outcome=Outcome(None, action),
            predecessor=None
            if before is None
            else Predecessor(before.digest, history, revision - 1),
            principal=None,
            recorded=now,
            releases=(),
            revision=revision,
            sequence=revision,
            tenant=tenant,
            v=1,
            version="1",
        )
        chain.append(seal(envelope, b""))
    return chain


def _append(story: Story, chain: list[Entry]) -> dict[str, Any]:
    """Append sealed entries; the answer for the last one."""
    items = [
        {"envelope": entry.text.decode(), "body": base64.b64encode(entry.body).decode()}
        for entry in chain
    ]
    status, answer = story.site.ask("POST", "entries", {"entries": items})
    story.check("P5", f"{len(chain)} sealed entries are taken", 200, status)
    answered: list[dict[str, Any]] = answer.get("entries") or [{}]
    return answered[-1]


# Kills.


def strike(story: Story, service: Any) -> None:
    """Kill the service between store and journal, and a command between journal and answer.

    ``service`` was started to be struck at `stored`.
    """
    from api.drill.struck import POINTS

    stored, journalled = f"{MARK}stored-1", f"{MARK}journalled-1"
    with story.step("P1", f"kill -9 the service {POINTS['stored'].sentence}"):
        status = story.decide(stored, document("a"), "submit", body={"title": "a"})
        story.check("P1", "a service that is killed acknowledges nothing", 0, status)
        story.check("P1", "it died of the kill", -signal.SIGKILL, ended(service))
    item = {"operation": journalled, "entity": document("b"), "action": "submit"}
    story.notebook.send(item)
    with story.step("P1", f"kill -9 a command {POINTS['journalled'].sentence}"):
        arguments = ("--operation", journalled, "--entity", document("b"), "--action", "submit")
        ran = story.site.run("accept", *arguments, point="journalled")
        story.notebook.miss(journalled, ran.why)
        story.check(
            "P1", "a command that is killed acknowledges nothing", (-9, ""), (ran.code, ran.out)
        )
        held = [entry for entry in facts.entries(story.journal) if entry.operation == stored]
        story.check("P1", "what the kill left in the store is handed off first", 1, len(held))


def settle(story: Story) -> None:
    """Repeat what nobody was told the fate of: each ends as one decision."""
    with story.step("P1", "repeat the operations that were not answered"):
        for operation in sorted(story.notebook.unanswered):
            status = story.send(story.notebook.sent[operation])
            story.check("P6", f"{operation} is known when it is repeated", 200, status)
