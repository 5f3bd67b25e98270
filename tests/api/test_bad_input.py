"""Whatever is wrong with a request is answered with a problem document, and nothing is stored."""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from tests.api.servers import SECONDS, Server, request_of
from tests.support.sealing import Caller

DECISION: dict[str, Any] = {"operation": "bad", "entity": "document/bad", "action": "submit"}
LONG = "x" * 10_240
MANY = 1001


class Bad(NamedTuple):
    """A request that must be refused, and how."""

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str | bytes] = {}  # noqa: RUF012 - never changed
    status: int = 400
    slug: str = "invalid"
    token: str | None = None
    """None: the operator's; "": none at all; else the name of a role, or the token itself."""


def decision(name: str, status: int = 400, slug: str = "invalid", **changes: Any) -> Bad:
    fields = {name: value for name, value in {**DECISION, **changes}.items() if value is not ...}
    return raw(name, json.dumps(fields).encode(), status, slug)


def raw(name: str, body: bytes, status: int = 400, slug: str = "invalid", **headers: Any) -> Bad:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return Bad(name, "POST", "/v1/main/decisions", body, named, status, slug)


def with_body(name: str, body: bytes) -> Bad:
    return raw(name, json.dumps(DECISION).encode()[:-1] + b', "body": ' + body + b"}")


def entries(name: str, content: Any, status: int = 400, slug: str = "invalid") -> Bad:
    return Bad(name, "POST", "/v1/main/entries", json.dumps(content).encode(), {}, status, slug)


def read(name: str, path: str, status: int = 400, slug: str = "invalid") -> Bad:
    return Bad(name, "GET", f"/v1/main/{path}", None, {}, status, slug)


def operator(name: str, path: str, content: Any) -> Bad:
    return Bad(name, "POST", f"/v1/main/{path}", json.dumps(content).encode())


