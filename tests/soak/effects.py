"""Lanes with everything at their ends: receivers, a service, a dispatcher, and a worker that pulls.

Every process can be killed or stopped at any moment, and keeps its port when it is started again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.soak.processes import SECONDS, Server, Site
from tests.support.receivers import Receiver

PULLER = Path(__file__).with_name("puller.py")

TIMEOUT, LEASE, SWEEP_AFTER, CAP = 0.4, 0.8, 1.4, 3.0
WORKS = 0.8
"""How long a receiver may be at work on a request that timed out."""

DOCUMENT = """
[lifecycle.document]
initial = "draft"

[lifecycle.document.actions.submit]
from = ["draft"]
to = "submitted"

[lifecycle.document.actions.approve]
from = ["submitted"]
to = "approved"
needs_version = true

[lifecycle.document.actions.cancel]
from = ["submitted", "approved", "committed"]
to = "cancelled"
instead = { committed = "cancel-requested" }

[lifecycle.document.actions."release.committed"]
from = ["approved"]
to = "committed"

[lifecycle.document.actions."release.confirmed"]
from = ["committed", "cancel-requested"]
to = "released"
"""
_ACTION = """
[lifecycle.document.actions.{name}]
from = ["approved"]
to = "approved"
needs_version = true
releases = [{lanes}]
"""
_LANE = """
[lane.{name}]
{receiver}
timeout = {TIMEOUT}
lease = {LEASE}
sweep_after = {SWEEP_AFTER}
cap = {CAP}
attempts = 40
backoff = 0.05
backoff_cap = 0.3
concurrency = 8
owner = "ines"
"""
_RECEIVER = """
[receiver.{name}]
url = "{url}"
contract = "{contract}"
{asked}
timeout = {TIMEOUT}
works = {WORKS}
poll = 0.2
"""
_TIMES = {
    "TIMEOUT": TIMEOUT, "LEASE": LEASE, "SWEEP_AFTER": SWEEP_AFTER, "CAP": CAP, "WORKS": WORKS
}  # fmt: skip

PULLED = "pulled"
PUSHED = ("idempotent", "queryable", "opaque")
LANES = (*PUSHED, PULLED)
"""A lane is named by the contract of its receiver, and so is the receiver."""


def declared(receivers: dict[str, Receiver]) -> str:
    """The lanes, with an action `release-<lane>` for each and `release-all` for all of them."""
    text = DOCUMENT
    for name in LANES:
        text += _ACTION.format(name=f"release-{name}", lanes=f'"{name}"')
        receiver = f'receiver = "{name}"' if name in receivers else ""
        text += _LANE.format(name=name, receiver=receiver, **_TIMES)
    lanes = ", ".join(f'"{name}"' for name in LANES)
    text += _ACTION.format(name="release-all", lanes=lanes)
    for name, one in receivers.items():
        asked = "" if name == "opaque" else "window = 86400\n"
        if name == "queryable":
            asked += f'status_url = "{one.status_url}"'
        text += _RECEIVER.format(name=name, url=one.url, contract=name, asked=asked, **_TIMES)
    return text


_MAIN = "from api.cli import main; main()"


def python(site: Site, code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A process of a site that runs this code."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=site.folder,
        env=site.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


class Running(Server):
    """A command of a site that goes on until it is ended: `serve` or `dispatch`.

    ``patch`` is Python that its process runs first.
    """

    def __init__(self, site: Site, *arguments: str, patch: str = "") -> None:
        self.site = site
        self.log = site.folder / f"stderr-{len(site.servers)}"
        with self.log.open("w") as errors:
            if patch:
                self.process = python(site, f"{patch}\n{_MAIN}", *arguments, stderr=errors)
            else:
                self.process = site.popen(*arguments, stderr=errors)
        self.pid = self.process.pid
        self.port = int(arguments[-1]) if arguments[0] == "serve" else 0
        site.servers.append(self)

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("operator token (shown once): "):
                self.site.token = line.split()[-1]
            if line.startswith(("unrewind serves ", "unrewind dispatches ")):
                return
        raise AssertionError(f"it ended with {self.process.wait()}: {self.errors}")


class Puller:
    """`puller.py`, with its record in ``folder``; started again it goes on with its last claim.

    ``pause`` is for how long it rests at most, before the effect and before its report.
    """

    def __init__(self, site: Site, folder: Path, url: str, pause: float = 0.15) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.site = site
        self.name = folder.name
        self.record = folder / "effects.jsonl"
        self.log = folder / "stderr"
        self.arguments = [url, PULLED, self.name, str(self.record), str(site.journal), str(pause)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Puller:
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(PULLER), *self.arguments],
                env={**self.site.environment, "TOKEN": self.site.token},
                stderr=errors,
                stdin=subprocess.DEVNULL,
            )
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)

    def lines(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The whole lines of its record."""
        if not self.record.exists():
            return []
        whole = self.record.read_bytes().rpartition(b"\n")[0]
        return [
            line for line in map(json.loads, whole.splitlines()) if kind in {None, line["kind"]}
        ]

    @property
    def busy(self) -> bool:
        """Whether it holds a permit, or thinks so."""
        lines = self.lines()
        return bool(lines) and lines[-1]["kind"] in {"permit", "executed"}


