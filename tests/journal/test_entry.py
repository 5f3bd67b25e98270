"""The entry format: what is sealed is read back, and by others too."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import entry as entries
from journal.entry import Body, Envelope, Outcome, Predecessor, Release
from journal.errors import Invalid
from tests.journal import independent
from tests.support.sealing import HISTORY, envelope_of, sealed

CHARACTERS = st.characters(codec="utf-8")
NAMED = st.characters(codec="utf-8", exclude_categories=["Cc"])


def short(text: str, limit: int) -> bool:
    return len(text.encode()) <= limit


def free(limit: int = entries.MAX_STRING) -> st.SearchStrategy[str]:
    return st.text(CHARACTERS, max_size=40).filter(lambda text: short(text, limit))


def name(limit: int) -> st.SearchStrategy[str]:
    return st.text(NAMED, min_size=1, max_size=40).filter(lambda text: short(text, limit))


HEX32 = st.binary(min_size=16, max_size=16).map(bytes.hex)
HEX64 = st.binary(min_size=32, max_size=32).map(bytes.hex)
NUMBER = st.integers(1, entries.MAX_INTEGER)
KIND = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
MOMENT = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(  # noqa: DTZ001
    lambda moment: entries.time_of(moment.replace(tzinfo=UTC)).rjust(27, "0")
)
RELEASES = st.builds(
    Release,
    corrects=st.none() | name(256),
    digest=st.none() | HEX64,
    id=name(256),
    lane=name(128),
    receiver=st.none() | name(256),
    recipient=st.none() | free(),
    version=st.none() | free(),
)


@st.composite
def envelopes(draw: st.DrawFn, body: bytes) -> Envelope:
    """Any envelope that the format allows, for these body bytes."""
    revision = draw(st.just(1) | NUMBER)
    before = None
    if revision > 1:
        before = Predecessor(draw(HEX64), draw(HEX32), revision - 1)
    releases = tuple(draw(st.lists(RELEASES, max_size=3)))
    described = entries.body_of(body, draw(name(128)))
    return Envelope(
        action=draw(name(128)),
        actor=draw(st.none() | free()),
        at=draw(MOMENT),
        body=described,
        entity=f"{draw(KIND)}/{draw(name(512))}",
        generation=draw(NUMBER),
        history=draw(HEX32),
        lifecycle=draw(name(128)),
        operation=draw(name(256)),
        outcome=Outcome(draw(st.none() | HEX64), draw(name(128))),
        predecessor=before,
        principal=draw(st.none() | free()),
        recorded=draw(MOMENT),
        releases=releases,
        revision=revision,
        sequence=draw(st.none() | NUMBER),
        tenant=draw(KIND),
        v=1,
        version=draw(free() if releases else st.none() | free()),
    )


@given(st.data(), st.binary(max_size=64))
def test_any_legal_envelope_is_sealed_to_what_the_independent_check_reads(
    data: st.DataObject, body: bytes
) -> None:
    envelope = data.draw(envelopes(body))
    entries.check(envelope)
    entry = entries.seal(envelope, body)
    assert independent.check(entry.text, body) == entry.digest == entries.digest_of(entry.text)
    assert independent.canonicalise(json.loads(entry.text)) == entry.text
    assert entries.admit(entry.text, body) == entry


@given(st.data(), st.integers(0, 10_000), st.integers(0, 7))
def test_p10_no_flipped_bit_is_read_as_the_same_entry(
    data: st.DataObject, position: int, bit: int
) -> None:
    entry = sealed(b'{"total":1}', actor="A", sequence=4)
    at = position % (len(entry.text) + len(entry.body))
    joined = bytearray(entry.text + entry.body)
    joined[at] ^= 1 << bit
    text, body = bytes(joined[: len(entry.text)]), bytes(joined[len(entry.text) :])
    try:
        found = entries.read(text, body)
    except Invalid:
        return
    assert found.digest != entry.digest


@pytest.mark.parametrize("name", Envelope.__struct_fields__)
def test_every_field_is_under_the_digest(name: str) -> None:
    entry = sealed(b"{}", actor="A")
    fields: dict[str, Any] = json.loads(entry.text)
    other = {**fields, name: "something else"}
    assert entries.digest_of(independent.canonicalise(other)) != entry.digest


def test_structs_are_declared_in_the_order_of_rfc_8785() -> None:
    for kind in (Envelope, Body, Outcome, Predecessor, Release):
        assert list(kind.__struct_fields__) == sorted(kind.__struct_fields__)


def without(fields: dict[str, Any], path: tuple[str, ...]) -> bytes:
    inner = fields
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return independent.canonicalise(fields)


@pytest.mark.parametrize(
    "path",
    [
        ("actor",),
        ("predecessor",),
        ("principal",),
        ("sequence",),
        ("version",),
        ("outcome", "data"),
        ("lifecycle",),
        ("releases",),
    ],
    ids=".".join,
)
def test_a_later_version_that_lacks_a_field_of_version_1_is_refused(path: tuple[str, ...]) -> None:
    fields = {**json.loads(sealed().text), "v": 2}
    assert entries.read(independent.canonicalise(fields), b"").envelope.v == 2
    text = without(fields, path)
    with pytest.raises(ValueError, match="missing"):
        independent.check(text, b"")
    with pytest.raises(Invalid):
        entries.read(text, b"")


def test_version_1_never_passes_as_a_later_one() -> None:
    fields = json.loads(sealed().text)
    for wrong in (
        {**fields, "v": 1, "note": None},
        {**fields, "v": True, "note": None},
        {**fields, "v": "2", "note": None},
        {**fields, "v": 2.5, "note": None},
    ):
        with pytest.raises(Invalid):
            entries.read(json.dumps(wrong, separators=(",", ":"), sort_keys=True).encode(), b"")


def test_deep_nesting_in_an_envelope_is_refused() -> None:
    text = b'{"v":2,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(Invalid):
        entries.read(text, b"")


MOMENTS = {
    "2026-03-14T09:26:53Z": "2026-03-14T09:26:53.000000Z",
    "2026-03-14t09:26:53.1z": "2026-03-14T09:26:53.100000Z",
    "2026-03-14 11:26:53.123456+02:00": "2026-03-14T09:26:53.123456Z",
    "2026-03-14T09:26:53-00:30": "2026-03-14T09:56:53.000000Z",
    "2024-02-29T23:59:59.999999+00:00": "2024-02-29T23:59:59.999999Z",
}


@pytest.mark.parametrize("given_time", MOMENTS)
def test_a_time_with_any_offset_is_brought_to_the_one_form(given_time: str) -> None:
    found = entries.parse_time("at", given_time)
    assert found == MOMENTS[given_time]
    entries.check_time("at", found)


@pytest.mark.parametrize(
    "wrong",
    [
        "2026-03-14T09:26:53.1234567Z",
        "2026-03-14T09:26:53.1234560Z",
        "2026-03-14T09:26:53",
        "2026-03-14",
        "2026-02-30T00:00:00Z",
        "2026-03-14T24:00:00Z",
        "2016-12-31T23:59:60Z",
        "2026-03-14T09:26:53+25:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-03-14T09:26:53Z\n",
        "",
    ],
)
def test_h11_finer_or_impossible_times_are_refused(wrong: str) -> None:
    with pytest.raises(Invalid) as refused:
        entries.parse_time("at", wrong)
    assert refused.value.members == {"field": "at"}


def test_h11_a_moment_early_in_time_keeps_four_digits_of_its_year() -> None:
    moment = entries.time_of(datetime(7, 1, 1, tzinfo=UTC))
    assert moment == "0007-01-01T00:00:00.000000Z"
    entries.check_time("at", moment)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ud83d\u0041"])
def test_a_string_with_a_lone_surrogate_is_refused_at_the_door(text: str) -> None:
    with pytest.raises(Invalid):
        entries.check_name("operation", text, 256)
    with pytest.raises(Invalid):
        entries.check_string("actor", text)


def test_the_genesis_digest_belongs_to_no_entry() -> None:
    assert entries.digest_of(b"") != entries.GENESIS
    assert len(entries.GENESIS) == len(sealed().digest)


def test_a_release_needs_the_version_that_it_releases() -> None:
    release = Release(
        corrects=None,
        digest=None,
        id="r",
        lane="mail",
        receiver=None,
        recipient=None,
        version=None,
    )
    with pytest.raises(Invalid) as refused:
        entries.check(envelope_of(releases=(release,)))
    assert refused.value.members == {"field": "version"}
    entries.check(envelope_of(releases=(release,), version="3"))
    with pytest.raises(Invalid):
        entries.check(envelope_of(releases=(release,) * 65, version="3"))


def test_a_predecessor_stands_one_revision_before() -> None:
    before = Predecessor("a" * 64, HISTORY, 1)
    entries.check(envelope_of(revision=2, predecessor=before))
    for wrong in ({"revision": 3, "predecessor": before}, {"revision": 2}, {"predecessor": before}):
        with pytest.raises(Invalid) as refused:
            entries.check(envelope_of(**wrong))
        assert refused.value.members == {"field": "predecessor"}


def test_only_the_bytes_that_were_given_are_hashed() -> None:
    body = b'{ "total" : 1.0 }\n'
    entry = sealed(body)
    assert entries.read(entry.text, body).body == body
    again = msgspec.json.encode(msgspec.json.decode(body))
    with pytest.raises(Invalid):
        entries.read(entry.text, again)
