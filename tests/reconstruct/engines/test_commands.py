"""The commands of a recovery, as an operator of servers runs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.reconstruct.engines.world import World
from tests.support.commanding import Result, unrewind

pytestmark = pytest.mark.engines


class Shell:
    """`unrewind` in a directory whose configuration names the servers."""

    def __init__(self, world: World) -> None:
        self.home = world.folder / "home"
        self.home.mkdir()
        lines = ['[lifecycle.case]\nkind = "free"\n']
        for name in ("tenant", "store", "journal", "accept"):
            value = getattr(world.settings, name)
            if value:
                lines.insert(0, f"{name} = {msgspec.json.encode(value).decode()}\n")
        (self.home / "unrewind.toml").write_text("".join(lines))

    def __call__(self, *words: object, code: int = 0, **more: str) -> Result:
        environment = {name: value for name, value in os.environ.items() if "UNREWIND" not in name}
        environment.update(more)
        done = unrewind([str(word) for word in words], self.home, environment)
        assert done.code == code, done
        return done

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self(*words, "--json", code=code).json
        return found

    def accept(self, number: int) -> None:
        self(
            "accept", "--operation", f"op-{number}", "--entity", f"case/{number % 3}",
            "--action", "note",
        )  # fmt: skip


@pytest.mark.parametrize("world", ["postgres-postgres", "postgres-nats"], indirect=True)
def test_every_command_of_a_recovery(world: World) -> None:
    shell = Shell(world)
    tenant = world.settings.tenant
    for number in range(4):
        shell.accept(number)
    taken = shell("snapshot", "older")
    assert "the application's own tables" in taken.out
    for number in range(4, 9):
        shell.accept(number)
    before = shell.json("status")
    assert before["verdict"] == "clean"
    state = shell.json("verify")["state_digest"]
    names = ("--confirm-tenant", tenant, "--confirm-history", before["history"])
    refused = shell("restore", "older", *names[:2], "--confirm-history", "0" * 32, code=3)
    refused.complains(3, "the history in force is")
    restored = shell("restore", "older", *names)
    assert "next" in restored.out
    assert "application's own tables" in restored.out
    assert shell.json("status", code=1)["verdict"] == "rewound"
    assert shell.json("recover", "begin", "--reason", "a test", "--note", "bookmark")["generation"]
    plan = shell.json("recover", "plan")
    assert plan["missing"] == 5
    applied = shell.json("recover", "apply", "--plan", plan["plan"])
    assert applied["replayed"] == 5
    assert shell.json("recover", "reconcile")["complete"]
    assert shell.json("recover", "reopen")["stage"] == "open"
    report = shell.json("recover", "report")
    assert (report["replayed"], report["stage"]) == (5, "open")
    (bundle,) = shell.json("evidence", "--verify")["bundles"]
    assert (bundle["journalled"], bundle["findings"]) == (True, [])
    found = shell.json("verify")
    assert (found["verdict"], found["findings"]) == ("clean", [])
    assert found["state_digest"] == state
    assert shell.json("migrate")["contracted"]
    shell("witness", "renew", code=3).complains(3, "there is nothing to renew")
    (shell.home / "data" / "witness" / f"{tenant}.json").unlink()
    assert shell.json("witness", "renew")["witness"]["position"] > 9
    shell.accept(9)


@pytest.mark.parametrize("world", ["postgres-sqlite"], indirect=True)
def test_a_snapshot_of_a_server_is_refused_in_the_place_of_a_file(
    world: World, tmp_path: Path
) -> None:
    shell = Shell(world)
    shell.accept(1)
    shell("snapshot", tmp_path / "kept")
    history = shell.json("status")["history"]
    confirm = ("--confirm-tenant", "main", "--confirm-history", history)
    done = shell(
        "restore", tmp_path / "kept", *confirm, code=3, UNREWIND_STORE=str(tmp_path / "files")
    )
    done.complains(3, "the snapshot is of a store on a server", "unrewind move")
