"""Continuity: how far a history can be relied on, and what is wrong beyond that."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.entry import Predecessor
from journal.history import Break, Flaw, Head, Link, examine, follows
from tests.support.sealing import HISTORY, OTHER_HISTORY, Caller, link


def chain(length: int, history: str = HISTORY, start: Link | None = None) -> list[Link]:
    """Links that follow each other, from revision 1 or after ``start``."""
    links: list[Link] = []
    before = start
    for _ in range(length):
        revision = 1 if before is None else before.revision + 1
        named = None
        if before is not None:
            named = Predecessor(before.digest, before.history, before.revision)
        before = Link(revision, history, f"{history[:4]}-{revision}", named)
        links.append(before)
    return links


def rival_of(stored: Link, digest: str = "rival") -> Link:
    return Link(stored.revision, OTHER_HISTORY, digest, stored.predecessor)


LENGTHS = st.integers(1, 12)


@given(LENGTHS, st.randoms(use_true_random=False))
def test_a_whole_chain_is_durable_to_its_end_in_any_order(
    length: int, shuffler: random.Random
) -> None:
    links = chain(length)
    shuffled = list(links)
    shuffler.shuffle(shuffled)
    found = examine(shuffled)
    assert found.complete
    assert found.boundary == Head(length, HISTORY, links[-1].digest)


@given(st.data(), LENGTHS)
def test_a_missing_link_lowers_the_boundary_to_before_it(data: st.DataObject, length: int) -> None:
    links = chain(length)
    lost = data.draw(st.integers(1, length))
    kept = [item for item in links if item.revision != lost]
    found = examine(kept)
    assert found.boundary.revision == lost - 1
    wanted = () if lost == length else (Break(Flaw.GAP, lost, lost),)
    assert found.breaks == wanted


@given(st.data(), LENGTHS, st.randoms(use_true_random=False))
def test_any_loss_gives_the_same_answer_in_any_order_and_never_passes_a_gap(
    data: st.DataObject, length: int, shuffler: random.Random
) -> None:
    links = chain(length)
    kept = data.draw(st.lists(st.sampled_from(links), unique_by=lambda item: item.revision))
    rivals = data.draw(st.lists(st.sampled_from(links), unique_by=lambda item: item.revision))
    mixed = kept + [rival_of(item, f"rival-{item.revision}") for item in rivals]
    found = examine(mixed)
    shuffler.shuffle(mixed)
    assert examine(mixed) == found
    held = {item.revision for item in mixed}
    missing = min(set(range(1, length + 2)) - held)
    assert found.boundary.revision < missing
    assert all(flaw.first <= flaw.last for flaw in found.breaks)
    gaps = {
        n
        for flaw in found.breaks
        if flaw.flaw is Flaw.GAP
        for n in range(flaw.first, flaw.last + 1)
    }
    assert gaps == set(range(1, max(held, default=0))) - held


@given(st.data(), LENGTHS)
def test_a_fork_that_no_successor_settles_stops_the_boundary_before_it(
    data: st.DataObject, length: int
) -> None:
    links = chain(length)
    rival = rival_of(links[-1])
    found = examine([*links, rival])
    assert found.boundary.revision == length - 1
    assert found.breaks == (
        Break(Flaw.FORK, length, length, tuple(sorted((links[-1].digest, "rival")))),
    )
    both = [*links, rival, *chain(1, HISTORY, links[-1]), *chain(1, OTHER_HISTORY, rival)]
    assert examine(both).boundary.revision == length - 1


@given(st.data(), st.integers(2, 12))
def test_a_fork_that_a_successor_settles_is_reported_and_lowers_nothing(
    data: st.DataObject, length: int
) -> None:
    links = chain(length)
    forked = data.draw(st.integers(1, length - 1))
    found = examine([*links, rival_of(links[forked - 1])])
    assert found.boundary == examine(links).boundary
    assert [(flaw.flaw, flaw.first, flaw.last) for flaw in found.breaks] == [
        (Flaw.FORK, forked, forked)
    ]
    assert not found.complete


@given(st.data(), st.integers(2, 12))
def test_a_link_that_names_another_predecessor_stops_the_boundary(
    data: st.DataObject, length: int
) -> None:
    links = chain(length)
    at = data.draw(st.integers(2, length))
    before = links[at - 2]
    wrong = data.draw(
        st.sampled_from(
            [
                Predecessor("another", before.history, before.revision),
                Predecessor(before.digest, OTHER_HISTORY, before.revision),
                Predecessor(before.digest, before.history, before.revision - 1),
            ]
        )
    )
    links[at - 1] = Link(at, HISTORY, links[at - 1].digest, wrong)
    found = examine(links)
    assert found.boundary.revision == at - 1
    assert found.breaks == (Break(Flaw.ORPHAN, at, at, (links[at - 1].digest,)),)


def test_a_chain_goes_on_across_histories() -> None:
    old = chain(3)
    new = chain(2, OTHER_HISTORY, old[-1])
    assert examine([*new, *old]).boundary == Head(5, OTHER_HISTORY, new[-1].digest)


def test_an_examination_from_a_head_takes_what_follows_it_alone() -> None:
    links = chain(5)
    start = Head(3, HISTORY, links[2].digest)
    assert examine(links, start).boundary.revision == 5
    assert examine(links[4:], start).breaks == (Break(Flaw.GAP, 4, 4),)
    other = Head(3, HISTORY, "another")
    assert examine(links, other).breaks[0].flaw is Flaw.ORPHAN
    assert examine((), start).boundary == start


def test_gaps_name_their_range() -> None:
    links = chain(9)
    found = examine([links[0], links[4], links[8]])
    assert found.boundary.revision == 1
    assert found.breaks == (Break(Flaw.GAP, 2, 4), Break(Flaw.GAP, 6, 8))


def test_a_first_revision_that_names_a_predecessor_is_no_beginning() -> None:
    wrong = Link(1, HISTORY, "d", Predecessor("x", HISTORY, 0))
    assert examine([wrong]).boundary.revision == 0
    assert examine([wrong]).breaks[0].flaw is Flaw.ORPHAN


FIRST, SECOND, THIRD = chain(3)
AT_TWO = Head(2, HISTORY, SECOND.digest)


@pytest.mark.parametrize(
    ("head", "following", "wanted"),
    [
        (Head(), FIRST, None),
        (Head(1, HISTORY, FIRST.digest), SECOND, None),
        (AT_TWO, THIRD, None),
        (Head(), SECOND, Flaw.GAP),
        (AT_TWO, SECOND, Flaw.FORK),
        (AT_TWO, FIRST, Flaw.FORK),
        (AT_TWO, Link(3, HISTORY, "d", None), Flaw.FORK),
        (AT_TWO, Link(3, HISTORY, "d", Predecessor("x", HISTORY, 2)), Flaw.ORPHAN),
        (Head(2, OTHER_HISTORY, SECOND.digest), THIRD, Flaw.ORPHAN),
    ],
)
def test_how_a_link_stands_to_a_head(head: Head, following: Link, wanted: Flaw | None) -> None:
    assert follows(head, following) == wanted


def test_the_same_entry_twice_is_not_a_fork() -> None:
    entries = Caller().chain("contract/1", 3)
    links = [link(entry) for entry in entries]
    assert examine([*links, links[1], links[2]]) == examine(links)
