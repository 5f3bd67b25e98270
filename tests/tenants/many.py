"""A service with many tenants: real files, a real server, and what tests ask of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from api import registering
from api.registering import Created, Place
from journal import Settings
from tests.api.servers import SECONDS, Reply, Server
from tests.support.whole import verify_files

HANDLED = """
[lane.hooks]
effect = "internal"
handler = "tests.tenants.handling:note"
[lifecycle.parcel.actions.pack]
from = ["draft", "packed"]
to = "packed"
commands = [{ lane = "hooks", name = "packed" }]
"""


class Service(Server):
    """A server whose tenants have tokens; ``tokens`` has an operator's of each."""

    def __init__(self, folder: Path, more: str = "", **environment: str) -> None:
        super().__init__(folder, **environment)
        with (folder / "unrewind.toml").open("a") as config:
            config.write(more)
        self.tokens: dict[str, str] = {}

    def create(self, name: str, where: Place = registering.USUAL) -> Created:
        """Create a tenant as the command does, without starting it."""
        made = registering.create(self.settings, name, where)
        self.tokens[name] = made.token
        return made

    def of(self, name: str) -> Settings:
        """The settings of a tenant."""
        return registering.settings_of(self.settings, name)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "api.cli", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def ask(self, name: str, path: str, token: str | None = None) -> Reply:
        return self.request("GET", f"/v1/{name}/{path}", token=token or self.tokens[name])

    def send(self, name: str, path: str, content: Any, token: str | None = None) -> Reply:
        body = json.dumps(content).encode()
        return self.request("POST", f"/v1/{name}/{path}", body, token=token or self.tokens[name])

    def note(self, name: str, operation: str, entity: str = "case/1") -> Reply:
        """Decide something for a tenant."""
        asked = {"operation": operation, "entity": entity, "action": "note"}
        return self.send(name, "decisions", asked)

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        text = self.request("GET", "/metrics").body.decode()
        found = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        assert found, text
        return float(found[0].split()[-1])

    def whole(self, *names: str) -> None:
        """Every file of these tenants is as it has to be."""
        for name in names:
            assert verify_files(self.of(name)) == [], name


def place(folder: Path) -> Place:
    """A place of its own."""
    return Place(str(folder / "store"), str(folder / "journal"))


def moved(settings: Settings, folder: Path) -> Settings:
    """The settings of the same tenant at another place."""
    return msgspec.structs.replace(
        settings, store=str(folder / "store"), journal=str(folder / "journal")
    )
