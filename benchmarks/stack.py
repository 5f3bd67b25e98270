"""The baseline server of S1 and S2, a process of its own: `python -m benchmarks.stack DIR`.

Routes that do nothing, or only two bare commits, on unrewind's own stack.
"""

import asyncio
import json
import socket
import sqlite3
import sys
from pathlib import Path

import msgspec
import uvicorn
from litestar import MediaType, Request, Response, post
from litestar.handlers import HTTPRouteHandler

from api.answers import Answer
from api.requests import body_of
from api.server import uvicorn_options
from benchmarks import floors, ours

NOOP = "/noop"
NOOP_STRAIGHT = "/noop-straight"
TWO_COMMITS = "/two-commits"
TWO_COMMITS_THREADED = "/two-commits-threaded"
ANSWER = b'{"outcome":"accepted"}'
MAX_BODY = 1024 * 1024


class Incoming(msgspec.Struct):
    """What a client sends, decoded as `POST decisions` must at the least."""

    operation: str
    entity: str
    action: str
    body: msgspec.Raw


decode = msgspec.json.Decoder(Incoming).decode


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

    @post(NOOP, opt=ours.AS_WRITER)
    async def noop(request: Request) -> Response[bytes]:
        decode(await request.body())
        return Response(ANSWER, media_type=MediaType.JSON)

    @post(TWO_COMMITS, opt=ours.AS_WRITER)
    async def two_commits(request: Request) -> Response[bytes]:
        body = await request.body()
        files.commit(decode(body).operation, body)
        return Response(ANSWER, media_type=MediaType.JSON)

    @post(TWO_COMMITS_THREADED, opt=ours.AS_WRITER)
    async def two_commits_threaded(request: Request) -> Response[bytes]:
        body = await request.body()
        await asyncio.to_thread(files.commit, decode(body).operation, body)
        return Response(ANSWER, media_type=MediaType.JSON)

    @post(NOOP_STRAIGHT, opt=ours.AS_STRAIGHT)
    async def noop_straight(request: Request) -> Answer:
        decode(await body_of(request, MAX_BODY))
        return Answer(201, ANSWER)

    return [noop, noop_straight, two_commits, two_commits_threaded]


def main(folder: Path) -> None:
    handlers = routes(folder)
    data = folder / "data"
    app, token = ours.same_stack(handlers, data)
    # asyncio sets TCP_NODELAY only on sockets that name their protocol, and an answer without it
    # waits 40 ms for the client's delayed acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    ready = {"port": listening.getsockname()[1], "token": token}
    print(json.dumps(ready), flush=True)
    uvicorn.Server(uvicorn.Config(app, **uvicorn_options())).run(sockets=[listening])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