class Town(Site):
    """A site with its lanes, the processes that do their work, and those at the other end.

    The receivers run from the first; ``start_all`` starts the rest.
    """

    service: Running
    dispatcher: Running

    def __init__(self, folder: Path, more: str = "", **environment: str) -> None:
        self.receivers = {name: Receiver(folder / name, contract=name).start() for name in PUSHED}
        super().__init__(
            folder,
            declared(self.receivers) + more,
            **{
                "UNREWIND_DISPATCH_EVERY": "0.2",
                "UNREWIND_SWEEP_EVERY": "0.4",
                "UNREWIND_HANDOFF_EVERY": "0.5",
                "UNREWIND_LOCK_TIMEOUT": "1.5",
                **environment,
            },
        )
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.puller = self.worker(PULLED)

    def start_all(self) -> None:
        """A service that dispatches too, a dispatcher beside it, and a worker."""
        self.serve()
        self.dispatch()
        self.puller.start()

    def worker(self, name: str, pause: float = 0.15) -> Puller:
        """A worker of this name, not started."""
        made = Puller(self, self.folder / name, self.url, pause)
        self.open.callback(made.kill)
        return made

    def serve(self) -> Running:
        """Start the service, on the same port as ever; it dispatches too."""
        self.service = Running(self, "serve", "--port", str(self.port))
        self.service.wait_until_ready()
        return self.service

    def dispatch(self, patch: str = "") -> Running:
        """Start the dispatcher beside it."""
        self.dispatcher = Running(self, "dispatch", patch=patch)
        self.dispatcher.wait_until_ready()
        return self.dispatcher

    def mend(self) -> None:
        """Start again whatever has ended, and let go on what was stopped."""
        for each in (self.service, self.dispatcher):
            if each.alive:
                each.thaw()
        if not self.service.alive:
            self.service.kill()
            self.serve()
        if not self.dispatcher.alive:
            self.dispatcher.kill()
            self.dispatch()
        if self.puller.process is not None:
            if self.puller.process.poll() is not None:
                self.puller.start()
            os.kill(self.puller.pid, signal.SIGCONT)
        for receiver in self.receivers.values():
            if receiver.process is None or receiver.process.poll() is not None:
                receiver.kill()
                receiver.start()
            receiver.thaw()

    def put_back(self, copy: Path) -> None:
        """Put a snapshot in the store's place by rename, under whoever has it open."""
        aside = self.store.with_name("incoming.db")
        shutil.copyfile(copy / "store.db", aside)
        for suffix in ("-wal", "-shm"):
            self.store.with_name(self.store.name + suffix).unlink(missing_ok=True)
        aside.replace(self.store)

    def close(self) -> None:
        super().close()
        for receiver in self.receivers.values():
            receiver.kill()

    def release(self, name: str, lane: str, **data: Any) -> str:
        """Submit, approve and release a document; the release's ID."""
        for action in ("submit", "approve", f"release-{lane}"):
            fields = {"version": "v1", "body": {"recipient": f"{name}@example.org", **data}}
            told = self.service.decide(f"{name}-{action}", f"document/{name}", action, **fields)
            assert told[0] == 201, told
        (release,) = told[1]["releases"]
        return str(release)

    def row(self, release: str) -> dict[str, Any]:
        """One release as it stands in the store."""
        return self.rows()[release]

    def rows(self) -> dict[str, dict[str, Any]]:
        """Every release in the store, by its ID."""
        with closing(self.look(self.store)) as database:
            database.row_factory = sqlite3.Row
            found = database.execute("SELECT * FROM unrewind_work WHERE effect = 'external'")
            return {row["id"]: dict(row) for row in found.fetchall()}

    @staticmethod
    def look(file: Path) -> sqlite3.Connection:
        """A connection that cannot change anything."""
        database = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=10)
        database.execute("PRAGMA query_only = 1")
        return database


@contextmanager
def town_at(folder: Path, more: str = "", **environment: str) -> Iterator[Town]:
    """A site whose processes are gone when the block ends, however it ends."""
    made = Town(folder, more, **environment)
    try:
        yield made
    finally:
        made.close()


def free_port() -> int:
    """A port below those that the system gives to connections: nobody takes it meanwhile."""
    for _ in range(100):
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
