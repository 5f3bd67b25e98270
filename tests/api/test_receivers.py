"""Calls to receivers, over real sockets: one request each, and what its answer proves."""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from httpcore._backends.anyio import AnyIOBackend, AnyIOStream
from standardwebhooks import Webhook

import api.receivers
from api.receivers import Caller
from api.replies import DAY, Parcel, Result
from journal.errors import SettingsInvalid
from journal.lanes import Contract, Receiver

SECONDS = 30
ID = "rel_" + "0123456789" * 4
DIGEST = "ab" * 32
PARCEL = Parcel(ID, 1, b'{"release":"' + ID.encode() + b'","data":{"n":1}}', DIGEST)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CALLBACK = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwd"
TOKEN = "tok.4f1c9e7a-secret~value"
ENVIRONMENT = {"HOOK_SECRET": SECRET, "HOOK_CALLBACK": CALLBACK, "HOOK_TOKEN": TOKEN}


class Connection:
    """The receiver's end of a connection, with one request read from it."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def read(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value for name, value in (f.split(": ", 1) for f in fields)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return SimpleNamespace(line=line, headers=headers, body=body, names=len(fields))

    async def send(self, content):
        self.writer.write(content)
        await self.writer.drain()

    def reset(self):
        """End the connection with RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()


class Raw:
    """A receiver that answers with exactly these bytes, and keeps every request it saw.

    A script that is a function does the answering itself; ``greets`` runs it before a request.
    """

    def __init__(self):
        self.script: Any = http(200)
        self.greets = False
        self.requests: list[Any] = []
        self.came = asyncio.Event()
        self.connections = 0
        self.port = 0

    async def serve(self, connection):
        self.connections += 1
        if self.greets:
            await self.script(connection)
        while not self.greets:
            self.requests.append(await connection.read())
            self.came.set()
            if callable(self.script):
                await self.script(connection)
            else:
                await connection.send(self.script)

    @property
    def lines(self):
        return [request.line for request in self.requests]

    def receiver(self, scheme="http", **fields):
        base = f"{scheme}://localhost:{self.port}"
        return Receiver(
            url=f"{base}/hook", status_url=f"{base}/status/{{release}}?full=1",
            **{"timeout": SECONDS, "window": 60.0, **fields},
        )  # fmt: skip


@contextlib.asynccontextmanager
async def serving(tls=None):
    made = Raw()
    tasks: list[Any] = []

    async def serve(reader, writer):
        tasks.append(asyncio.current_task())
        ended = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)
        try:
            with contextlib.suppress(*ended):
                await made.serve(Connection(reader, writer))
        finally:
            with contextlib.suppress(*ended):
                writer.close()
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


@pytest.fixture(autouse=True)
def few_certificates(monkeypatch, tmp_path):
    """Nobody is trusted, which is quicker to read than everybody."""
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture
async def raw():
    async with serving() as made:
        yield made


