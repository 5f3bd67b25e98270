"""The site: the drill's own directory, its configuration, and the processes that run in it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import api
from api.drill import receiver as receivers
from api.drill.wire import Unanswered, call
from journal.settings import PREFIX, Settings, load

SECONDS = 60.0
"""How long anything may take before it counts as hung."""

_PAUSE = 0.02
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class Hung(Exception):
    """Something did not come in time, or ended when it should not have."""


class Ran(Struct, frozen=True):
    """A command that ended: its exit code (negative: the signal), what it said, how long it ran."""

    command: str
    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """What it printed, as JSON; None where that is none."""
        try:
            return json.loads(self.out)
        except ValueError:
            return None

    @property
    def why(self) -> str:
        """The last line that it said on stderr, or its exit code."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else f"it ended with {self.code}"


def environment_without(inherited: Mapping[str, str], hidden: Sequence[str] = ()) -> dict[str, str]:
    """The environment of children: no setting of the operator's, and none of the ``hidden``."""
    settings = {PREFIX + name.upper() for name in ("config", *Settings.__struct_fields__)}
    root = str(Path(api.__file__).resolve().parent.parent)
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in settings and name not in hidden
    }
    # Where unrewind is installed it is found; put first, a site directory would hide the library.
    found = [] if _INSTALLED.intersection(Path(root).parts) else [root]
    path = [*found, *filter(None, [kept.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(path)}


class Site:
    """A directory with a configuration; whatever was started here is ended by ``close``."""

    def __init__(self, folder: Path, hidden: Sequence[str] = ()) -> None:
        self.folder = folder.resolve()
        self.config = self.folder / "unrewind.toml"
        self.record = self.folder / "receiver" / "calls.jsonl"
        self.logs = self.folder / "logs"
        self.environment = environment_without(os.environ, hidden)
        self.token = ""
        self.port = 0
        self.receiver_url = ""
        self._children: list[subprocess.Popen[str]] = []
        for made in (self.logs, self.record.parent):
            made.mkdir(parents=True, exist_ok=True)

    @property
    def settings(self) -> Settings:
        """The tenant's settings, as its commands read them."""
        return load(self.config, environment={})

    def look_in(self, folder: Path) -> None:
        """Let children import what lies in a folder."""
        path = [*filter(None, [self.environment["PYTHONPATH"]]), str(folder.resolve())]
        self.environment["PYTHONPATH"] = os.pathsep.join(path)

    # Processes.

    def start(self, *arguments: str, name: str, **environment: str) -> subprocess.Popen[str]:
        """Start a process of Python with these arguments; its stderr goes to a file."""
        with (self.logs / f"{len(self._children):02}-{name}.err").open("w") as errors:
            child = subprocess.Popen(  # noqa: S603 - this very interpreter, and arguments of ours
                [sys.executable, *arguments],
                cwd=self.folder,
                env={**self.environment, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._children.append(child)
        return child

    def wait_for(self, child: subprocess.Popen[str], beginning: str) -> str:
        """The line with this beginning that a process says when it is ready. Raises Hung."""
        if child.stdout is not None:
            for line in child.stdout:
                if line.startswith("operator token (shown once): "):
                    self.token = line.split()[-1]
                if line.startswith(beginning):
                    return line.strip()
        raise Hung(f"a process ended with {child.wait(SECONDS)} before it was ready")

    def receive(self, settings: Settings) -> None:
        """Start the isolated receiver; it looks into the journal of these settings."""
        where = msgspec.json.encode(settings).decode()
        arguments = ("-m", "api.drill.receiver", str(self.record), where)
        child = self.start(*arguments, name="receiver")
        self.receiver_url = self.wait_for(child, receivers.READY).removeprefix(receivers.READY)

    def tell_receiver(self, **fields: Any) -> None:
        """Tell the receiver how to behave."""
        call(int(self.receiver_url.rpartition(":")[2]), None, "POST", "/control", fields)

    def serve(self, point: str | None = None, **environment: str) -> subprocess.Popen[str]:
        """Start the service; at a ``point`` it will be struck."""
        module = ("-m", "api.cli") if point is None else ("-m", "api.drill.struck", point)
        arguments = (*module, "serve", *self._flags, "--port", "0")
        child = self.start(*arguments, name="serve", **environment)
        line = self.wait_for(child, "unrewind serves ")
        self.port = int(line.rpartition(":")[2])
        return child

    @property
    def _flags(self) -> tuple[str, ...]:
        return ("--config", str(self.config))

    def run(self, *arguments: str, point: str | None = None) -> Ran:
        """Run a command of `unrewind` to its end; at a ``point`` it will be struck."""
        module = ("-m", "api.cli") if point is None else ("-m", "api.drill.struck", point)
        began = time.monotonic()
        child = self.start(*module, *arguments, *self._flags, "--json", name=arguments[0])
        try:
            out, _ = child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            raise Hung(f"`unrewind {' '.join(arguments)}` did not end in {SECONDS:g} s") from None
        number = self._children.index(child)
        errors = self.logs / f"{number:02}-{arguments[0]}.err"
        took = time.monotonic() - began
        return Ran(" ".join(arguments), child.returncode, out, errors.read_text(), took)

    # Calls.

    def ask(self, method: str, path: str, content: Any = None) -> tuple[int, dict[str, Any]]:
        """A call to the service; its JSON object, empty where it is none. Raises Unanswered."""
        path = f"/v1/{self.settings.tenant}/{path}"
        status, answer = call(self.port, self.token, method, path, content)
        return status, answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        """End every process that still runs."""
        for child in self._children:
            if child.poll() is None:
                child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(SECONDS)
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def ended(child: subprocess.Popen[str]) -> int:
    """The exit code of a process that ends. Raises Hung."""
    try:
        return child.wait(SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        raise Hung("a process did not end") from None


def until(what: str, met: Any, seconds: float = SECONDS) -> None:
    """Wait until ``met()`` is true. Raises Hung."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(Unanswered):
            if met():
                return
        if time.monotonic() > deadline:
            raise Hung(f"not in {seconds:g} s: {what}")
        time.sleep(_PAUSE)
