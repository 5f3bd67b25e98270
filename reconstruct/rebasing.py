"""Rebasing: the control entry with which a healed journal begins anew, and what goes with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from journal import decrees
from journal.control import REBASE, Control
from journal.detection import Verdict
from journal.entry import Entry
from journal.errors import Refused
from journal.formats import FORMAT
from journal.log import FlawRow
from journal.record import Record
from reconstruct.fencing import at_stage
from reconstruct.remains import Broken, HealingSurvey, Loss, told


def check_loss(survey: HealingSurvey, accepted: str | None) -> None:
    """Refuse what would be lost, unless it is named; in sentences that say what is known."""
    if survey.loss is None or accepted == survey.loss.name:
        return
    named = "" if accepted is None else f"the loss is not named {accepted}. "
    raise Refused(f"{named}{'; '.join(told(survey))}", loss=msgspec.to_builtins(survey.loss))


def format_entries(record: Record, control: Control) -> list[Entry]:
    """What keeps earlier code, which heeds no witness, from a journal that was healed."""
    if control.needs >= FORMAT:
        return []
    reason = "the journal was healed, which earlier formats do not heed"
    operation = f"control-{record.clock.fresh()}"
    return [decrees.format_entry(control, FORMAT, reason, operation, record.clock.now())]


def facts_of(survey: HealingSurvey) -> dict[str, Any]:
    """A survey as the control entry keeps it."""
    return {
        "reason": "the journal was rolled back and is healed from its store",
        "verdict": str(Verdict.JOURNAL_REWOUND),
        "detail": survey.detail,
        "journal": msgspec.to_builtins(survey.journal),
        "store": msgspec.to_builtins(survey.store),
        "witness": msgspec.to_builtins(survey.witness),
        "healed": {
            "control": survey.control,
            "decisions": survey.decisions,
            "first": survey.first,
            "last": survey.last,
        },
        "others": survey.others,
        "loss": _doubted(survey),
        "highest": survey.highest,
    }


def rebase(
    record: Record,
    control: Control,
    generation: int,
    facts: dict[str, Any],
    principal: str | None,
    action: str = REBASE,
) -> Entry:
    """The control entry that closes the tenant over a journal with a new beginning."""
    return decrees.change(
        control,
        action,
        at_stage(control, generation),
        facts,
        f"control-{record.clock.fresh()}",
        record.clock.now(),
        principal,
    )


def _doubted(survey: HealingSurvey) -> dict[str, Any]:
    """The loss as the entry keeps it: where it is known, every open release is to be doubted.

    One stands after every healing: what was journalled after the witness looked is not known. But
    the store commits first: a commitment that it lacks was lost by both, and the witness tells.
    """
    loss = survey.loss or Loss("", [], [], parted=False)
    named = {"name": None} if survey.loss is None else {"name": loss.name}
    return {**msgspec.to_builtins(loss), **named, "known": survey.loss is not None}


def abandoned_anew(control: Iterable[Entry]) -> set[str]:
    """Entities whose abandonment comes back with these entries: its flaws were settled by it."""
    found: set[str] = set()
    for entry in control:
        if entry.envelope.action == "abandon":
            found.add(str(msgspec.json.decode(entry.body)["entity"]))
    return found


def flaws_of(broken: Iterable[Broken], now: str) -> list[FlawRow]:
    """What holds entities that a decision is missing of until the recovery has looked at them."""
    return [
        FlawRow(
            entity=each.entity,
            flaw=each.flaw,
            first=each.revision,
            last=each.revision,
            digests=(),
            durable_through=each.through,
            holds=1,
            since=now,
            detail=f"revision {each.revision} does not continue revision {each.through}",
        )
        for each in broken
    ]
