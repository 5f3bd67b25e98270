"""Whatever is wrong with a request is answered with a problem document, and nothing is stored."""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from journal.release import release_id
from tests.api.laned import Laned, serving
from tests.api.servers import SECONDS, Server, request_of
from tests.support.sealing import Caller

DECISION: dict[str, Any] = {"operation": "bad", "entity": "document/bad", "action": "submit"}
LONG = "x" * 10_240
MANY = 1001
READY, RUNNING = (
    release_id("main", f"order/{name}", "v1", "transfer", "transfers", None, None)
    for name in ("ready", "running")
)
LEASE = 2**32 + 1
DEAD = "item_mail_dead"
ITEM = {"id": "1", "data": {}}
SIGNED: dict[str, str | bytes] = {
    "webhook-id": "evt_1", "webhook-timestamp": "1700000000", "webhook-signature": "v1,AAAA",
}  # fmt: skip


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


def operator(
    name: str,
    path: str,
    content: Any,
    status: int = 400,
    slug: str = "invalid",
    token: str | None = None,
) -> Bad:
    body = json.dumps(content).encode()
    return Bad(name, "POST", f"/v1/main/{path}", body, {}, status, slug, token)


def outcome(name: str, status: int = 400, slug: str = "invalid", **changes: Any) -> Bad:
    """A report on the release that is under way."""
    said = {"lease": LEASE, "outcome": "confirmed", **changes}
    fields = {name: value for name, value in said.items() if value is not ...}
    return operator(name, f"releases/{RUNNING}/outcome", fields, status, slug)


def heartbeat(name: str, status: int = 400, slug: str = "invalid", **said: Any) -> Bad:
    return operator(name, f"releases/{RUNNING}/heartbeat", said, status, slug)


def claim(name: str, status: int = 400, slug: str = "invalid", **changes: Any) -> Bad:
    """A claim in a lane that has work."""
    said = {"worker": "w", **changes}
    fields = {name: value for name, value in said.items() if value is not ...}
    return operator(name, "lanes/transfers/claim", fields, status, slug)


def work(name: str, items: Any, status: int = 400, slug: str = "invalid", **changes: Any) -> Bad:
    said = {"kind": "count", "items": items, **changes}
    return operator(name, "lanes/stats/work", said, status, slug)


def letters(name: str, status: int = 400, slug: str = "invalid", **said: Any) -> Bad:
    return operator(name, "dead-letters/drain", {"reason": "x", **said}, status, slug)


