"""The baseline server of S1 and S2, a process of its own: `python -m benchmarks.stack DIR`.

Routes that do nothing, or only two bare commits, on unrewind's own stack. Where `ours.same_stack`
is not filled in, a stand-in of the same shape serves them, and the first line says so.
"""

import asyncio
import hashlib
import json
import secrets
import socket
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvicorn
from litestar import Litestar, MediaType, Request, Response, post
from litestar.enums import ScopeType
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import HTTPRouteHandler
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from benchmarks import floors, ours
from benchmarks.measure import NotBuiltError

NOOP = "/noop"
TWO_COMMITS = "/two-commits"
TWO_COMMITS_THREADED = "/two-commits-threaded"
ANSWER = b'{"outcome":"accepted"}'


class Incoming(msgspec.Struct):
    """What a client sends, decoded as `POST decisions` must at the least."""

    operation: str
    entity: str
    action: str
    body: msgspec.Raw


decode = msgspec.json.Decoder(Incoming).decode


class Bearer(ASGIMiddleware):
    """The stand-in's authentication: looks up the SHA-256 of the bearer token."""

    scopes = (ScopeType.HTTP,)

    def __init__(self, tokens: Sequence[str]) -> None:
        self._known = {hashlib.sha256(token.encode()).digest(): "writer" for token in tokens}

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                role = self._known.get(hashlib.sha256(value[7:]).digest())
                if role is not None:
                    scope["auth"] = role
                    await next_app(scope, receive, send)
                    return
                break
        raise NotAuthorizedException


class TwoFiles:
    """Two bare SQLite files, each given one row and one commit a call."""

    def __init__(self, folder: Path) -> None:
        self._files = [self._opened(folder / name) for name in ("first.db", "second.db")]

    def commit(self, operation: str, body: bytes) -> None:
        for file in self._files:
            file.execute("INSERT INTO bare (operation, body) VALUES (?, ?)", (operation, body))

    @staticmethod
    def _opened(path: Path) -> sqlite3.Connection:
        file = floors.opened(path)
        file.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, operation TEXT, body BLOB)")
        return file


def routes(folder: Path) -> list[HTTPRouteHandler]:
    files = TwoFiles(folder)

    @post(NOOP)
    async def noop(request: Request) -> Response[bytes]:
        decode(await request.body())
        return Response(ANSWER, media_type=MediaType.JSON)

    @post(TWO_COMMITS)
    async def two_commits(request: Request) -> Response[bytes]:
        body = await request.body()
        files.commit(decode(body).operation, body)
        return Response(ANSWER, media_type=MediaType.JSON)

    @post(TWO_COMMITS_THREADED)
    async def two_commits_threaded(request: Request) -> Response[bytes]:
        body = await request.body()
        await asyncio.to_thread(files.commit, decode(body).operation, body)
        return Response(ANSWER, media_type=MediaType.JSON)

    return [noop, two_commits, two_commits_threaded]


def stand_in(handlers: Sequence[HTTPRouteHandler]) -> tuple[Litestar, str]:
    token = secrets.token_urlsafe(32)
    app = Litestar(
        route_handlers=list(handlers),
        middleware=[Bearer([token])],
        request_max_body_size=1 << 20,
    )
    return app, token


def main(folder: Path) -> None:
    handlers = routes(folder)
    data = folder / "data"
    try:
        app, token = ours.same_stack(handlers, data)
        kind = "unrewind's"
    except NotBuiltError as error:
        app, token = stand_in(handlers)
        kind = f"a stand-in: {error}"
    # asyncio sets TCP_NODELAY only on sockets that name their protocol, and an answer without it
    # waits 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    ready = {"port": listening.getsockname()[1], "token": token, "stack": kind}
    print(json.dumps(ready), flush=True)
    uvicorn.Server(uvicorn.Config(app, **ours.uvicorn_options())).run(sockets=[listening])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
