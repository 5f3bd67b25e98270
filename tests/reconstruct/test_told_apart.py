"""Damage in the journal's file is found by verify and by plan, told apart, and lets nothing out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal import reading
from journal.entry import digest_of
from journal.errors import HistoryIncomplete, NotFound, UnrewindError
from journal.history import Flaw, Link, examine
from reconstruct import verification
from reconstruct.describing import describe
from tests.reconstruct.cuts import apply, cut, damage, flipped, removed, reopen, swapped
from tests.reconstruct.scenes import query
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings
from tests.support.sealing import HISTORY, OTHER_HISTORY, Caller, link, predecessor_of, sealed
from tests.support.tenants import operation

PAYMENT = "payment/1"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """A store that lost a payment of four revisions, with a release that nobody has claimed."""
    made = Town(lane_settings(tmp_path))
    try:
        made.put("case/before", 1)
        made.settle()
        made.keep(tmp_path / "old")
        made.release(PAYMENT)
        for _ in range(2):
            made.accept(operation(PAYMENT, "approve", version="1"))
        made.put("case/after", 1)
        made.settle()
        yield made
    finally:
        made.close()


DAMAGES: dict[str, tuple[Any, str, set[str]]] = {
    "a bit flipped": (lambda _: flipped(PAYMENT, 3), "mismatch", {"mismatch"}),
    "an entry removed": (lambda _: removed(PAYMENT, 3), "gap", {"gap"}),
    "an entity removed": (
        lambda _: f"DELETE FROM entries WHERE entity = '{PAYMENT}'",
        "gap",
        {"gap"},
    ),
    "a predecessor swapped": (lambda town: swapped(town, PAYMENT, 3), "orphan", {"orphan"}),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_p10_damage_is_found_by_verify_and_plan_told_apart_and_nothing_is_released(
    town: Town, tmp_path: Path, what: str
) -> None:
    make, flaw, kinds = DAMAGES[what]
    damage(town, tmp_path, make(town))
    report = verification.verify(town.settings)
    found = {item.kind for item in report.findings} - {"rewound", "head"}
    assert found == kinds
    plan = town.plan()
    assert plan.exceptions
    lines = describe(plan)
    if what == "an entity removed":
        assert [item.finding().kind for item in plan.lost] == [flaw]
        assert any(line.startswith("gap: sequences 2 to 5") for line in lines)
    else:
        (item,) = plan.incomplete
        where = 4 if what == "an entry removed" else 3
        assert (item.entity, str(item.flaw), item.revision) == (PAYMENT, flaw, where)
        assert any(line.startswith("incomplete") and flaw in line for line in lines) or (
            flaw == "mismatch" and any("does not" in line or "not the" in line for line in lines)
        )
    for step in (apply, reopen):
        step(town)
        try:
            assert town.claim("pay").permits == []
        except UnrewindError:
            assert step is apply
    if what == "an entity removed":
        with pytest.raises(NotFound):
            town.do(reading.read_entity, PAYMENT, None)
    else:
        with pytest.raises(HistoryIncomplete):
            town.permit_again(PAYMENT)


@pytest.mark.parametrize("named", ["first", "second", None])
def test_r7_of_two_lineages_the_parent_link_and_the_digest_choose_and_nothing_is_guessed(
    named: str | None,
) -> None:
    root = sealed(b"", operation="root")
    lineages = {
        name: sealed(
            name.encode(),
            operation=name,
            revision=2,
            predecessor=predecessor_of(root),
            history=history,
        )
        for name, history in (("first", HISTORY), ("second", OTHER_HISTORY))
    }
    links: list[Link] = [link(root), *(link(entry) for entry in lineages.values())]
    if named is not None:
        chosen = lineages[named]
        successor = sealed(b"", operation="after", revision=3, predecessor=predecessor_of(chosen))
        links.append(link(successor))
    for order in (links, links[::-1]):
        chain = examine(order)
        # Ambiguity is refused: neither side is followed.
        assert chain.boundary.revision == (1 if named is None else 3)
        assert [(found.flaw, found.first) for found in chain.breaks] == [(Flaw.FORK, 2)]
    # One that names the right digest in another history, or at another revision, chooses nothing.
    if named is not None:
        before = predecessor_of(lineages[named])
        for other in (
            {"history": "ab" * 16},
            {"revision": 1},
        ):
            astray = sealed(
                b"",
                operation="astray",
                revision=3,
                predecessor=msgspec.structs.replace(before, **other),
            )
            chain = examine([*links[:3], link(astray)])
            assert chain.boundary.revision == 1


def test_h3_an_entry_is_acknowledged_by_its_digest_at_its_place_and_by_no_count(
    tmp_path: Path,
) -> None:
    """The journal is further than the entry's place, with another one there."""
    town = Town(lane_settings(tmp_path))
    try:
        caller = town.caller(sequenced=True)
        entries = caller.chain("contract/1", 3)
        town.append(*entries)
        other = Caller(caller.history, sequenced=True)
        other.heads["contract/1"] = entries[0]
        lost = other.seal("contract/1", "other")
        with pytest.raises(UnrewindError) as refused:
            town.append(lost)
        assert refused.value.members["stored"] == entries[1].digest
        assert town.append(entries[1])[0].outcome == "duplicate"
    finally:
        town.close()


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("decided", [False, True])
def test_r7_a_replay_follows_the_lineage_that_its_successors_name_or_neither(
    town: Town, tmp_path: Path, *, decided: bool, anew: bool
) -> None:
    """The order of the two in the journal says nothing: the one that came first is no better."""
    town.put("case/gone", 1)
    for number in range(4):
        town.put("case/forked", number)
    town.put("case/after", 2)
    town.settle()
    at = 3 if decided else 4
    file = town.settings.journal_file
    text, body = query(
        file,
        "SELECT envelope, body FROM entries WHERE entity = 'case/forked' AND revision = ?",
        at,
    )[0]
    position, sequence = query(
        file, "SELECT position, sequence FROM entries WHERE entity = 'case/gone'"
    )[0]
    fields = json.loads(text)
    fields |= {"history": "ef" * 16, "operation": "rival", "sequence": sequence}
    forged = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    digest = bytes.fromhex(digest_of(forged.encode()))
    columns = "position, stream, sequence, history, entity, revision, operation, digest"
    insert = (
        f"INSERT INTO entries ({columns}, envelope, body) VALUES"
        " (?, 'decisions', ?, ?, 'case/forked', ?, 'rival', ?, ?, ?)"
    )
    values = (position, sequence, bytes.fromhex("ef" * 16), at, digest, forged, body)
    damage(town, tmp_path, "DELETE FROM entries WHERE entity = 'case/gone'", (insert, values))
    if anew:
        town.close()
        town.settings.store_file.unlink()
        town.open()
    boundary = 4 if decided else 3
    (item,) = town.plan().incomplete
    assert (item.entity, str(item.flaw), item.revision) == ("case/forked", "fork", at)
    assert item.durable_through == boundary
    apply(town)
    heads = "SELECT revision, data FROM unrewind_entities WHERE entity = 'case/forked'"
    row = town.sql(heads)
    assert row[0][0] == boundary
    assert json.loads(row[0][1])["value"] == boundary - 1
    reopen(town)
    with pytest.raises(HistoryIncomplete):
        town.put("case/forked", "refused")
    # Settled, the lineage that was chosen goes on; with none to choose, both are dropped.
    apply(town)
    done = cut(town, "case/forked")
    assert (done.through, len(done.dropped)) == (boundary, 1 if decided else 2)
    assert [each.kind for each in done.dropped] == (["fork"] if decided else ["decision"] * 2)
    reopen(town)
    assert town.put("case/forked", "goes on").revision == boundary + 1
    digest_before = town.digest()
    town.settle()
    town.restore(tmp_path / "old")
    assert town.recover().incomplete == []
    assert town.digest() == digest_before