def refused_role(name: str, path: str, content: Any, token: str) -> Bad:
    return operator(name, path, content, 403, "forbidden", token)


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
    Bad("another tenant", "GET", "/v1/other/status", None, {}, 401, "unauthenticated"),
    Bad("another's decision", "POST", "/v1/other/decisions", GOOD, {}, 401, "unauthenticated"),
    Bad("no path of another tenant", "GET", "/v1/other/nonsense", None, {}, 404, "not-found"),
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
    # What became of a release.
    outcome("outcome missing", outcome=...),
    outcome("outcome unknown to us", outcome="done"),
    outcome("outcome in capitals", outcome="CONFIRMED"),
    outcome("outcome a list", outcome=["confirmed"]),
    outcome("lease missing", lease=...),
    outcome("lease null", lease=None),
    outcome("lease negative", lease=-1),
    outcome("lease 0", lease=0),
    outcome("lease a word", lease=str(LEASE)),
    outcome("lease a fraction", lease=LEASE + 0.5),
    outcome("lease beyond 2^53", lease=2**53),
    outcome("lease beyond 64 bits", lease=10**40),
    outcome("report with an unknown field", status_now="done"),
    outcome("report for another entity", entity="order/ready"),
    outcome("evidence a number", evidence=7),
    outcome("receipt empty", receipt=""),
    outcome("receipt of 10 kB", receipt=LONG),
    outcome("receipt with NUL", receipt="r\x00"),
    outcome("receipt a list", receipt=["r"]),
    outcome("digest too short", digest="ab"),
    outcome("digest in capitals", digest="AB" * 32),
    outcome("digest with a line break", digest="ab" * 32 + "\n"),
    outcome("retry negative", outcome="failed", retry_after=-1),
    outcome("retry beyond a month", outcome="failed", retry_after=1e300),
    outcome("retry a word", outcome="failed", retry_after="soon"),
    outcome("worker of 10 kB", worker=LONG),
    outcome("worker with an escape", worker="\x1b[2J"),
    outcome("execution of the wrong type", execution={}),
    operator("report that is a list", f"releases/{RUNNING}/outcome", [LEASE, "confirmed"]),
    Bad("report with a field twice", "POST", f"/v1/main/releases/{RUNNING}/outcome",
        b'{"lease": 1, "lease": 2, "outcome": "confirmed"}'),
    Bad("report with a query", "POST", f"/v1/main/releases/{RUNNING}/outcome?force=1",
        json.dumps({"lease": LEASE, "outcome": "confirmed"}).encode()),
    operator("report on an ID of 10 kB", f"work/{LONG}/outcome",
             {"lease": LEASE, "outcome": "confirmed"}),
    operator("report on NUL", "work/rel_%00/outcome", {"lease": LEASE, "outcome": "confirmed"}),
    operator("failure of what is not there", "work/rel_0/outcome",
             {"lease": LEASE, "outcome": "failed"}, 404, "not-found"),
    heartbeat("heartbeat without a lease"),
    heartbeat("heartbeat of a negative lease", lease=-LEASE),
    heartbeat("heartbeat beyond 2^53", lease=2**53),
    heartbeat("heartbeat of an unknown field", lease=LEASE, until="never"),
    heartbeat("step empty", lease=LEASE, step=""),
    heartbeat("step of blanks", lease=LEASE, step=" \x00 "),
    heartbeat("step that undoes the one before", lease=LEASE, step="picked up by me"),
    heartbeat("heartbeat of an ended claim", 409, "lease-lost", lease=LEASE - 1),
    operator("heartbeat of what is not there", "releases/rel_0/heartbeat", {"lease": LEASE}, 404,
             "not-found"),
    # By hand.
    operator("cancelling without a reason", f"releases/{READY}/cancel", {}),
    operator("cancelling for an empty reason", f"releases/{READY}/cancel", {"reason": ""}),
    operator("cancelling for 10 kB", f"releases/{READY}/cancel", {"reason": LONG}),
    operator("cancelling with NUL", f"releases/{READY}/cancel", {"reason": "\x00"}),
    operator("cancelling by force", f"releases/{READY}/cancel", {"reason": "x", "force": True}),
    operator("cancelling what is not there", "releases/rel_0/cancel", {"reason": "x"}, 404,
             "not-found"),
    operator("cancelling an item", f"releases/{DEAD}/cancel", {"reason": "x"}),
    operator("settling without a word", f"releases/{READY}/settle", {"evidence": "x"}),
    operator("settling with a number", f"releases/{READY}/settle",
             {"happened": 1, "evidence": "x"}),
    operator("settling without evidence", f"releases/{READY}/settle", {"happened": True}),
    operator("settling what is under way", f"releases/{RUNNING}/settle",
             {"happened": True, "evidence": "x"}, 409, "transition-refused"),
    operator("settling what waits", f"releases/{READY}/settle",
             {"happened": True, "evidence": "x"}, 409, "transition-refused"),
    operator("incident without a reason", f"releases/{READY}/incident", {"evidence": "x"}),
    # Claims.
    claim("claim without a worker", worker=...),
    claim("claim of an empty worker", worker=""),
    claim("claim of a worker of 10 kB", worker=LONG),
    claim("claim of a worker with NUL", worker="a\x00"),
    claim("claim of nothing", limit=0),
    claim("claim of less than nothing", limit=-1),
    claim("claim of too much", limit=257),
    claim("claim of a fraction", limit=1.5),
    claim("claim of a word", limit="all"),
    claim("claim under an empty operation", operation=""),
    claim("claim under an operation of 10 kB", operation=LONG),
    claim("claim under an operation with NUL", operation="a\x00"),
    claim("claim under another's operation", operation="good-1"),
    claim("claim under a number", operation=7),
    claim("claim of an unknown field", entity="order/ready"),
    claim("claim of an execution with a line break", execution="a\nb"),
    claim("claim for an execution of 10 kB", execution=LONG),
    operator("claim of an unknown lane", "lanes/nowhere/claim", {"worker": "w"}, 404, "not-found"),
    operator("claim of a lane of 10 kB", f"lanes/{LONG}/claim", {"worker": "w"}, 404, "not-found"),
    operator("claim of a lane with NUL", "lanes/a%00b/claim", {"worker": "w"}, 404, "not-found"),
    operator("claim of a lane that pushes", "lanes/parcels/claim", {"worker": "w"}, 409, "refused"),
    operator("claim of a lane with a handler", "lanes/hooks/claim", {"worker": "w"}, 409,
             "refused"),
    Bad("claim whose key differs", "POST", "/v1/main/lanes/transfers/claim",
        b'{"worker": "w", "operation": "a"}', {"Idempotency-Key": "b"}),
    # Lanes and work.
    operator("pausing without a reason", "lanes/transfers/pause", {}),
    operator("pausing and discarding", "lanes/transfers/pause", {"reason": "x", "discard": True}),
    operator("pausing with an escape", "lanes/transfers/pause", {"reason": "\x1b[2J"}),
    operator("pausing an unknown lane", "lanes/nowhere/pause", {"reason": "x"}, 404, "not-found"),
    operator("discarding external work", "lanes/transfers/off", {"reason": "x", "discard": True},
             409, "refused"),
    operator("discarding a little", "lanes/stats/off", {"reason": "x", "discard": "some"}),
    operator("discarding without saying so", "lanes/stats/off", {"reason": "x"}, 409, "refused"),
    work("no work", []),
    work("work an object", {"id": "1"}),
    work("too much work", [{**ITEM, "id": str(number)} for number in range(MANY)]),
    work("work of an empty kind", [ITEM], kind=""),
    work("work of a kind of 10 kB", [ITEM], kind=LONG),
    work("work of a kind with NUL", [ITEM], kind="a\x00"),
    work("work of an unknown field", [ITEM], due="2026-01-31T08:15:00Z"),
    work("item without an ID", [{"data": 1}]),
    work("item without data", [{"id": "1"}]),
    work("item with an ID of 10 kB", [{**ITEM, "id": LONG}]),
    work("item with NUL", [{**ITEM, "id": "\x00"}]),
    work("item twice", [ITEM, ITEM]),
    work("item with an integer beyond 2^53", [{"id": "1", "data": 2**53}]),
    work("item over the limit", [{"id": "1", "data": "x" * 1_048_577}], 413, "too-large"),
    operator("work for an external lane", "lanes/transfers/work", {"kind": "x", "items": [ITEM]}),
    operator("work for an unknown lane", "lanes/nowhere/work", {"kind": "x", "items": [ITEM]}, 404,
             "not-found"),
    # Dead letters.
    letters("draining everything"),
    letters("draining no IDs", ids=[]),
    letters("draining too many", ids=[str(number) for number in range(MANY)]),
    letters("draining an ID of 10 kB", ids=[DEAD, LONG]),
    letters("draining NUL", ids=[DEAD, "\x00"]),
    letters("draining a number", ids=[DEAD, 7]),
    letters("draining by IDs and a lane", ids=[DEAD], lane="mail"),
    letters("draining by a kind alone", kind="letter"),
    letters("draining too many of a lane", lane="mail", limit=1001),
    letters("draining of no entity", lane="mail", entity="mail"),
    letters("draining for no reason", lane="mail", reason=""),
    letters("draining an unknown lane", 404, "not-found", lane="nowhere"),
    operator("replaying everything", "dead-letters/replay", {"reason": "x"}),
    # Lists of work.
    read("releases of an unknown lane", "releases?lane=nowhere", 404, "not-found"),
    read("releases of a lane with NUL", "releases?lane=%00", 404, "not-found"),
    read("releases of an unknown status", "releases?status=sent"),
    read("releases of an empty status", "releases?status="),
    read("releases of half an entity", "releases?entity=order"),
    read("releases of an entity of 10 kB", f"releases?entity=order/{LONG}"),
    read("releases of 0", "releases?limit=0"),
    read("releases by an unknown parameter", "releases?recipient=ada"),
    read("releases after nonsense", "releases?after=nonsense"),
    read("releases after another list's cursor", f"releases?after={cursor(7)}"),
    read("releases after 64 bits", f"releases?after={cursor('transfers', 0, 2**80)}"),
    read("releases before the first", f"releases?after={cursor('transfers', -1, 0)}"),
    read("dead letters of a status", "dead-letters?status=dead"),
    read("commands of an external lane", "commands?lane=transfers", 404, "not-found"),
    read("a release that is not there", "releases/rel_0", 404, "not-found"),
    read("a release of 10 kB", f"releases/{LONG}"),
    read("a release with NUL", "releases/%00"),
    read("a release that is an item", f"releases/{DEAD}", 404, "not-found"),
    read("a command that is a release", f"commands/{READY}", 404, "not-found"),
    read("a lane that is not there", "lanes/nowhere", 404, "not-found"),
    read("events of half an entity", "events?entity=order"),
    read("events of an empty action", "events?action="),
    read("events of an action of 10 kB", f"events?action={LONG}"),
    read("events after nonsense", "events?after=nonsense"),
    read("events after 64 bits", f"events?after={cursor(2**80)}"),
    read("observations after another shape", f"observations?after={cursor('a')}"),
    read("where nothing is", "operations/none/where", 404, "not-found"),
    read("where with a query", "operations/good-1/where?deep=1"),
    # Who may.
    refused_role("reader claims", "lanes/transfers/claim", {"worker": "w"}, "reader"),
    refused_role("reader reports", f"releases/{RUNNING}/outcome",
                 {"lease": LEASE, "outcome": "confirmed"}, "reader"),
    refused_role("reader keeps a claim alive", f"work/{RUNNING}/heartbeat", {"lease": LEASE},
                 "reader"),
    refused_role("reader cancels", f"releases/{READY}/cancel", {"reason": "x"}, "reader"),
    refused_role("reader brings work", "lanes/stats/work", {"kind": "x", "items": [ITEM]},
                 "reader"),
    refused_role("writer settles", f"releases/{RUNNING}/settle",
                 {"happened": True, "evidence": "x"}, "writer"),
    refused_role("writer records an incident", f"releases/{READY}/incident", {"reason": "x"},
                 "writer"),
    refused_role("writer pauses", "lanes/transfers/pause", {"reason": "x"}, "writer"),
    refused_role("writer discards", "lanes/stats/off", {"reason": "x", "discard": True}, "writer"),
    refused_role("writer drains", "dead-letters/drain", {"reason": "x", "ids": [DEAD]}, "writer"),
    refused_role("writer replays", "dead-letters/replay", {"reason": "x", "ids": [DEAD]}, "writer"),
    refused_role("receiver decides", "decisions", DECISION, "receiver"),
    refused_role("receiver claims", "lanes/transfers/claim", {"worker": "w"}, "receiver"),
    refused_role("receiver reports", f"releases/{RUNNING}/outcome",
                 {"lease": LEASE, "outcome": "confirmed"}, "receiver"),
    Bad("receiver reads a release", "GET", f"/v1/main/releases/{READY}", None, {}, 403, "forbidden",
        "receiver"),
    Bad("receiver reads the feed", "GET", "/v1/main/entries", None, {}, 403, "forbidden",
        "receiver"),
    Bad("receiver asks for the status", "GET", "/v1/main/status", None, {}, 403, "forbidden",
        "receiver"),
    # Callbacks; tests/api/test_callbacks.py has more of them.
    operator("operator calls back", "callbacks/courier", {"release": RUNNING}, 403, "forbidden"),
    refused_role("writer calls back", "callbacks/courier", {"release": RUNNING}, "writer"),
    refused_role("another receiver calls back", "callbacks/carrier", {"release": RUNNING},
                 "receiver"),
    Bad("callback without a signature", "POST", "/v1/main/callbacks/receiver", b"{}", {}, 404,
        "not-found", "receiver"),
    Bad("callback without a token", "POST", "/v1/main/callbacks/courier", b"{}", SIGNED, 401,
        "unauthenticated", ""),
    Bad("GET of a callback", "GET", "/v1/main/callbacks/courier", None, {}, 405,
        "method-not-allowed"),
]  # fmt: skip


