"""What comes in through the door: cursors, tokens, signatures, IDs, paths, queries, bodies."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import requests
from api.requests import clean_path, shape
from api.routes_callbacks import CallbackRequest
from api.routes_decisions import DecisionRequest
from api.signing import CallbackRefused, check_identity, check_secret, sign, verify_callback
from journal import Operation
from journal.acceptance import check_operation
from journal.control import Role, Token
from journal.entry import JSON_TYPE
from journal.errors import Invalid, SettingsInvalid, UnrewindError
from journal.feed import decode_cursor, encode_cursor
from journal.tokens import authenticate, create_token
from tests.fuzz.mutating import FUZZED, VALUES, deep, passes, restructured, spoiled, taken
from tests.soak.processes import LONG
from tests.support.releases import Yard, lane_settings

if LONG:
    pytestmark = pytest.mark.soak

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"release": "rel_1"}'
_numbers = itertools.count(1)


# Cursors.

SHAPES = [tuple[str, int, str], tuple[str], tuple[int], tuple[str, int, int]]


@FUZZED
@given(data=st.data())
def test_a_cursor_is_ours_or_refused(data: Any) -> None:
    form = data.draw(st.sampled_from(SHAPES))
    whole = encode_cursor("0f" * 16, 41, "ab" * 32).encode()
    made = restructured(st.just(["0f" * 16, 41, "ab" * 32]))
    raw = data.draw(spoiled(st.just(whole)) | made.map(lambda parts: encode_cursor(parts).encode()))
    parts = taken(decode_cursor, raw.decode(errors="replace"), form, by=Invalid)
    if parts is not None:
        assert decode_cursor(encode_cursor(*parts), form) == parts


@pytest.mark.parametrize("form", SHAPES)
@pytest.mark.parametrize(
    "content", [deep(b"["), deep(b'["a",'), deep(b'["",'), b'["a",' + b"1" * 9999]
)
def test_a_cursor_that_no_parser_follows_is_refused(form: Any, content: bytes) -> None:
    text = base64.urlsafe_b64encode(content).decode()
    assert taken(decode_cursor, text, form, by=Invalid) is None


# Signatures.


@FUZZED
@given(data=st.data())
def test_a_callback_is_taken_as_it_was_signed_or_refused(data: Any) -> None:
    whole = sign(SECRET, "msg_1", NOW, BODY)
    headers = dict(whole)
    name = data.draw(st.sampled_from([*headers, "body"]))
    content = BODY
    if name == "body":
        content = data.draw(spoiled(st.just(BODY)))
    else:
        raw = data.draw(spoiled(st.just(headers[name].encode())))
        headers[name] = raw.decode("latin-1")
    verify = partial(verify_callback, now=NOW)
    if taken(verify, SECRET, headers, content, by=CallbackRefused, hides=SECRET) is not None:
        # Only more signatures beside the right one may be there.
        assert content == BODY
        assert all(headers[each] == whole[each] for each in whole if each != "webhook-signature")
        assert whole["webhook-signature"] in headers["webhook-signature"].split(" ")


@FUZZED
@given(data=st.data())
def test_a_secret_is_one_or_refused_without_showing_it(data: Any) -> None:
    text = data.draw(spoiled(st.just(SECRET.encode()))).decode(errors="replace")
    shown = text if len(text) > len(SECRET) // 2 else None
    if passes(check_secret, "NAME", text, by=SettingsInvalid, hides=shown):
        headers = sign(text, "msg_1", NOW, BODY)
        assert verify_callback(text, headers, BODY, now=NOW) == "msg_1"


@FUZZED
@given(st.text(max_size=150))
def test_an_identity_can_be_signed_or_is_refused(identity: str) -> None:
    if passes(check_identity, identity, by=Invalid):
        headers = sign(SECRET, identity, NOW, BODY)
        assert verify_callback(SECRET, headers, BODY, now=NOW) == identity
    else:
        with pytest.raises(Invalid):
            sign(SECRET, identity, NOW, BODY)


# A tenant, for what needs one.


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    made = Yard(lane_settings(tmp_path_factory.mktemp("fuzz")))
    try:
        yield made
        made.finish()
    finally:
        made.close()


@pytest.fixture(scope="module")
def token(yard: Yard) -> str:
    return yard.do(create_token, Role.READER, "a reader")


@FUZZED
@given(data=st.data())
def test_only_a_token_itself_is_one(yard: Yard, token: str, data: Any) -> None:
    text = data.draw(spoiled(st.just(token.encode()))).decode("latin-1")
    found = authenticate(yard.control(), text)
    assert (found is not None) == (text == token)
    assert isinstance(authenticate(yard.control(), token), Token)


BODIES = st.one_of(
    spoiled(st.just(b'{"recipient": "a@b", "due": "2026-01-01T00:00:00Z", "corrects": "rel_1"}')),
    restructured(st.just({"recipient": "a", "digest": "ab" * 32, "due": None, "n": 1})).map(
        msgspec.json.encode
    ),
    VALUES.map(msgspec.json.encode),
    st.sampled_from([deep(b"["), deep(b'{"corrects":'), b"[" * 65 + b"]" * 65, b'"\xff"', b"\x00"]),
)
ACTIONS = [
    *(("case/1", "set"), ("document/1", "submit"), ("account/1", "open"), ("task/1", "start")),
    *(("payment/1", "approve"), ("payment/1", "release"), ("payment/1", "correct")),
]


@FUZZED
@given(
    body=BODIES,
    which=st.sampled_from(ACTIONS),
    kind=st.sampled_from([JSON_TYPE, "text/plain", "application/JSON", ""]),
)
def test_a_body_is_decided_upon_or_refused_and_stops_nobody_else(
    yard: Yard, body: bytes, which: tuple[str, str], kind: str
) -> None:
    """Beside it stands another operation, which gets its own answer."""
    number = next(_numbers)
    entity, action = which
    judge(yard, Operation(f"odd-{number}", entity, action, body=body, body_type=kind, version="1"))


def judge(yard: Yard, odd: Operation) -> None:
    """Take an operation at the door, and decide upon it beside another that is not to notice."""
    settings = yard.settings
    if not passes(check_operation, odd, settings.lifecycles, settings.max_body, by=UnrewindError):
        return
    found, beside = yard.turn(odd, Operation(f"beside-{next(_numbers)}", "case/plain", "set"))
    assert not isinstance(beside, Exception), beside
    if isinstance(found, Exception):
        assert isinstance(found, UnrewindError)
        assert "\n" not in str(found)
    else:
        again = yard.turn(odd)[0]
        assert not isinstance(again, Exception), again
        assert (again.outcome, again.digest) == ("duplicate", found.digest)


@FUZZED
@given(data=st.data())
def test_an_operation_of_any_words_is_decided_upon_or_refused(yard: Yard, data: Any) -> None:
    words = st.text(max_size=20) | st.sampled_from(["case/1", "set", "\0", "\ud800", "x" * 2000])
    number = next(_numbers)
    fields = {
        name: data.draw(words)
        for name in data.draw(
            st.sets(st.sampled_from(["entity", "action", "version", "actor", "at"]))
        )
    }
    whole = {"operation": f"words-{number}", "entity": "case/1", "action": "set", **fields}
    judge(yard, Operation(**whole))


# Requests.


@FUZZED
@given(data=st.data())
def test_a_request_has_the_shape_of_its_call_or_is_refused(data: Any) -> None:
    whole = {
        "operation": "op-1",
        "entity": "document/1",
        "action": "submit",
        "version": "1",
        "body": {"a": [1, 2]},
        "expected_revision": 0,
        "at": "2026-01-01T00:00:00Z",
    }
    for kind, valid in ((DecisionRequest, whole), (CallbackRequest, {"release": "rel_1"})):
        raw = msgspec.json.encode(valid)
        content = data.draw(
            spoiled(st.just(raw))
            | restructured(st.just(valid)).map(msgspec.json.encode)
            | st.sampled_from([deep(b"["), deep(b'{"body":'), raw[:-1] + b"," + raw[1:]])
        )
        taken(shape(kind).read, content, by=Invalid)


@FUZZED
@given(data=st.data())
def test_a_path_has_one_form_or_is_refused(data: Any) -> None:
    raw = data.draw(spoiled(st.just(b"/v1/main/entities/document/inv%2F2041%20a?at=3")))
    path = taken(clean_path, raw, by=Invalid)
    if path is not None:
        assert clean_path(path.encode()) == path


@FUZZED
@given(data=st.data())
def test_a_query_is_read_or_refused(data: Any) -> None:
    raw = data.draw(spoiled(st.just(b"limit=7&after=abc&entity=document/1&at=2026-01-01T00%3A00Z")))
    request: Any = SimpleNamespace(scope={"query_string": raw})
    found = taken(
        lambda: requests.query(
            request,
            limit=requests.positive,
            after=requests.text,
            entity=requests.entity,
            at=requests.text,
        ),
        by=Invalid,
    )
    assert found is None or set(found) == {"limit", "after", "entity", "at"}


@FUZZED
@given(raw=st.binary(max_size=40) | spoiled(st.just(b'"op-\\"1\\""')))
def test_an_idempotency_key_is_read_or_refused(raw: bytes) -> None:
    scope: Any = {"headers": [(b"idempotency-key", raw)]}
    found = taken(requests.idempotency_key, scope, by=Invalid)
    assert found is None or isinstance(found, str)