def cursor(*parts: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def auth(name: str, value: str | bytes) -> Bad:
    body = json.dumps(DECISION).encode()
    headers: dict[str, str | bytes] = {"Authorization": value}
    return Bad(name, "POST", "/v1/main/decisions", body, headers, 401, "unauthenticated")


ENTRY = request_of([Caller().seal("contract/bad")])["entries"][0]
GOOD = json.dumps(DECISION).encode()
NO_ID = json.dumps({"entity": "document/bad", "action": "submit"}).encode()

CASES = [
    # The shape of a decision.
    decision("unknown field", colour="red"),
    decision("no operation", operation=...),
    decision("no entity", entity=...),
    decision("no action", action=...),
    decision("operation of the wrong type", operation=7),
    decision("operation null", operation=None),
    decision("entity of the wrong type", entity=["document", "bad"]),
    decision("action of the wrong type", action={"submit": True}),
    decision("version of the wrong type", version=3),
    decision("actor of the wrong type", actor=False),
    decision("at of the wrong type", at=1_700_000_000),
    decision("expected revision of the wrong type", expected_revision="0"),
    decision("expected revision negative", expected_revision=-1),
    decision("expected revision huge", expected_revision=2**63),
    decision("expected revision beyond 64 bits", expected_revision=10**40),
    decision("expected revision a fraction", expected_revision=0.5),
    decision("principal chosen by the caller", principal="somebody"),
    # Names and IDs.
    decision("operation empty", operation=""),
    decision("operation of 10 kB", operation=LONG),
    decision("operation too long in bytes", operation="\U0001f600" * 65),
    decision("operation with a control character", operation="a\x00b"),
    decision("operation with a line break", operation="a\nb"),
    decision("operation with C1", operation="a\x85b"),
    decision("entity empty", entity=""),
    decision("entity without a type", entity="bad"),
    decision("entity without a slash", entity="documents"),
    decision("entity without an ID", entity="document/"),
    decision("entity ID of 10 kB", entity=f"document/{LONG}"),
    decision("entity type upper case", entity="Document/bad"),
    decision("entity type with a dot", entity="doc.ument/bad"),
    decision("entity with a control character", entity="document/\x1b[2J"),
    decision("entity type undeclared", entity="invoice/1"),
    decision("entity type of a caller that owns its store", entity="contract/1"),
    decision("control from outside", entity="control/tenant", action="close"),
    decision("a token from outside", entity="control/token-1", action="create"),
    decision("action empty", action=""),
    decision("action of 10 kB", action=LONG),
    decision("action with a control character", action="submit\x07"),
    decision("version of 10 kB", version=LONG),
    decision("actor of 10 kB", actor=LONG),
    decision("release without a version", entity="document/approved", action="release"),
    # Times.
    decision("at empty", at=""),
    decision("at without an offset", at="2026-01-31T08:15:00"),
    decision("at in nanoseconds", at="2026-01-31T08:15:00.123456789Z"),
    decision("at that is no day", at="2026-02-30T08:15:00Z"),
    decision("at in Arabic digits", at="٢٠٢٦-01-31T08:15:00Z"),
    decision("at before the year 1", at="0001-01-01T00:00:00+23:59"),
    decision("at after the year 9999", at="9999-12-31T23:59:59-23:59"),
    # JSON.
    raw("no body", b""),
    raw("white space", b"  \n"),
    raw("not JSON", b"operation=bad"),
    raw("truncated JSON", GOOD[:-1]),
    raw("truncated string", GOOD[:-3]),
    raw("two documents", GOOD + GOOD),
    raw("a list", b"[" + GOOD + b"]"),
    raw("a string", b'"submit"'),
    raw("null", b"null"),
    raw("byte order mark", b"\xef\xbb\xbf" + GOOD),
    raw("UTF-16", GOOD.decode().encode("utf-16")),
    raw("broken UTF-8", GOOD.replace(b'"bad"', b'"\xff\xfe"')),
    raw("overlong UTF-8", GOOD.replace(b'"bad"', b'"\xc0\x80"')),
    raw("surrogate in UTF-8", GOOD.replace(b'"bad"', b'"\xed\xa0\x80"')),
    raw("lone surrogate escaped", GOOD.replace(b'"bad"', rb'"\ud800"')),
    raw("surrogates in the wrong order", GOOD.replace(b'"bad"', rb'"\udc00\ud800"')),
    raw("raw control character", GOOD.replace(b'"bad"', b'"b\x01ad"')),
    raw("key twice", GOOD[:-1] + b', "operation": "other"}'),
    raw("key twice, once escaped", GOOD[:-1] + rb', "\u006fperation": "other"}'),
    raw("body twice", GOOD[:-1] + b', "body": {"a": 1}, "body": {"a": 2}}'),
    raw("nested deeply", b"[" * 100_000 + b"]" * 100_000),
    raw("nested deeply and open", b'{"operation":' * 100_000),
    # The caller's own body (H9).
    with_body("body with a key twice", b'{"a": 1, "a": 2}'),
    with_body("body with a key twice below", b'{"a": [{"b": 1, "b": 2}]}'),
    with_body("body NaN", b"NaN"),
    with_body("body with NaN", b'{"a": NaN}'),
    with_body("body infinite", b'{"a": -Infinity}'),
    with_body("body beyond a double", b'{"a": 1e999}'),
    with_body("body beyond 2^53", b'{"a": 9007199254740992}'),
    with_body("body beyond 64 bits", b'{"a": -' + b"9" * 100 + b"}"),
    with_body("body of 5,000 digits", b"9" * 5000),
    with_body("body nested deeply", b"[" * 70 + b"]" * 70),
    with_body("body nested very deeply", b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    with_body("body with a lone surrogate", rb'{"a": "\udfff"}'),
    with_body("body with broken UTF-8", b'{"a": "\xff"}'),
    with_body("body with a broken key", b'{"\xff": 1}'),
    with_body("body with a leading zero", b"01"),
    with_body("body with a comma too many", b"[1,]"),
    with_body("body single quoted", b"'a'"),
    # Sizes.
    raw(
        "body over the limit",
        GOOD[:-1] + b', "body": "' + b"x" * 1_048_576 + b'"}',
        413,
        "too-large",
    ),
    raw("request over the limit", b'{"a":"' + b"x" * 8_388_608 + b'"}', 413, "too-large"),
    raw("a length over the limit", b"{", 413, "too-large", Content_Length="99999999999"),
    # Headers.
    raw("form", b"operation=bad", 415, "unsupported-media-type",
        Content_Type="application/x-www-form-urlencoded"),
    raw("plain text", GOOD, 415, "unsupported-media-type", Content_Type="text/plain"),
    raw("Latin-1", GOOD, 415, "unsupported-media-type",
        Content_Type="application/json; charset=latin-1"),
    raw("compressed", GOOD, 415, "unsupported-media-type", Content_Encoding="gzip"),
    raw("key that differs", GOOD, Idempotency_Key="other"),
    raw("key empty", NO_ID, Idempotency_Key=""),
    raw("key of 10 kB", NO_ID, Idempotency_Key=LONG),
    raw("key in broken UTF-8", NO_ID, Idempotency_Key=b"\xff\xfe"),
    raw("key quoted and empty", NO_ID, Idempotency_Key='""'),
    # Who asks.
    Bad("no token", "POST", "/v1/main/decisions", GOOD, {}, 401, "unauthenticated", ""),
    Bad("no token, nothing there", "GET", "/v1/main/operations/none", None, {}, 401,
        "unauthenticated", ""),
    auth("wrong token", "Bearer unr_000000000000_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    auth("garbled token", "Bearer nonsense"),
    auth("token without a secret", "Bearer unr_000000000000"),
    auth("token not ASCII", b"Bearer unr_\xff\xfe_\xf0\x9f\x98\x80"),
    auth("empty token", "Bearer "),
    auth("empty header", ""),
    auth("another scheme", "Basic b3BlcmF0b3I6"),
    auth("long token", f"Bearer unr_{LONG}_{LONG}"),
    Bad("reader decides", "POST", "/v1/main/decisions", GOOD, {}, 403, "forbidden", "reader"),
    Bad("reader decides much", "POST", "/v1/main/decisions/batch", b'{"items":[]}', {}, 403,
        "forbidden", "reader"),
    Bad("reader appends", "POST", "/v1/main/entries", b'{"entries":[]}', {}, 403, "forbidden",
        "reader"),
    Bad("reader recovers", "POST", "/v1/main/recovery/begin", b'{"reason":"x"}', {}, 403,
        "forbidden", "reader"),
    Bad("writer recovers", "POST", "/v1/main/recovery/begin", b'{"reason":"x"}', {}, 403,
        "forbidden", "writer"),
    Bad("writer makes a token", "POST", "/v1/main/tokens", b'{"role":"operator","name":"x"}', {},
        403, "forbidden", "writer"),
    Bad("writer lists tokens", "GET", "/v1/main/tokens", None, {}, 403, "forbidden", "writer"),
    # Paths.
    read("no such path", "nonsense", 404, "not-found"),
    Bad("another tenant", "GET", "/v1/other/status", None, {}, 404, "not-found"),
    Bad("another tenant's decision", "POST", "/v1/other/decisions", GOOD, {}, 404, "not-found"),
    Bad("the root", "GET", "/", None, {}, 404, "not-found"),
    read("escape cut off", "operations/a%2"),
    read("escape of no digits", "entities/document/%zz"),
    read("escape not UTF-8", "entities/document/%ff"),
    read("escaped surrogate", "operations/%ED%A0%80"),
    read("empty operation", "operations/"),
    read("empty entity ID", "entities/document//history"),
    read("slash not escaped", "entities/document/a/b", 404, "not-found"),
    read("operation that is not there", "operations/none", 404, "not-found"),
    read("asking for an operation of 10 kB", f"operations/{LONG}", 404, "not-found"),
    read("operation with NUL", "operations/%00", 404, "not-found"),
    read("entity that is not there", "entities/document/none", 404, "not-found"),
    read("history that is not there", "entities/document/none/history", 404, "not-found"),
    read("entity of an undeclared type", "entities/invoice/1"),
    read("entity of control", "entities/control/tenant"),
    read("history of control", "entities/control/tenant/history"),
    read("gate of control", "entities/control/tenant/gate"),
    read("entity with NUL", "entities/document/a%00b", 404, "not-found"),
    read("problem type", "../../problems/none", 404, "not-found"),
    Bad("PUT", "PUT", "/v1/main/decisions", GOOD, {}, 405, "method-not-allowed"),
    Bad("GET of a post", "GET", "/v1/main/decisions", None, {}, 405, "method-not-allowed"),
    Bad("DELETE of an entity", "DELETE", "/v1/main/entities/document/approved", None, {}, 405,
        "method-not-allowed"),
    Bad("PATCH of a status", "PATCH", "/v1/main/status", b"{}", {}, 405, "method-not-allowed"),
    Bad("a method of no standard", "BREW", "/v1/main/status", None, {}, 405, "method-not-allowed"),
    # Queries.
    read("limit 0", "operations?limit=0"),
    read("limit too large", "operations?limit=1001"),
    read("limit negative", "gaps?limit=-1"),
    read("limit a word", "entries?limit=all"),
    read("limit in Arabic digits", "entries?limit=%D9%A7"),
    read("limit of 5,000 digits", "entries?limit=" + "1" * 5000),
    read("limit empty", "entities?limit="),
    read("limit twice", "entities?limit=1&limit=1"),
    read("unknown parameter", "entities?order=name"),
    read("query cut off", "entities?type=%4"),
    read("query not UTF-8", "entities?type=%ff"),
    read("type upper case", "entities?type=Document"),
    read("cursor of nonsense", "operations?after=nonsense"),
    read("cursor not ASCII", "entries?after=%C3%A9"),
    read("cursor of another shape", f"operations?after={cursor('a')}"),
    read("cursor too long", f"operations?after={cursor(1, 2, 3)}"),
    read("cursor beyond 64 bits", f"operations?after={cursor(2**80)}"),
    read("cursor negative", f"operations?after={cursor(-(2**80))}"),
    read("cursor of the feed beyond 64 bits", f"entries?after={cursor('0' * 32, 2**80, '')}"),
    read("cursor of gaps of another shape", f"gaps?after={cursor(1, 2, 3, 4)}"),
    read("cursor of gaps beyond 64 bits", f"gaps?after={cursor('a', 2**80, '', '')}"),
    read("cursor of an unknown history", f"entries?after={cursor('0' * 32, 1, '0' * 64)}", 410,
         "history-changed"),
    read("at of nonsense", "entities/document/approved?at=yesterday"),
    read("at superscript", "entities/document/approved?at=%C2%B2"),
    read("at revision 0", "entities/document/approved?at=0"),
    read("at revision beyond 2^53", "entities/document/approved?at=9007199254740992"),
    read("first 0", "entities/document/approved/history?first=0"),
    read("first beyond 64 bits", "entities/document/approved/history?first=" + "9" * 30),
    read("gate of revision 0", "entities/document/approved/gate?revision=0"),
    read("gate of a word", "entities/document/approved/gate?revision=newest"),
    read("query of a status", "status?verbose=1"),
    # Batches.
    operator("batch empty", "decisions/batch", {"items": []}),
    operator("batch too long", "decisions/batch", {"items": [DECISION] * MANY}),
    operator("batch without items", "decisions/batch", {}),
    operator("batch of another field", "decisions/batch", {"items": [DECISION], "atomic": True}),
    operator("batch of an object", "decisions/batch", {"items": {"0": DECISION}}),
    # Sealed entries.
    entries("no entries", {"entries": []}),
    entries("too many entries", {"entries": [ENTRY] * MANY}),
    entries("entries missing", {}),
    entries("entry of another field", {"entries": [{**ENTRY, "digest": "0" * 64}]}),
    entries("entry without an envelope", {"entries": [{"body": ""}]}),
    entries("entry a string", {"entries": ["envelope"]}),
    entries("envelope an object", {"entries": [{**ENTRY, "envelope": {}}]}),
    entries("envelope not JSON", {"entries": [{**ENTRY, "envelope": "{"}]}),
    entries("envelope with a blank", {"entries": [{**ENTRY, "envelope": f"{ENTRY['envelope']} "}]}),
    entries("body not base64", {"entries": [{**ENTRY, "body": "*"}]}),
    entries("base64 without padding", {"entries": [{**ENTRY, "body": "YQ"}]}),
    entries("base64 not ASCII", {"entries": [{**ENTRY, "body": "é"}]}),
    entries("another body", {"entries": [{**ENTRY, "body": "YQ=="}]}),
    entries(
        "body of an entry over the limit",
        {"entries": [{**ENTRY, "body": base64.b64encode(b"x" * 1_048_577).decode()}]},
        413,
        "too-large",
    ),
    entries("entry of another tenant", request_of([Caller().seal("contract/b", tenant="other")])),
    entries("an entry of control", request_of([Caller().seal("control/tenant")])),
    entries("an entry of a managed type", request_of([Caller().seal("document/bad")])),
    entries("an entry of an undeclared type", request_of([Caller().seal("invoice/1")])),
    entries("revision 0", request_of([Caller().seal("contract/b", revision=0)])),
    entries("revision beyond 2^53", request_of([Caller().seal("contract/b", revision=2**53)])),
    entries("revision 2 and no predecessor", request_of([Caller().seal("contract/b", revision=2)])),
    entries("entry of an unknown history", {"entries": [ENTRY]}, 409, "stale-generation"),
    # Tokens and recovery.
    operator("role unknown", "tokens", {"role": "root", "name": "x"}),
    operator("name missing", "tokens", {"role": "reader"}),
    operator("name empty", "tokens", {"role": "reader", "name": ""}),
    operator("name of 10 kB", "tokens", {"role": "reader", "name": LONG}),
    operator("name with a control character", "tokens", {"role": "reader", "name": "\x1b]0;"}),
    operator("secret chosen by the caller", "tokens",
             {"role": "reader", "name": "x", "token": "unr_a_b"}),
    Bad("token that is not there", "DELETE", "/v1/main/tokens/none", None, {}, 404, "not-found"),
    operator("no reason", "recovery/begin", {}),
    operator("reason empty", "recovery/begin", {"reason": ""}),
    operator("plan with a field", "recovery/plan", {"force": True}),
    operator("apply with a number", "recovery/apply", {"plan": 7}),
    Bad("apply without begin", "POST", "/v1/main/recovery/apply", b"{}", {}, 409, "refused"),
]  # fmt: skip


class Prepared(NamedTuple):
    """The server, its tokens by role, and where its journal stood before the bad requests."""

    server: Server
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def prepared(shared: Server) -> Iterator[Prepared]:
    tokens = {role: shared.make_token(role) for role in ("reader", "writer")}
    for operation, action in (("good-1", "submit"), ("good-2", "approve")):
        assert shared.decide(operation, "document/approved", action).status == 201
    before, status = shared.position(), shared.get("status").json
    yield Prepared(shared, tokens)
    assert shared.position() == before
    assert shared.get("status").json == status
    assert status["stage"] == "open"
    complaints = set(shared.errors.splitlines())
    assert complaints <= {"WARNING: Invalid HTTP request received."}


def test_there_are_more_than_fifty_kinds() -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 50


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_is_refused_with_a_problem(prepared: Prepared, case: Bad) -> None:
    token = case.token and prepared.tokens.get(case.token, case.token)
    reply = prepared.server.request(case.method, case.path, case.body, case.headers, token=token)
    assert reply.status == case.status, reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["cache-control"] == "no-store"
    assert b"Traceback" not in reply.body
    problem = reply.json
    assert problem["type"] == f"/problems/{case.slug}"
    assert problem["status"] == case.status
    assert problem["instance"] == case.path.partition("?")[0]
    assert problem["detail"]
    assert problem["title"] == prepared.server.request("GET", problem["type"]).json["title"]
    if case.status == 401:
        assert reply.headers["www-authenticate"] == "Bearer"
    if case.status == 405:
        assert reply.headers["allow"]


def test_what_the_server_cannot_even_parse_is_refused(prepared: Prepared) -> None:
    for sent in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
    ):
        with closing(socket.create_connection(("127.0.0.1", prepared.server.port), SECONDS)) as raw:
            raw.sendall(sent)
            answer = raw.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400"), (sent, answer)
        assert b"Traceback" not in answer


def test_a_malformed_item_affects_only_itself(server: Server) -> None:
    bodies = ['{"operation":"a","entity":"case/1","action":"x"}', '"nonsense"', '{"operation":7}',
              '{"operation":"b","entity":"case/1","action":"x","body":{"a":1,"a":2}}',
              '{"operation":"c","operation":"d","entity":"case/1","action":"x"}',
              '{"operation":"","entity":"case/1","action":"x"}',
              '{"operation":"e","entity":"case/1","action":"y"}']  # fmt: skip
    body = ('{"items":[' + ",".join(bodies) + "]}").encode()
    reply = server.request("POST", "/v1/main/decisions/batch", body)
    assert reply.status == 200, reply.body
    items = reply.json["items"]
    assert [item["status"] for item in items] == [201, 400, 400, 400, 400, 400, 201]
    assert {item["problem"]["type"] for item in items[1:-1]} == {"/problems/invalid"}
    assert [item["acceptance"]["revision"] for item in (items[0], items[-1])] == [1, 2]
    assert len(server.get("operations").json["items"]) == 2
