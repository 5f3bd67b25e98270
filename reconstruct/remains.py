"""Remains: what is left of a journal on each side, and what is lost, in facts and in sentences."""

from __future__ import annotations

from msgspec import Struct

from journal.entry import GENESIS
from journal.history import Flaw
from journal.log import Look
from journal.witness import Witness


class Known(Struct, frozen=True):
    """How far one side reaches: its last control entry and its last decision with its digest.

    ``position`` is the number of entries, for a journal.
    """

    control: int
    sequence: int
    history: str | None
    digest: str
    position: int | None = None


class Span(Struct, frozen=True):
    """Sequences, both ends included; ``last`` None: nobody can say how far."""

    first: int
    last: int | None

    @property
    def size(self) -> int:
        """How many they are; 0 where nobody can say."""
        return 0 if self.last is None else self.last - self.first + 1

    def __str__(self) -> str:
        """As a sentence names it."""
        if self.last is None:
            return f"{self.first} and above, nobody knows how far"
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


class Broken(Struct, frozen=True):
    """An entity's first decision of the store that is whole and does not continue the entity.

    ``through`` is the revision through which it is continuous.
    """

    entity: str
    revision: int
    sequence: int
    flaw: Flaw
    through: int


class Loss(Struct, frozen=True):
    """Acknowledged entries that neither store nor journal holds.

    ``name`` is what an operator repeats to accept it: the witness's digest, or that of the store's
    marker. ``parted`` says that the journal went on after it was rolled back, so that what was lost
    cannot be counted. ``others`` is that of ``HealingSurvey``.
    """

    name: str
    decisions: list[Span]
    control: list[Span]
    parted: bool
    others: int | None = 0


class HealingSurvey(Struct, frozen=True):
    """What healing would do, and what it cannot bring back.

    ``journal`` is None when there is no journal file, ``witness`` when nothing is remembered.
    ``control`` and ``decisions`` count what the store gives back, ``first`` to ``last`` are the
    decisions' sequences (0: none) and ``actions`` their kinds. ``others`` is at least how many
    entries that callers sealed themselves, and observations, are lost: those that the witness saw
    and that nobody keeps (None: without a witness nobody can say). What came after it looked is
    never known. ``generation`` is the one that healing puts in force, ``highest`` the highest
    sequence that anybody knows of.
    """

    detail: str
    journal: Known | None
    store: Known | None
    witness: Witness | None
    control: int
    decisions: int
    first: int
    last: int
    actions: dict[str, int]
    broken: list[Broken]
    others: int | None
    loss: Loss | None
    generation: int
    highest: int = 0

    @property
    def exceptions(self) -> int:
        """What an operator should look at before healing: what is not known, always."""
        lost = 0 if self.loss is None else 1
        return 1 + lost + len(self.broken)


def known_of(look: Look) -> Known:
    """How far a journal reaches."""
    last = look.last
    return Known(
        control=look.control,
        sequence=0 if last is None else last.sequence,
        history=None if last is None else last.history,
        digest=GENESIS if last is None else last.digest,
        position=look.position,
    )


def told(survey: HealingSurvey) -> list[str]:
    """A loss in sentences: what each place holds, what is lost, what is not known."""
    loss, witness = survey.loss, survey.witness
    if loss is None:
        return []
    lines = [_reach("the journal", survey.journal), _reach("the store", survey.store)]
    if witness is not None:
        lines.append(
            f"the witness saw {witness.position} entries at {witness.at}: decisions through "
            f"sequence {witness.sequence} ({witness.head}), control through {witness.control}, "
            f"generation {witness.generation}"
        )
    if loss.parted:
        lines.append(
            "the journal went on after it was rolled back: which of the decisions that the witness "
            "saw are lost is not known"
        )
    if loss.decisions:
        spans = ", ".join(str(span) for span in loss.decisions)
        lines.append(
            f"lost: the decisions of sequence {spans}; their operation IDs, their entities and "
            "what they released are not known"
        )
    if loss.control:
        spans = ", ".join(str(span) for span in loss.control)
        lines.append(
            f"lost: control entries {spans}; which tokens were revoked or lanes and actions "
            "stopped in them is not known"
        )
    if loss.others:
        lines.append(
            f"lost: at least {loss.others} entries that callers sealed themselves, or observations"
        )
    lines.append(unknown(survey))
    lines.append(
        "look for a newer copy of the journal or of the store, one is enough; to go on without, "
        f"name the loss: unrewind recover apply --accept-loss {loss.name}"
    )
    return lines


def unknown(survey: HealingSurvey) -> str:
    """What nobody can say of a journal that is healed."""
    what = (
        "what callers sealed, what receivers reported and which tokens were revoked or actions and "
        "lanes stopped"
    )
    if survey.witness is None:
        return f"there is no witness: {what} beyond what journal and store hold is not known"
    return f"not known: {what} after the witness looked, at {survey.witness.at}"


def _reach(who: str, known: Known | None) -> str:
    if known is None:
        return f"{who} is missing"
    entries = "" if known.position is None else f"{known.position} entries, "
    return (
        f"{who} holds {entries}decisions through sequence {known.sequence} ({known.digest}), "
        f"control through {known.control}"
    )
