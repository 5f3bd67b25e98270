"""What answers prove, for any answer; and how long to wait."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.replies import (
    DAY,
    Answer,
    Miss,
    Parcel,
    Result,
    backoff,
    judge_asked,
    judge_sent,
    printable,
    retry_after,
)

ID = "rel_" + "0123456789" * 4
DIGEST = "ab" * 32
PARCEL = Parcel(ID, 1, b"{}", DIGEST)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=8), PLAIN, max_size=3)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "release": st.just(ID) | JSON,
        "state": st.sampled_from(["done", "pending", "refused", "void", "unknown"]) | JSON,
        "digest": st.just(DIGEST) | JSON,
        "receipt": JSON,
        "detail": st.text() | JSON,
    },
)
BODIES = st.binary(max_size=200) | FIELDS.map(lambda fields: json.dumps(fields).encode())
HEADERS = st.dictionaries(
    st.sampled_from(["location", "retry-after", "content-type", "content-encoding"]),
    st.text(max_size=60) | st.sampled_from(["application/json", "identity"]),
)
HEARD = st.one_of(
    st.builds(Answer, st.integers(100, 999), HEADERS, st.none() | BODIES, st.text()),
    st.builds(Miss, st.booleans(), st.text()),
)


def object_in(answer):
    try:
        fields = json.loads(answer.content)
    except (ValueError, TypeError, RecursionError):
        return {}
    return fields if isinstance(fields, Mapping) else {}


@given(HEARD)
def test_any_answer_to_a_delivery_becomes_a_bounded_reply(heard):
    reply = judge_sent(heard, PARCEL, NOW, printable)
    assert len(reply.evidence) < 600
    assert f"{reply.evidence}{reply.digest}{reply.receipt}".isprintable()
    if reply.result in {Result.DONE, Result.REFUSED} and reply.status in range(200, 300):
        fields = object_in(heard)
        assert fields.get("release") in (None, ID)
        assert fields.get("digest") in (None, DIGEST)
        assert fields.get("state") in (None, reply.result)
    if reply.result is Result.NOT_SENT:
        assert not heard.sent
    assert reply.result not in {Result.NOT_FOUND, Result.VOID, Result.FAILED}


@given(HEARD)
def test_any_answer_to_a_question_becomes_a_bounded_reply(heard):
    reply = judge_asked(heard, ID, DIGEST, NOW, printable)
    assert len(reply.evidence) < 900
    assert f"{reply.evidence}{reply.digest}{reply.receipt}".isprintable()
    if reply.result not in {Result.FAILED, Result.NOT_FOUND, Result.UNKNOWN}:
        fields = object_in(heard)
        assert (fields["release"], fields["state"]) == (ID, reply.result)
        assert fields.get("digest") in (None, DIGEST)
    assert reply.result not in {Result.NOT_SENT, Result.LIMITED, Result.REDIRECTED}


@given(
    st.integers(-5, 10**9),
    st.floats(0, 1e300),
    st.floats(0, 1e300),
    st.floats(0, 1, exclude_max=True),
)
def test_backoff_is_never_longer_than_its_cap(attempt, base, cap, chance):
    assert 0 <= backoff(attempt, base, cap, chance) <= min(cap, backoff(attempt, base, cap, 1.0))


def test_backoff_doubles_up_to_its_cap_and_spreads_over_all_of_it():
    waits = [backoff(attempt, 1.0, 60.0, 1.0) for attempt in (1, 2, 3, 6, 7, 5000)]
    assert waits == [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
    assert backoff(3, 1.0, 60.0, 0.25) == 1.0
    assert backoff(3, 1.0, 60.0, 0.0) == 0.0
    assert backoff(0, 1.0, 60.0, 1.0) == 1.0


@given(st.text(max_size=80) | st.integers().map(str) | st.datetimes().map(format_datetime))
def test_any_retry_after_is_nothing_or_at_most_a_day(value):
    wait = retry_after(value, NOW)
    assert wait is None or 0 <= wait <= DAY


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("", None), ("0", 0.0), ("120", 120.0), (" 5 ", 5.0), ("86401", DAY),
        ("9" * 200, DAY), ("9" * 5000, None), ("-1", None), ("1.5", None), ("1e3", None),
        ("٣", None), ("nan", None), ("5, 10", None), ("next week", None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW + timedelta(days=90), usegmt=True), DAY),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        ("Sunday, 01-Mar-26 12:00:30 GMT", 30.0), ("Sun Mar  1 12:00:30 2026", 30.0),
        ("Sun, 32 Mar 2026 12:00:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value, seconds):
    assert retry_after(value, NOW) == seconds
