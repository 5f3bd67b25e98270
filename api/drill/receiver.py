"""The isolated receiver: writes down every call, does what it is told, and suppresses nothing.

    python -m api.drill.receiver RECORD SETTINGS

It listens on this machine alone and says where on stdout. Each delivery is one line of RECORD, in
the file before it is answered; so a second effect under one release ID is seen, whatever anybody
believes about it. With each line stands how many commitments of the release the journal held at
that moment; SETTINGS, a JSON object, say where that is. Calls to `/once/…` are those of an
idempotent receiver: an ID has its effect once.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import msgspec

from api.drill import facts
from journal.errors import UnrewindError
from journal.places import LogPlace, place_of_log
from journal.settings import Settings

MAX_BODY = 16 * 1024 * 1024
READY = "the drill's receiver listens on "

_OF_ENTITY = "SELECT envelope, body FROM entries WHERE entity = ?"


class Memory:
    """What was called and done, in RECORD and here. One call at a time changes it."""

    def __init__(self, record: Path, journal: LogPlace) -> None:
        self.lock = Lock()
        self.journal = journal
        self.executed: Counter[str] = Counter()
        self.digests: dict[str, str | None] = {}
        self.void: dict[str, int] = {}
        self.dropped: set[str] = set()
        self.mute = False
        self._handle = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, kind: str, **fields: Any) -> None:
        """Write a line; it is in the file when this returns."""
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        os.write(self._handle, json.dumps({"kind": kind, "at": at, **fields}).encode() + b"\n")
        os.fsync(self._handle)

    def commitments(self, entity: str, release: str) -> int:
        """How many commitments of a release the journal holds now; 0 if it cannot be read."""
        with suppress(UnrewindError, ValueError):
            return sum(
                json.loads(envelope).get("action") == "release.committed"
                and json.loads(body).get("release") == release
                for envelope, body in facts.rows_of(self.journal, _OF_ENTITY, entity)
            )
        return 0


class Handler(BaseHTTPRequestHandler):
    """One call. `POST /…` delivers, `GET /status/{release}` asks, `POST /control` tells it how."""

    memory: Memory
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        content = self.rfile.read(min(int(self.headers.get("content-length", 0)), MAX_BODY))
        try:
            fields = json.loads(content)
        except ValueError:
            self._answer(400, {"detail": "the body is no JSON"})
            return
        if self.path == "/control":
            self.memory.mute = bool(fields.get("mute", self.memory.mute))
            self.memory.dropped |= set(fields.get("drop", ()))
            self._answer(200, {})
        else:
            self._deliver(content, fields)

    def _deliver(self, content: bytes, fields: dict[str, Any]) -> None:
        memory = self.memory
        release, entity = str(fields.get("release")), str(fields.get("entity"))
        attempt = int(self.headers.get("unrewind-attempt") or 1)
        journalled = memory.commitments(entity, release)
        with memory.lock:
            given_up = attempt <= memory.void.get(release, 0)
            known = self.path.startswith("/once/") and memory.executed[release] > 0
            executes = not (given_up or known)
            dropped = entity in memory.dropped
            memory.note(
                "call",
                release=release,
                entity=entity,
                version=fields.get("version"),
                attempt=attempt,
                journalled=journalled,
                executed=executes,
                answered=not dropped,
                sha256=sha256(content).hexdigest(),
            )
            if executes:
                memory.executed[release] += 1
                memory.digests[release] = fields.get("digest")
                memory.dropped.discard(entity)
        if dropped:
            self.close_connection = True
        elif given_up:
            self._answer(429, {"detail": "this attempt was given up"})
        else:
            self._answer(200, self._done(release))

    def do_GET(self) -> None:
        memory = self.memory
        release = self.path.rpartition("/")[2]
        if not release.startswith("rel_"):
            self._answer(404, {})
            return
        attempt = int(self.headers.get("unrewind-attempt") or 1)
        with memory.lock:
            memory.note("asked", release=release, attempt=attempt, answered=not memory.mute)
            if memory.mute:
                self._answer(503, {"detail": "no answers now"})
            elif memory.executed[release]:
                self._answer(200, self._done(release))
            else:
                # A promise: what was sent under this ID until now will not be carried out.
                memory.void[release] = max(attempt, memory.void.get(release, 0))
                self._answer(200, {"release": release, "state": "void"})

    def _done(self, release: str) -> dict[str, Any]:
        return {
            "release": release,
            "state": "done",
            "digest": self.memory.digests.get(release),
            "receipt": f"drill-{release[4:16]}",
        }

    def _answer(self, status: int, fields: dict[str, Any]) -> None:
        content = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """The record is the log."""


class Server(ThreadingHTTPServer):
    """Listens on this machine alone; a caller that was killed in a call is no fault."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever called is gone: the record has the call."""


def main(record: str, settings: str) -> None:
    """Serve until the process is ended, or whoever started it is."""
    journal = place_of_log(msgspec.json.decode(settings, type=Settings))
    Handler.memory = Memory(Path(record), journal)
    server = Server(("127.0.0.1", 0), Handler)
    print(f"{READY}http://127.0.0.1:{server.server_address[1]}", flush=True)
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:3])