def http(status, body=b"", *headers, length=None):
    """An answer as it stands on the wire."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    size = len(body) if length is None else length
    fields = "".join(f"{header}\r\n" for header in (f"Content-Length: {size}", *headers))
    return f"HTTP/1.1 {status} Said\r\n{fields}\r\n".encode("latin-1") + body


async def send(raw, parcel=PARCEL, **fields):
    async with Caller({"mail": raw.receiver(**fields)}, ENVIRONMENT) as caller:
        return await caller.send("mail", parcel)


async def ask(raw, digest=DIGEST, **fields):
    async with Caller({"mail": raw.receiver(**fields)}, ENVIRONMENT) as caller:
        return await caller.ask("mail", ID, digest)


async def hang(_):
    await asyncio.Event().wait()


async def reset(connection):
    connection.reset()


# What is sent.


@pytest.mark.parametrize("contract", list(Contract))
async def test_a_delivery_carries_what_the_protocol_says(raw, contract):
    reply = await send(raw, contract=contract, secret_env="HOOK_SECRET", token_env="HOOK_TOKEN")
    assert reply.result is Result.DONE
    [seen] = raw.requests
    assert seen.line == "POST /hook HTTP/1.1"
    assert seen.body == PARCEL.content
    Webhook(SECRET).verify(seen.body, seen.headers, json_parse=False)
    expected = {
        "host": f"localhost:{raw.port}",
        "content-type": "application/json",
        "content-length": str(len(PARCEL.content)),
        "webhook-id": ID,
        "unrewind-attempt": "1",
        "authorization": f"Bearer {TOKEN}",
        "accept": "application/json",
        "accept-encoding": "identity",
        "connection": "close",
        "user-agent": "unrewind",
    }
    if contract is Contract.IDEMPOTENT:
        expected["idempotency-key"] = ID
    signed = {"webhook-timestamp", "webhook-signature"}
    assert {name: seen.headers[name] for name in seen.headers.keys() - signed} == expected
    assert seen.names == len(seen.headers)


async def test_without_secret_and_token_nothing_is_signed_or_authorized(raw):
    await send(raw)
    assert not [name for name in raw.requests[0].headers if name.startswith(("webhook-", "auth"))]


async def test_every_attempt_of_a_release_has_the_same_bytes_and_id(raw):
    async with Caller({"mail": raw.receiver(secret_env="HOOK_SECRET")}, ENVIRONMENT) as caller:
        for attempt in (1, 2, 3):
            await caller.send("mail", Parcel(ID, attempt, PARCEL.content, None))
    assert {request.body for request in raw.requests} == {PARCEL.content}
    assert {request.headers["webhook-id"] for request in raw.requests} == {ID}
    assert [request.headers["unrewind-attempt"] for request in raw.requests] == ["1", "2", "3"]


async def test_a_question_is_a_get_with_the_token_and_the_quoted_id(raw):
    raw.script = http(200, {"release": ID, "state": "done"})
    await ask(raw, secret_env="HOOK_SECRET", token_env="HOOK_TOKEN", contract=Contract.IDEMPOTENT)
    [seen] = raw.requests
    assert seen.line == f"GET /status/{ID}?full=1 HTTP/1.1"
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert not {"webhook-id", "webhook-signature", "idempotency-key"} & seen.headers.keys()
    async with Caller({"mail": raw.receiver()}, {}) as caller:
        await caller.ask("mail", "rel/1?a=b&c", None)
    assert raw.lines[1] == "GET /status/rel%2F1%3Fa%3Db%26c?full=1 HTTP/1.1"


# What the answer to a delivery proves.


SENT = [
    (http(200), Result.DONE, "answered 200: done"),
    (http(201, b"created"), Result.DONE, "answered 201: done"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", Result.DONE, "answered 204: done"),
    (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", Result.DONE, "answered 200: done"),
    (http(206, b"[1]", "Content-Type: application/json"), Result.DONE, "answered 206"),
    (http(200, {"id": 7}), Result.DONE, "answered 200"),
    (http(200, {"release": ID, "state": "done", "digest": DIGEST}), Result.DONE, "done"),
    (http(200, {"release": None, "state": None, "digest": None}), Result.DONE, "done"),
    (http(200, b'\xef\xbb\xbf {"state": "refused"}'), Result.REFUSED, "refused"),
    (http(200, {"state": "pending"}), Result.PENDING, "pending"),
    (http(200, {"state": "refused", "detail": "no funds"}), Result.REFUSED, "refused: no funds"),
    (http(202), Result.PENDING, "answered 202: pending"),
    (http(202, {"state": "queued"}), Result.PENDING, "pending"),
    (http(202, {"release": "rel_2"}), Result.UNKNOWN, "another release"),
    (http(200, {"release": "rel_2", "state": "done"}), Result.UNKNOWN, "another release"),
    (http(200, {"release": [ID]}), Result.UNKNOWN, "another release"),
    (http(200, {"release": "rel_2", "state": "refused"}), Result.UNKNOWN, "another release"),
    (http(200, {"release": ID, "digest": "cd" * 32}), Result.UNKNOWN, "digest of other content"),
    (http(200, {"state": "refused", "digest": 5}), Result.UNKNOWN, "digest of other content"),
    (http(200, {"state": "failed"}), Result.UNKNOWN, "its state cannot be read: 'failed'"),
    (http(200, {"state": "void"}), Result.UNKNOWN, "its state cannot be read: 'void'"),
    (http(200, {"state": ["done"]}), Result.UNKNOWN, "its state cannot be read"),
    (http(200, b'{"state": "done"'), Result.UNKNOWN, "no JSON that can be read"),
    (http(200, b'{"state":"refused","state":"done"}'), Result.UNKNOWN, "stands there twice"),
    (http(200, b"[" * 60_000, "Content-Type: application/json"), Result.UNKNOWN, "no JSON"),
    (http(200, b"\x1f\x8b\x08", "Content-Encoding: gzip"), Result.UNKNOWN, "encoded"),
    (http(400, {"detail": "no such mailbox"}), Result.REFUSED, "answered 400: no such mailbox"),
    (http(401, {"title": "Who?", "error": "x"}), Result.LIMITED, "answered 401: Who?"),
    (http(404, {"error": "gone\n\x1b[31m away"}), Result.LIMITED, "answered 404: gone [31m away"),
    (http(409, {"detail": ["odd"], "title": " "}), Result.UNKNOWN, "answered 409"),
    (http(422, b"<html>"), Result.REFUSED, "answered 422"),
    (http(400, b"cut", length=99), Result.REFUSED, "answered 400"),
    (http(403, b"x" * 70_000), Result.LIMITED, "answered 403"),
    (http(408), Result.UNKNOWN, "answered 408"),
    (http(425), Result.UNKNOWN, "answered 425"),
    (http(429), Result.LIMITED, "answered 429"),
    (http(500, {"detail": "db down"}), Result.UNKNOWN, "answered 500: db down"),
    (http(502), Result.UNKNOWN, "answered 502"),
    (http(503), Result.UNKNOWN, "answered 503"),
    (http(599), Result.UNKNOWN, "answered 599"),
    (http(799), Result.UNKNOWN, "answered 799"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "result", "evidence"), SENT)
async def test_an_answer_is_taken_for_what_it_proves(raw, answer, result, evidence):
    async def once(connection):
        await connection.send(answer)
        connection.writer.close()

    raw.script = once
    reply = await send(raw)
    assert (reply.result, evidence in reply.evidence) == (result, True), reply
    assert reply.status == int(answer[9:12])
    assert len(raw.requests) == 1


async def test_without_a_digest_sent_the_receivers_own_is_no_contradiction(raw):
    raw.script = http(200, {"digest": "cd" * 32, "receipt": "r-17"})
    reply = await send(raw, Parcel(ID, 1, b"{}", None))
    assert (reply.result, reply.digest, reply.receipt) == (Result.DONE, "cd" * 32, "r-17")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [("7", 7.0), ("999999999", DAY), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("soon", None)],
)
async def test_the_time_that_a_receiver_asks_for_is_told(raw, status, value, seconds):
    raw.script = http(status, b"", f"Retry-After: {value}")
    reply = await send(raw)
    assert reply.result is (Result.LIMITED if status == 429 else Result.UNKNOWN)
    assert reply.retry_after == seconds
    asked = await ask(raw)
    assert (asked.result, asked.retry_after) == (Result.FAILED, seconds)


async def test_evidence_is_one_bounded_line(raw):
    raw.script = http(400, {"detail": "a\r\nb\u202e\ud800" + "ü" * 5000, "receipt": "r" * 5000})
    reply = await send(raw)
    assert reply.evidence.startswith("answered 400: a b üü")
    assert reply.evidence.isprintable()
    assert len(reply.evidence) < 350
    raw.script = http(200, {"receipt": "r\n" * 5000, "digest": "\ud800"})
    reply = await send(raw, Parcel(ID, 1, b"{}", None))
    assert reply.receipt is not None
    assert len(reply.receipt) == 256
    assert reply.digest == ""


@pytest.mark.parametrize("padding", [0, 290])
async def test_a_receiver_that_echoes_our_secrets_does_not_get_them_into_evidence(raw, padding):
    fields = dict.fromkeys(("detail", "receipt"), f"{'x' * padding} {SECRET} {TOKEN} {CALLBACK}")

    async def broken(connection):
        await connection.send(f"{TOKEN} {SECRET}\r\n\r\n".encode())

    known = {"secret_env": "HOOK_SECRET", "token_env": "HOOK_TOKEN"}
    for script in (
        http(403, fields), http(200, {**fields, "state": TOKEN}), http(200, fields), broken,
        http(302, b"", f"Location: https://{TOKEN}/{SECRET}"),
    ):  # fmt: skip
        raw.script = script
        for reply in (
            await send(raw, **known, callback_secret_env="HOOK_CALLBACK"),
            await ask(raw, **known, callback_secret_env="HOOK_CALLBACK"),
        ):
            said = f"{reply.evidence}{reply.receipt}"
            for secret in (SECRET, TOKEN, CALLBACK):
                assert secret[6:16] not in said


# L17: one call is one request, and only what surely did not leave was not sent.


async def test_l17_a_receiver_that_resets_sees_the_attempts_that_were_counted(raw):
    raw.script = reset
    async with Caller({"mail": raw.receiver()}, {}) as caller:
        replies = [await caller.send("mail", Parcel(ID, n, b"{}", None)) for n in range(1, 7)]
    assert {reply.result for reply in replies} == {Result.UNKNOWN}
    assert [request.headers["unrewind-attempt"] for request in raw.requests] == list("123456")
    assert raw.connections == 6
    assert "reset" in replies[0].evidence.lower()


async def test_l17_a_reset_before_the_request_was_read_is_unknown_and_not_repeated(raw):
    raw.greets, raw.script = True, reset
    big = Parcel(ID, 1, b"x" * 8_000_000, None)
    assert (await send(raw, big)).result is Result.UNKNOWN
    assert raw.connections == 1


async def test_l17_a_connection_that_closes_without_an_answer_is_unknown(raw):
    async def close(connection):
        connection.writer.close()

    raw.script = close
    reply = await send(raw)
    assert reply.result is Result.UNKNOWN
    assert reply.evidence.startswith("sent, but no answer could be read: ")
    assert len(raw.requests) == 1
    assert (await ask(raw)).result is Result.FAILED
    assert len(raw.requests) == 2


async def test_l17_through_a_proxy_that_resets_the_receiver_sees_each_attempt_once(raw):
    """The proxy hands requests on, and resets every second connection instead of answering."""
    async with serving() as proxy:

        async def forward(connection):
            seen = proxy.requests[-1]
            reader, writer = await asyncio.open_connection("127.0.0.1", raw.port)
            head = "".join(f"{name}: {value}\r\n" for name, value in seen.headers.items())
            writer.write(f"{seen.line}\r\n{head}\r\n".encode() + seen.body)
            answer = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            if proxy.connections % 2:
                connection.reset()
            else:
                await connection.send(answer)

        proxy.script = forward
        async with Caller({"mail": proxy.receiver()}, {}) as caller:
            replies = [await caller.send("mail", Parcel(ID, n, b"{}", None)) for n in range(1, 9)]
    assert [reply.result for reply in replies] == [Result.UNKNOWN, Result.DONE] * 4
    assert [request.headers["unrewind-attempt"] for request in raw.requests] == list("12345678")


async def test_l17_a_receiver_that_closes_an_idle_connection_makes_nothing_unknown(raw):
    """It offers to keep the connection, and closes it when the next request comes."""

    async def once(connection):
        await connection.send(http(200, b"", "Connection: keep-alive"))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await connection.read()
        connection.reset()

    raw.script = once
    async with Caller({"mail": raw.receiver()}, {}) as caller:
        replies = [await caller.send("mail", PARCEL) for _ in range(4)]
    assert {reply.result for reply in replies} == {Result.DONE}
    assert len(raw.requests) == raw.connections == 4


async def test_l17_a_surplus_answer_is_not_taken_for_that_to_the_next_release(raw):
    async def twice(connection):
        if len(raw.requests) == 1:
            await connection.send(http(200) + http(200, b"surplus"))
        else:
            await connection.send(http(500))

    raw.script = twice
    async with Caller({"mail": raw.receiver()}, {}) as caller:
        replies = [await caller.send("mail", Parcel(f"rel_{n}", 1, b"{}", None)) for n in (1, 2)]
    assert [reply.result for reply in replies] == [Result.DONE, Result.UNKNOWN]
    assert len(raw.requests) == 2


async def test_l17_a_call_that_times_out_is_unknown_and_was_one_request(raw):
    raw.script = hang
    reply = await send(raw, timeout=0.3)
    assert reply.result is Result.UNKNOWN
    assert "0.3 s" in reply.evidence
    assert len(raw.requests) == raw.connections == 1
    assert (await ask(raw, timeout=0.3)).result is Result.FAILED


async def test_l17_a_body_that_trickles_ends_with_the_timeout(raw):
    async def trickle(connection):
        await connection.send(http(200, length=50_000))
        while True:
            await connection.send(b" ")
            await asyncio.sleep(0.05)

    raw.script = trickle
    reply = await send(raw, timeout=0.5)
    assert (reply.result, reply.status) == (Result.UNKNOWN, 200)
    assert "too long, of 0.5 s in all" in reply.evidence


async def test_a_refused_connection_was_not_sent():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = Raw()
        nobody.port = held.getsockname()[1]
        async with Caller({"mail": nobody.receiver()}, {}) as caller:
            reply = await caller.send("mail", PARCEL)
            asked = await caller.ask("mail", ID, None)
    assert (reply.result, reply.status) == (Result.NOT_SENT, None)
    assert reply.evidence.startswith("no connection could be made: ")
    assert asked.result is Result.FAILED


async def test_a_name_that_does_not_resolve_was_not_sent():
    receiver = Receiver(url="http://receiver.invalid/", timeout=SECONDS)
    async with Caller({"mail": receiver}, {}) as caller:
        assert (await caller.send("mail", PARCEL)).result is Result.NOT_SENT


async def test_a_connection_that_is_never_accepted_was_not_sent():
    """The queue of a listening socket is full, so the kernel leaves the next one waiting."""
    with socket.socket() as listening, contextlib.ExitStack() as held:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        port = listening.getsockname()[1]
        receiver = Receiver(url=f"http://127.0.0.1:{port}/", timeout=0.4)
        async with Caller({"mail": receiver}, {}) as caller:
            reply = await caller.send("mail", PARCEL)
    assert reply.result is Result.NOT_SENT
    assert "0.4 s" in reply.evidence


@pytest.mark.parametrize("script", [hang, reset])
async def test_l17_a_tls_handshake_that_fails_was_not_sent_and_is_not_repeated(raw, script):
    raw.greets, raw.script = True, script
    assert (await send(raw, scheme="https", timeout=0.5)).result is Result.NOT_SENT
    assert raw.connections == 1


async def test_a_receiver_that_speaks_no_tls_was_not_sent(raw):
    async def plain(connection):
        await connection.send(http(200))

    raw.greets, raw.script = True, plain
    assert (await send(raw, scheme="https")).result is Result.NOT_SENT


@pytest.mark.parametrize(
    ("where", "result"),
    [
        ("connect_tcp", Result.NOT_SENT),
        ("start_tls", Result.NOT_SENT),
        ("write", Result.UNKNOWN),
        ("read", Result.UNKNOWN),
    ],
)
async def test_an_error_that_nobody_foresaw_is_judged_by_how_far_the_call_came(
    raw, monkeypatch, where, result
):
    async def odd(of, *_, **__):
        if isinstance(of, AnyIOStream):
            await of.aclose()
        raise RuntimeError("odd")

    owner = AnyIOBackend if where == "connect_tcp" else AnyIOStream
    monkeypatch.setattr(owner, where, odd)
    reply = await send(raw, scheme="https" if where == "start_tls" else "http")
    assert (reply.result, "odd" in reply.evidence) == (result, True), reply


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of localhost that nobody has signed but itself."""
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        cwd=folder, check=True, capture_output=True, timeout=SECONDS,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return SimpleNamespace(context=context, file=folder / "cert.pem")


