"""Continuity: whether entries of one entity form an unbroken chain.

Pure functions over links. A chain is continuous when each link names the digest, history and
revision of the one before it, across histories too. Everything else has a name: *gap* (a revision
is missing), *fork* (two successors of one predecessor), *mismatch* (bytes that do not hash to their
digest), *orphan* (a link that names a predecessor which the chain excludes).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from journal.entry import Envelope, Predecessor


class Flaw(StrEnum):
    """Why a history is incomplete."""

    GAP = "gap"
    FORK = "fork"
    MISMATCH = "mismatch"
    ORPHAN = "orphan"
    TRUNCATED = "truncated"
    PROJECTION = "projection"
    DIVERGENT = "divergent"


class Link(Struct, frozen=True, gc=False):
    """What continuity needs to know of an entry."""

    revision: int
    history: str
    digest: str
    predecessor: Predecessor | None


class Head(Struct, frozen=True, gc=False):
    """The last link of a continuous chain; revision 0 is the beginning of every chain."""

    revision: int = 0
    history: str = ""
    digest: str = ""


class Break(Struct, frozen=True):
    """One flaw: the first and last revision it concerns, and the digests that show it."""

    flaw: Flaw
    first: int
    last: int
    digests: tuple[str, ...] = ()


class Chain(Struct, frozen=True):
    """A chain's durable boundary (its last continuous link) and every flaw beyond it."""

    boundary: Head
    breaks: tuple[Break, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or in dispute."""
        return not self.breaks


def link_of(envelope: Envelope, digest: str) -> Link:
    """An entry's link."""
    return Link(envelope.revision, envelope.history, digest, envelope.predecessor)


def follows(head: Head, link: Link) -> Flaw | None:
    """How ``link`` stands to ``head``: None when it continues it, else the flaw."""
    if link.revision > head.revision + 1:
        return Flaw.GAP
    if link.revision <= head.revision:
        return Flaw.FORK
    before = link.predecessor
    if head.revision == 0:
        return None if before is None else Flaw.ORPHAN
    if before is None:
        return Flaw.FORK
    if (before.digest, before.history, before.revision) == (
        head.digest,
        head.history,
        head.revision,
    ):
        return None
    return Flaw.ORPHAN


def examine(links: Iterable[Link], start: Head | None = None) -> Chain:
    """Walk the links of one entity and say how far they are continuous and what is wrong beyond.

    Links may come in any order and hold several histories. Where two links stand at one revision,
    the one that the stored successor names is followed and the other is reported as a fork; where
    no successor decides, neither is followed.
    """
    head = start or Head()
    by_revision: dict[int, list[Link]] = {}
    for link in links:
        if link.revision > head.revision:
            here = by_revision.setdefault(link.revision, [])
            if link not in here:
                here.append(link)
    breaks: list[Break] = []
    broken = False
    previous = head.revision
    for revision in sorted(by_revision):
        rivals = by_revision[revision]
        if revision > previous + 1:
            breaks.append(Break(Flaw.GAP, previous + 1, revision - 1))
            broken = True
        previous = revision
        chosen = _choose(rivals, by_revision.get(revision + 1, ()))
        if len(rivals) > 1:
            digests = tuple(sorted(link.digest for link in rivals))
            breaks.append(Break(Flaw.FORK, revision, revision, digests))
        if broken:
            continue
        if chosen is None:
            broken = True
            continue
        flaw = follows(head, chosen)
        if flaw is None:
            head = Head(chosen.revision, chosen.history, chosen.digest)
        else:
            breaks.append(Break(flaw, revision, revision, (chosen.digest,)))
            broken = True
    return Chain(head, tuple(breaks))


def _choose(rivals: Sequence[Link], successors: Sequence[Link]) -> Link | None:
    if len(rivals) == 1:
        return rivals[0]
    named = {
        (link.predecessor.digest, link.predecessor.history, link.predecessor.revision)
        for link in successors
        if link.predecessor
    }
    wanted = [link for link in rivals if (link.digest, link.history, link.revision) in named]
    return wanted[0] if len(wanted) == 1 else None
