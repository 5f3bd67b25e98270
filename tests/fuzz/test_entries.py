"""Envelopes from anybody: taken with one meaning, or refused in one line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal import entry as entries
from journal.entry import Entry, Release
from journal.errors import Invalid
from journal.release import report_of
from tests.fuzz.mutating import DEPTH, FUZZED, deep, restructured, spoiled, taken
from tests.journal import independent
from tests.soak.processes import LONG
from tests.support.sealing import OTHER_HISTORY, envelope_of, predecessor_of, sealed

if LONG:
    pytestmark = pytest.mark.soak

FIRST = sealed(b'{"value": 1}', actor="somebody", version="1")
SECOND = sealed(
    b"",
    predecessor=predecessor_of(FIRST),
    revision=2,
    history=OTHER_HISTORY,
    sequence=9007199254740991,
    version="ü \u2028 \U0001f600",
    releases=(
        Release(None, "ab" * 32, "rel_1", "delivery", None, "a@b", "1"),
        Release("rel_0", None, "rel_2", "post", "bank", None, None),
    ),
    operation="op/2 %",
)
WHOLE = st.sampled_from([FIRST, SECOND])


def judged(text: bytes, body: bytes) -> Entry | None:
    """What is taken means exactly its bytes, here and in the independent reading."""
    found = taken(entries.admit, text, body, by=Invalid)
    if found is not None:
        again = entries.seal(found.envelope, body)
        assert (again.text, again.digest) == (text, found.digest)
        assert independent.check(text, body) == found.digest
        assert entries.admit(again.text, again.body) == found
    # What is stored is read more leniently: a later version's fields stay where they are.
    stored = taken(entries.read, text, body, by=Invalid)
    assert stored is None or (stored.text, stored.body) == (text, body)
    assert found is None or stored == found
    return found


@FUZZED
@given(WHOLE, st.data())
def test_spoiled_bytes_are_taken_as_they_are_or_refused(whole: Entry, data: Any) -> None:
    judged(data.draw(spoiled(st.just(whole.text))), whole.body)


@FUZZED
@given(WHOLE, st.data())
def test_a_spoiled_body_is_refused(whole: Entry, data: Any) -> None:
    body = data.draw(spoiled(st.just(whole.body)))
    assert (judged(whole.text, body) is None) == (body != whole.body)


@FUZZED
@given(WHOLE, st.data())
def test_other_structures_are_taken_in_one_form_or_refused(whole: Entry, data: Any) -> None:
    fields = data.draw(restructured(st.just(json.loads(whole.text))))
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    judged(text.encode(errors="surrogatepass"), whole.body)


@FUZZED
@given(st.data())
def test_other_spellings_of_the_same_envelope_are_refused(data: Any) -> None:
    """One meaning has one form: spaces, escapes, exponents and orders of keys are another."""
    fields = json.loads(SECOND.text)
    names = data.draw(st.permutations(list(fields)))
    text = json.dumps(
        {name: fields[name] for name in names},
        ensure_ascii=data.draw(st.booleans()),
        separators=data.draw(st.sampled_from([(",", ":"), (", ", ": "), (",\n", ":\t")])),
    ).encode()
    assert (judged(text, SECOND.body) is not None) == (text == SECOND.text)


@pytest.mark.parametrize("shape", [b"[", b'{"a":', b'{"releases":[', b'{"v":2,"x":['])
def test_a_depth_that_nobody_can_follow_is_refused(shape: bytes) -> None:
    for text in (deep(shape), deep(shape) + b"]" * DEPTH):
        assert judged(text, b"") is None


@pytest.mark.parametrize(
    "text",
    [
        FIRST.text.replace(b'"revision":1', b'"revision":1.0'),
        FIRST.text.replace(b'"revision":1', b'"revision":1e0'),
        FIRST.text.replace(b'"revision":1', b'"revision":-0'),
        FIRST.text.replace(b'"revision":1', b'"revision":' + b"1" * 100_000),
        FIRST.text.replace(b'"actor":"somebody"', b'"actor":"somebody","actor":"another"'),
        FIRST.text.replace(b"somebody", b"\\ud800"),
        FIRST.text.replace(b"somebody", b"\xed\xa0\x80"),
        FIRST.text.replace(b"somebody", b"some\\u0062ody"),
        FIRST.text[:-1] + b',"\\n\\u2028x":1}',
        FIRST.text + b" ",
        b"\xef\xbb\xbf" + FIRST.text,
        FIRST.text + FIRST.text,
        b"",
        b"null",
    ],
)
def test_what_other_parsers_take_in_different_ways_is_refused(text: bytes) -> None:
    assert text != FIRST.text
    assert judged(text, FIRST.body) is None


@FUZZED
@given(st.data())
def test_a_report_is_one_or_is_refused(data: Any) -> None:
    whole = b'{"release":"rel_1","lease":4294967297,"worker":"w","ended":true}'
    found = taken(report_of, data.draw(spoiled(st.just(whole))), by=Invalid)
    if found is not None:
        assert report_of(msgspec.json.encode(found)) == found


@FUZZED
@given(st.data())
def test_names_are_taken_or_refused(data: Any) -> None:
    value = data.draw(st.text() | spoiled(st.just(b"document/inv-2041")).map(_as_text))
    kind = taken(entries.check_entity, value, by=Invalid)
    if kind is not None:
        assert value.startswith(f"{kind}/")
        assert envelope_of(entity=value).entity == value
        text = entries.seal(envelope_of(entity=value), b"").text
        assert entries.admit(text, b"").envelope.entity == value
    name = taken(entries.check_tenant, value, by=Invalid)
    assert name is None or value.isascii()


@FUZZED
@given(st.data())
def test_a_time_has_one_form(data: Any) -> None:
    whole = st.sampled_from([b"2026-03-14T09:26:53Z", b"2026-03-14t09:26:53.5+13:00"])
    value = _as_text(data.draw(spoiled(whole)))
    moment = taken(entries.parse_time, "at", value, by=Invalid)
    if moment is not None:
        entries.check_time("at", moment)
        assert entries.parse_time("at", moment) == moment


def _as_text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")