async def test_a_certificate_that_nobody_vouches_for_gets_no_request(certificate, monkeypatch):
    async with serving(certificate.context) as raw:
        reply = await send(raw, scheme="https")
        assert reply.result is Result.NOT_SENT
        assert "certificate" in reply.evidence
        assert raw.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        assert (await send(raw, scheme="https")).result is Result.DONE
        raw.script = reset
        assert (await send(raw, scheme="https")).result is Result.UNKNOWN
        assert len(raw.requests) == 2


async def test_a_call_that_finds_no_free_place_was_not_sent(raw, monkeypatch):
    monkeypatch.setattr(api.receivers, "MAX_CALLS", 1)
    raw.script = hang
    receivers = {"slow": raw.receiver(), "mail": raw.receiver(timeout=0.4)}
    async with Caller(receivers, {}) as caller:
        first = asyncio.create_task(caller.send("slow", PARCEL))
        async with asyncio.timeout(SECONDS):
            await raw.came.wait()
        assert (await caller.send("mail", PARCEL)).result is Result.NOT_SENT
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        # The place of a cancelled call is free again.
        raw.script = http(200)
        assert (await caller.send("mail", PARCEL)).result is Result.DONE
    assert len(raw.requests) == 2


async def test_every_call_gives_its_place_back(raw, monkeypatch):
    monkeypatch.setattr(api.receivers, "MAX_CALLS", 1)
    scripts = [endless_body, breaking(b"HTTP/1.1 20"), breaking(http(200, length=9)), reset, hang]
    async with Caller({"mail": raw.receiver(timeout=1.0)}, {}) as caller:
        for raw.script in [*scripts, http(302, b"x" * 70_000), http(200, b"x" * 70_000)]:
            assert (await caller.send("mail", PARCEL)).result is not Result.NOT_SENT
        raw.script = http(200)
        assert (await caller.send("mail", PARCEL)).result is Result.DONE


