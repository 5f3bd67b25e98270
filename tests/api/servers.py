"""The server as a process with a port and data of its own, and a client that sends plain bytes."""

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from journal import Settings, load_settings
from journal.entry import Entry

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60

CONFIG = """
[lifecycle.case]
kind = "free"

[lifecycle.contract]
kind = "free"
owner = "caller"
"""


class Reply:
    """An answer as it came, and as JSON."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """`python -m api.server` over one data directory; can be stopped, killed and started again."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "unrewind.toml").write_text(CONFIG)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "UNREWIND" not in name},
            "PYTHONPATH": str(ROOT),
            "UNREWIND_PORT": "0",
            **environment,
        }
        self.process: subprocess.Popen[str] | None = None
        self.port = 0
        self.token = ""
        self.said: list[str] = []

    @property
    def settings(self) -> Settings:
        """What the server runs with, with paths that hold here."""
        return load_settings(
            self.folder / "unrewind.toml", {"data": str(self.folder / "data")}, self.environment
        )

    @property
    def errors(self) -> str:
        return (self.folder / "stderr").read_text()

    def popen(self) -> subprocess.Popen[str]:
        with (self.folder / "stderr").open("a") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "api.server"],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start(self) -> "Server":
        self.process = self.popen()
        assert self.process.stdout is not None
        watchdog = threading.Timer(SECONDS, self.process.kill)
        watchdog.start()
        self.said = []
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if line.startswith("operator token (shown once): "):
                self.token = line.split()[-1]
            if line.startswith("unrewind serves "):
                self.port = int(line.rpartition(":")[2])
                break
        watchdog.cancel()
        assert self.said, self.errors
        assert self.said[-1].startswith("unrewind serves "), self.errors
        return self

    def end(self, number: int = signal.SIGTERM) -> int:
        process = self.process
        if process is None:
            return 0
        process.send_signal(number)
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
            self.process = None
        return code

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str | bytes] | None = None,
        *,
        token: str | None = None,
    ) -> Reply:
        """Send exactly this. ``token`` "" sends none; None sends the operator's."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_accept_encoding=True)
            given = {name.lower(): value for name, value in (headers or {}).items()}
            if token != "" and "authorization" not in given:
                connection.putheader("Authorization", f"Bearer {token or self.token}")
            if body is not None and "content-type" not in given:
                connection.putheader("Content-Type", "application/json")
            if body is not None and not {"content-length", "transfer-encoding"} & set(given):
                connection.putheader("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.send(body or b"")
            return Reply(connection.getresponse())

    def get(self, path: str, **kept: Any) -> Reply:
        return self.request("GET", f"/v1/main/{path}", **kept)

    def post(self, path: str, content: Any = None, **kept: Any) -> Reply:
        body = None if content is None else json.dumps(content).encode()
        return self.request("POST", f"/v1/main/{path}", body, **kept)

    def decide(self, operation: str, entity: str, action: str, **fields: Any) -> Reply:
        return self.post(
            "decisions",
            {"operation": operation, "entity": entity, "action": action, **fields},
        )

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Ask until it holds; fails after SECONDS."""
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.02)

    def make_token(self, role: str) -> str:
        made = self.post("tokens", {"role": role, "name": role})
        assert made.status == 201, made.body
        return made.json["token"]

    def position(self) -> tuple[int, int]:
        """The journal's last position, and how many operations it holds."""
        last, after = 0, ""
        while entries := (page := self.get(f"entries?limit=1000{after}").json)["entries"]:
            last, after = entries[-1]["position"], f"&after={page['next']}"
        return last, len(self.get("operations?limit=1000").json["items"])


def request_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """The body of `POST entries`."""
    return {
        "entries": [
            {"envelope": entry.text.decode(), "body": base64.b64encode(entry.body).decode()}
            for entry in entries
        ]
    }
