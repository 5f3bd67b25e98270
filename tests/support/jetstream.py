"""Real NATS servers with JetStream for tests: alone, or three that keep one stream."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.area import area

SECONDS = 60.0


def nats_binary() -> Path | None:
    """The server's program: from the PATH, or beside this Python; None when it is not installed."""
    beside = Path(sys.executable).with_name("nats-server")
    found = shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    return None if found is None else Path(found)


class NatsServer:
    """One server with file storage, by default synchronous (`sync_interval: always`).

    Alone it is made and started at once; in a cluster, the cluster starts it.
    """

    def __init__(self, name: str = "n1", *, sync: str = "always", start: bool = True) -> None:
        binary = nats_binary()
        assert binary is not None, "nats-server is not installed"
        self.binary = binary
        self.name = name
        self.folder = area().new_folder(f"nats-{name}")
        self.store = self.folder / "store"
        self.log = self.folder / "log"
        self.port, self.monitor_port = area().free_port(), area().free_port()
        self.cluster_port = area().free_port()
        self.sync = sync
        self.process: subprocess.Popen[bytes] | None = None
        self.configure([])
        if start:
            self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def monitor(self) -> str:
        """Where it answers `/jsz` and `/varz`."""
        return f"http://127.0.0.1:{self.monitor_port}"

    def configure(self, peers: list[NatsServer]) -> None:
        """Write its configuration; with ``peers`` it is one of a cluster."""
        lines = [
            f"server_name: {self.name}",
            f"listen: 127.0.0.1:{self.port}",
            f"http: 127.0.0.1:{self.monitor_port}",
            f'jetstream {{ store_dir: "{self.store}", sync_interval: {self.sync} }}',
        ]
        if peers:
            routes = ", ".join(f"nats://127.0.0.1:{peer.cluster_port}" for peer in peers)
            lines.append(
                f"cluster {{ name: tests, listen: 127.0.0.1:{self.cluster_port},"
                f" routes: [{routes}] }}"
            )
        (self.folder / "nats.conf").write_text("\n".join(lines) + "\n")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until its JetStream can be used."""
        assert not self.alive
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, "--config", self.folder / "nats.conf"],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        area().started(self.process)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        _until(f"{self.name} is ready", self._is_ready)

    def stop(self) -> None:
        """End it as an operator does."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(SECONDS)

    def kill9(self) -> None:
        """Kill it; what the system has been given stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)

    def restart(self) -> None:
        self.stop()
        self.start()

    def ask(self, path: str) -> Any:
        """What the monitor says: `varz`, `jsz?streams=1`, `healthz`."""
        with urllib.request.urlopen(f"{self.monitor}/{path}", timeout=SECONDS) as answer:  # noqa: S310
            return json.load(answer)

    def said(self) -> str:
        """The server's log."""
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        """End it and remove its files."""
        self.kill9()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        assert self.process is not None
        code = self.process.poll()
        assert code is None, f"nats-server ended with {code}: {self.said()[-2000:]}"
        try:
            return bool(self.ask("healthz")["status"] == "ok")
        except (OSError, urllib.error.URLError):
            return False


class NatsCluster:
    """Servers that hold each stream together; made and started at once."""

    def __init__(self, size: int = 3, *, sync: str = "always") -> None:
        names = [f"n{number}" for number in range(1, size + 1)]
        self.servers = [NatsServer(name, sync=sync, start=False) for name in names]
        for server in self.servers:
            server.configure(self.servers)
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """What a client connects to: every server, in one URL."""
        return "nats://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    @property
    def monitors(self) -> list[str]:
        return [server.monitor for server in self.servers]

    def start(self) -> None:
        """Start those that are down, and wait until all are ready."""
        for server in self.servers:
            if not server.alive:
                server.start(wait=False)
        for server in self.servers:
            server.wait_until_ready()

    def kill9(self) -> None:
        """Kill all at once."""
        for server in self.servers:
            if server.process is not None:
                server.process.kill()
        for server in self.servers:
            server.kill9()

    def leader(self, stream: str | None = None) -> NatsServer:
        """The server that leads a stream, or the cluster's own; waits until there is one."""
        found: list[NatsServer] = []

        def look() -> bool:
            found[:] = [server for server in self.servers if server.name == self._led(stream)]
            return bool(found) and found[0].alive

        _until(f"{stream or 'the cluster'} has a leader", look)
        return found[0]

    def followers(self, stream: str | None = None) -> list[NatsServer]:
        leader = self.leader(stream)
        return [server for server in self.servers if server is not leader]

    def close(self) -> None:
        self.kill9()
        for server in self.servers:
            server.close()

    def _led(self, stream: str | None) -> str | None:
        for server in self.servers:
            if not server.alive:
                continue
            try:
                told = server.ask("jsz?streams=1&accounts=1")
            except (OSError, urllib.error.URLError):
                continue
            if stream is None:
                return _text(told.get("meta_cluster", {}).get("leader"))
            for account in told.get("account_details", []):
                for detail in account.get("stream_detail", []):
                    if detail["name"] == stream and detail.get("cluster", {}).get("leader"):
                        return _text(detail["cluster"]["leader"])
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.02)