async def test_the_environments_proxy_is_not_used(raw, monkeypatch):
    async with serving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await send(raw)).result is Result.DONE
        assert (len(raw.requests), proxy.connections) == (1, 0)


# L17: answers that cannot be read.


def chunked(*headers):
    fields = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{fields}\r\n".encode()


async def endless_body(connection):
    await connection.send(chunked())
    while True:
        await connection.send(b"1000\r\n" + b"x" * 4096 + b"\r\n")


async def endless_hints(connection):
    while True:
        await connection.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100)
        await asyncio.sleep(0.01)


async def endless_head(connection):
    await connection.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await connection.send(b"X-Filler: " + b"x" * 4096 + b"\r\n")


def breaking(content):
    async def broken(connection):
        await connection.send(content)
        connection.writer.close()

    return broken


UNREADABLE = [
    (endless_body, "longer than 65536 bytes"),
    (endless_hints, "too long, of 1 s in all"),
    (endless_head, ""),
    (http(200, b"x" * 70_000), "longer than 65536 bytes"),
    (http(202, b"x" * 70_000), "longer than 65536 bytes"),
    (breaking(http(200, b'{"state": "refu', length=40)), "could not be read"),
    (breaking(chunked() + b"5\r\nhe"), "could not be read"),
    (breaking(chunked() + b"zz\r\nhe"), "could not be read"),
    (breaking(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), "no answer"),
    (breaking(b"HTTP/1.1 20"), "no answer"),
    (breaking(b"just text\n"), "no answer"),
    (
        breaking(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc"),
        "no answer",
    ),
    (breaking(b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nabc"), "no answer"),
    (breaking(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc"), "no answer"),
    (breaking(b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n"), "no answer"),
    (breaking(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "no answer"),
    (breaking(b"\x00" * 200_000), "no answer"),
]


@pytest.mark.parametrize(("script", "evidence"), UNREADABLE)
async def test_l17_an_answer_that_cannot_be_read_is_unknown(raw, script, evidence):
    raw.script = script
    timeout = 1 if script is endless_hints else SECONDS
    reply = await send(raw, timeout=timeout)
    assert (reply.result, evidence in reply.evidence) == (Result.UNKNOWN, True), reply
    assert len(raw.requests) == 1
    assert (await ask(raw, timeout=timeout)).result is Result.FAILED


async def test_interim_answers_are_not_the_answer(raw):
    raw.script = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n" + http(
        200, {"state": "refused"}
    )
    assert (await send(raw)).result is Result.REFUSED


async def test_a_compressed_answer_is_never_unpacked(raw):
    """A bomb: some kilobytes that would become a gigabyte."""
    import gzip

    bomb = gzip.compress(b"\0" * 30_000_000)
    raw.script = http(200, bomb, "Content-Encoding: gzip", "Content-Type: application/json")
    reply = await send(raw)
    assert (reply.result, "encoded" in reply.evidence) == (Result.UNKNOWN, True)


# L18: redirects.


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308])
@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("{target}/else?token=hidden#part", " to {target}/else;"),
        ("http://user:pa@ss@example.org/a?b", " to http://example.org/a;"),
        ("//user:hidden@example.org/a", " to //example.org/a;"),
        ("/else?token=hidden", " to /else;"),
        ("http://[hidden?", " to http://[hidden;"),
        ("http://a:port:b/" + "x" * 500, " to http://a:port:b/xxx"),
        (None, "answered {status};"),
    ],
)
async def test_l18_redirects_are_not_followed_and_end_visibly(raw, status, location, shown):
    async with serving() as other:
        target = f"http://127.0.0.1:{other.port}"
        headers = [] if location is None else [f"Location: {location.format(target=target)}"]
        body = b"" if status == 304 else b"<a>elsewhere</a>"
        raw.script = http(status, body, *headers)
        reply = await send(raw)
        assert (reply.result, reply.status) == (Result.REDIRECTED, status)
        assert shown.format(target=target, status=status) in reply.evidence
        assert "?" not in reply.evidence
        assert "pa@ss" not in reply.evidence
        assert len(reply.evidence) < 300
        asked = await ask(raw)
        assert (asked.result, asked.status) == (Result.FAILED, status)
        assert (len(raw.requests), other.connections) == (2, 0)


async def test_l18_a_refresh_is_not_followed_and_a_cookie_is_not_kept(raw):
    async with serving() as other:
        raw.script = http(
            200, b"", "Set-Cookie: session=1; Path=/",
            f"Refresh: 0; url=http://127.0.0.1:{other.port}/",
        )  # fmt: skip
        async with Caller({"mail": raw.receiver()}, {}) as caller:
            for _ in range(2):
                await caller.send("mail", PARCEL)
        assert [request for request in raw.requests if "cookie" in request.headers] == []
        assert (len(raw.requests), other.connections) == (2, 0)


# What the answer to a question proves.


def said(state, **fields):
    return http(200, {"release": ID, "state": state, "digest": DIGEST, "receipt": "r-1", **fields})


ASKED = [
    (said("done"), Result.DONE, "answered 200: done"),
    (said("pending"), Result.PENDING, "pending"),
    (said("refused", detail="too late"), Result.REFUSED, "refused: too late"),
    (said("unknown"), Result.UNKNOWN, "unknown"),
    (said("void"), Result.VOID, "void"),
    (said("done", digest=None), Result.DONE, "done"),
    (said("done", digest="cd" * 32), Result.UNKNOWN, "digest of other content"),
    (said("void", digest="cd" * 32), Result.UNKNOWN, "digest of other content"),
    (said("done", release="rel_2"), Result.FAILED, "not about this release"),
    (said("void", release=None), Result.FAILED, "not about this release"),
    (said("Done"), Result.FAILED, "its state cannot be read: 'Done'"),
    (said(None), Result.FAILED, "its state cannot be read"),
    (said({"a": 1}), Result.FAILED, "its state cannot be read"),
    (http(200), Result.FAILED, "not about this release"),
    (http(200, b"done"), Result.FAILED, "not about this release"),
    (http(200, b'{"release"'), Result.FAILED, "no JSON"),
    (http(201, {"release": ID, "state": "done"}), Result.FAILED, "answered 201"),
    (http(204), Result.FAILED, "answered 204"),
    (http(404, {"detail": "never heard"}), Result.NOT_FOUND, "answered 404: never heard"),
    (http(404, b"x" * 70_000), Result.NOT_FOUND, "answered 404"),
    (http(410), Result.FAILED, "answered 410"),
    (http(401, {"error": "no token"}), Result.FAILED, "answered 401: no token"),
    (http(500), Result.FAILED, "answered 500"),
]


@pytest.mark.parametrize(("answer", "result", "evidence"), ASKED)
async def test_a_lookup_is_taken_for_what_it_proves(raw, answer, result, evidence):
    raw.script = breaking(answer)
    reply = await ask(raw)
    assert (reply.result, evidence in reply.evidence) == (result, True), reply
    assert reply.status == int(answer[9:12])


async def test_a_lookup_tells_digest_and_receipt(raw):
    raw.script = said("done")
    reply = await ask(raw, digest=None)
    assert (reply.result, reply.digest, reply.receipt) == (Result.DONE, DIGEST, "r-1")


# What cannot be called.


async def test_what_cannot_be_called_is_not_sent():
    receiver = Receiver(url="http://127.0.0.1:9/", secret_env="HOOK_SECRET")
    async with Caller({"mail": receiver}, ENVIRONMENT) as caller:
        for name, parcel in (
            ("letter", PARCEL),
            ("mail", Parcel("rel.1", 1, b"{}", None)),
            ("mail", Parcel("rel\r\nx: y", 1, b"{}", None)),
            ("mail", Parcel(ID, 1, b"\xff", None)),
        ):
            reply = await caller.send(name, parcel)
            assert (reply.result, reply.status) == (Result.NOT_SENT, None)
        for name, release in (("letter", ID), ("mail", ID), ("mail", "a\nb"), ("mail", "\ud800")):
            assert (await caller.ask(name, release, None)).result is Result.FAILED


@pytest.mark.parametrize(
    ("fields", "environment", "named"),
    [
        ({"secret_env": "HOOK"}, {}, "HOOK"),
        ({"secret_env": "HOOK"}, {"HOOK": ""}, "HOOK"),
        ({"secret_env": "HOOK"}, {"HOOK": "hush-hush"}, "HOOK"),
        ({"callback_secret_env": "BACK"}, {}, "BACK"),
        ({"callback_secret_env": "BACK"}, {"BACK": "whsec_aHVzaC1odXNo"}, "BACK"),
        ({"token_env": "TOKEN"}, {}, "TOKEN"),
        ({"token_env": "TOKEN"}, {"TOKEN": "hush hush"}, "TOKEN"),
        ({"token_env": "TOKEN"}, {"TOKEN": "hush\r\nX: y"}, "TOKEN"),
        ({"token_env": "TOKEN"}, {"TOKEN": "hüsh"}, "TOKEN"),
        ({"url": "http://"}, {}, "url"),
        ({"url": "http://a:-1/"}, {}, "url"),
        ({"url": "http://a:0/"}, {}, "url"),
        ({"url": "http://xn--zzzzzzzz99999/"}, {}, "url"),
        ({"status_url": "http://{release}.example.org/"}, {}, "status_url"),
        ({"status_url": "http://example.org:{release}/"}, {}, "status_url"),
        ({"url": "http://a:99999999/"}, {}, "url"),
        ({"url": "https://me:hush@example.org/"}, {}, "url"),
        ({"status_url": "https://me:hush@example.org/{release}"}, {}, "status_url"),
    ],
)
def test_settings_that_cannot_work_are_named_and_never_shown(fields, environment, named):
    with pytest.raises(SettingsInvalid) as caught:
        Caller({"mail": Receiver(**{"url": "http://example.org/", **fields})}, environment)
    assert named in caught.value.detail
    for value in environment.values():
        assert not value or value not in str(caught.value)
    assert "hush@" not in str(caught.value)


def test_secrets_come_from_the_environment_and_show_nowhere(monkeypatch):
    monkeypatch.setenv("HOOK_CALLBACK", CALLBACK)
    receiver = Receiver(url="http://example.org/", callback_secret_env="HOOK_CALLBACK")
    caller = Caller({"mail": receiver, "letter": Receiver(url="http://example.org/")})
    assert caller.callback_secret("mail") == CALLBACK
    assert caller.callback_secret("letter") is None
    assert caller.callback_secret("nobody") is None
    assert CALLBACK not in f"{caller!r}{caller._lines!r}{caller._lines['mail']!r}"


def test_certificates_that_cannot_be_read_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(SettingsInvalid, match="SSL_CERT_FILE"):
        Caller({}, {})