class Prepared(NamedTuple):
    """The server, its tokens by role, and where its journal stood before the bad requests."""

    server: Server
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laned]:
    with serving(tmp_path_factory.mktemp("shared") / "server") as running:
        yield running


def status_of(server: Server) -> dict[str, Any]:
    """The status, but for the witness, which catches up by itself."""
    told = server.get("status").json
    return {name: told[name] for name in told.keys() - {"witness", "failure_scope"}}


def standing(server: Server) -> list[Any]:
    """Everything that a bad request might have changed."""
    lanes = [(lane["counts"], lane["running"]) for lane in server.get("lanes").json["items"]]
    lists = ("releases", "commands", "observations", "tokens")
    return [server.position(), lanes, *[server.get(each).json for each in lists]]


@pytest.fixture(scope="module")
def prepared(shared: Laned) -> Iterator[Prepared]:
    tokens = {role: shared.make_token(role) for role in ("reader", "writer", "receiver")}
    assert shared.permit("running") == RUNNING
    assert shared.claimed("transfers")["lease"] == LEASE
    assert shared.permit("ready") == READY
    dead = {"kind": "letter", "items": [{"id": "dead", "data": 1}]}
    assert shared.post("lanes/mail/work", dead).json["made"] == [DEAD]
    shared.report(shared.claimed("mail"), "failed")
    for operation, action in (("good-1", "submit"), ("good-2", "approve")):
        assert shared.decide(operation, "document/approved", action).status == 201
    before, status = standing(shared), status_of(shared)
    yield Prepared(shared, tokens)
    assert standing(shared) == before
    assert status_of(shared) == status
    assert status["stage"] == "open"
    complaints = {
        line
        for line in shared.errors.splitlines()
        if not line.startswith("WARNING: callback of receiver ")
    }
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
