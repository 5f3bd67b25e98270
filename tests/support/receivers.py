"""The example receiver as a process: started, told, asked, killed and started again by tests.

Everything here blocks. A test whose own event loop serves the callbacks has to send them from a
thread: ``await asyncio.to_thread(receiver.callback, "ok", release)``.
"""

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
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "receiver" / "receiver.py"
SECONDS = 60
READY = "receiver listens on http://"

SECRET = "whsec_" + base64.b64encode(b"a secret that signs calls of tests").decode()
CALLBACK_SECRET = "whsec_" + base64.b64encode(b"a secret that signs the callbacks").decode()

DIGEST = "ab" * 32
BROKEN = (http.client.HTTPException, ConnectionError)
"""What a client sees instead of an answer."""

_numbers = count(1)


class Reply:
    """An answer as it came, and as JSON."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """`examples/receiver/receiver.py` with its record in ``folder``.

    ``secret`` and ``token`` are what it demands of calls, ``callback_secret`` and
    ``callback_token`` what its callbacks carry. It keeps its port over ``kill`` and ``start``.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        contract: str = "idempotent",
        window: float | None = None,
        secret: str | None = None,
        token: str | None = None,
        callback_secret: str | None = None,
        callback_token: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.record = folder / "calls.jsonl"
        self.stderr = folder / "stderr"
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.environment = dict(os.environ)
        self.flags = ["--contract", contract, *flags]
        if window is not None:
            self.flags += ["--window", str(window)]
        for flag, value in (
            ("secret", secret),
            ("token", token),
            ("callback-secret", callback_secret),
            ("callback-token", callback_token),
        ):
            if value is not None:
                name = f"RECEIVER_{flag.upper().replace('-', '_')}"
                self.flags += [f"--{flag}-env", name]
                self.environment[name] = value

    # The process.

    def start(self) -> "Receiver":
        """Start it and return when it listens."""
        command = [sys.executable, str(SCRIPT), "--port", str(self.port)]
        command += ["--record", str(self.record), *self.flags]
        with self.stderr.open("a") as errors:
            process = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.process = process
        assert process.stdout is not None
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        if not line.startswith(READY):
            self.kill()
            raise AssertionError(f"the receiver did not start: {self.errors}")
        self.port = int(line.rpartition(":")[2])
        return self

    def kill(self) -> None:
        """End it with SIGKILL, in the middle of whatever it does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """End it with SIGTERM. Returns the exit code."""
        return self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """Stop it in its tracks: connections are made and nothing is answered, until ``thaw``."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: int) -> int | None:
        process, self.process = self.process, None
        if process is None:
            return None
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            return process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()

    @property
    def errors(self) -> str:
        return self.stderr.read_text()

    # Where it is.

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where calls go."""
        return f"{self.base}/releases"

    @property
    def status_url(self) -> str:
        """Where lookups go, with ``{release}`` for the ID."""
        return f"{self.base}/status/{{release}}"

    # Commands.

    def tell(self, behave: str, **fields: Any) -> None:
        """Misbehave: ``tell("error", status=503, calls=2)``, ``tell("not-found", on="lookup")``."""
        self.command({"behave": behave, **fields})

    def clear(self) -> None:
        """Behave from now on."""
        self.command({"clear": True})

    def finish(self, release: str, state: str = "done") -> None:
        """End pending or delayed work on a release as *done*, *refused* or *void*."""
        self.command({"finish": release, "as": state})

    def forget(self, release: str) -> None:
        """Forget an ID, as at the end of the window."""
        self.command({"forget": release})

    def call_back_to(self, url: str, token: str | None = None) -> None:
        """Where callbacks go from now on."""
        self.command({"call_back_to": url, "token": token})

    def callback(self, kind: str, release: str, seconds: float = 0) -> list[dict[str, Any]]:
        """Send a callback. Returns each message's ``webhook_id``, ``status`` and ``answer``."""
        command = {"callback": kind, "release": release, "seconds": seconds}
        return self.command(command)["sent"]

    def command(self, content: dict[str, Any]) -> dict[str, Any]:
        reply = self.try_command(content)
        assert reply.status == 200, reply.body
        return reply.json

    def try_command(self, content: Any) -> Reply:
        """A command that may be turned down."""
        return self.request("POST", "/control", json.dumps(content).encode())

    # What it saw and did. Read from the record, so the receiver may be dead.

    def lines(self, kind: str | None = None, release: str | None = None) -> list[dict[str, Any]]:
        """The record's lines in their order: all, or those of a kind or a release."""
        if not self.record.exists():
            return []
        whole = self.record.read_bytes().rpartition(b"\n")[0]
        return [
            line
            for line in map(json.loads, whole.splitlines())
            if kind in {None, line["kind"]} and release in {None, line["release"]}
        ]

    def calls(self, release: str | None = None) -> list[dict[str, Any]]:
        return self.lines("call", release)

    def attempts(self, release: str | None = None) -> int:
        """How often it was called."""
        return len(self.calls(release))

    def executions(self, release: str | None = None) -> int:
        """How often the effect happened."""
        return sum(line["executed"] for line in self.lines(release=release))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Ask until it holds; fails after SECONDS."""
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, self.lines()
            time.sleep(0.02)

    def outcomes(self, release: str) -> list[str]:
        """What became of each call of a release."""
        return [line["outcome"] for line in self.calls(release)]

    # HTTP, for whoever plays the caller.

    def send(
        self,
        release: str,
        attempt: int = 1,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """One call as unrewind makes it; ``headers`` replace the Idempotency-Key."""
        given = {"Idempotency-Key": release} if headers is None else headers
        sent = {"Content-Type": "application/json", "unrewind-attempt": str(attempt), **given}
        return self.request("POST", "/releases", body or body_of(release), sent)

    def look_up(self, release: str) -> Reply:
        return self.request("GET", f"/status/{release}")

    def state_of(self, release: str) -> str | int:
        """The state that a lookup tells, or the status of one that tells none."""
        reply = self.look_up(release)
        return reply.json["state"] if reply.status == 200 else reply.status

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> Reply:
        """Send exactly this on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers or {})
            return Reply(connection.getresponse())


class Sending:
    """A call that is under way in a thread of its own, and that the receiver has seen."""

    def __init__(self, receiver: Receiver, release: str, attempt: int = 1) -> None:
        self.reply: Reply | None = None

        def run() -> None:
            self.reply = receiver.send(release, attempt)

        before = receiver.attempts(release)
        self.thread = threading.Thread(target=run)
        self.thread.start()
        receiver.wait_for(lambda: receiver.attempts(release) > before)

    @property
    def answered(self) -> bool:
        return self.reply is not None

    def answer(self) -> Reply:
        self.thread.join(SECONDS)
        assert self.reply is not None
        return self.reply


def release_id() -> str:
    """A release ID of its own, in the form that unrewind gives them."""
    return f"rel_{next(_numbers):040x}"


def body_of(release: str, **changes: Any) -> bytes:
    """A call's body; the same bytes each time."""
    return json.dumps({"release": release, "digest": DIGEST, "data": {}, **changes}).encode()


@contextlib.contextmanager
def receiving(folder: Path, *flags: str, **kept: Any) -> Iterator[Receiver]:
    """A receiver that listens, ended at the end."""
    receiver = Receiver(folder, *flags, **kept)
    try:
        yield receiver.start()
    finally:
        receiver.kill()
