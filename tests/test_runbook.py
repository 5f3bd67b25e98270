"""The runbook, section by section, pasted into a shell on a bad day that really happened."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.receivers import Receiver

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60

SETTINGS = """
[lane.delivery]
receiver = "courier"
owner = "ines"

[receiver.courier]
url = "{receiver.url}"
status_url = "{receiver.status_url}"
contract = "idempotent"
window = 86400
"""


def section(number: int) -> list[str]:
    """The shell blocks of a numbered section of the runbook."""
    text = (ROOT / "docs/recovery.md").read_text(encoding="utf-8")
    part = text.partition(f"\n## {number}. ")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", part, re.DOTALL)


class Desk:
    """Where the operator sits: a tenant that pushes to a receiver, and a shell."""

    def __init__(self, home: Path, receiver: Receiver) -> None:
        self.home = home
        self.data = home / "data"
        self.receiver = receiver
        config = home / "unrewind.toml"
        config.write_text(SETTINGS.format(receiver=receiver))
        self.environment = {
            **{name: value for name, value in os.environ.items() if "UNREWIND" not in name},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "UNREWIND_CONFIG": str(config),
            "UNREWIND_DATA": str(self.data),
        }

    def paste(self, script: str, **names: str) -> str:
        """Run the lines, in order, each of which has to end well; what both streams said."""
        for name, value in names.items():
            script = script.replace(name, value)
        done = subprocess.run(
            ["bash", "-ex"],
            input=script,
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert "Traceback" not in done.stdout, done.stdout
        return done.stdout

    def run(self, number: int, **names: str) -> str:
        """Paste a whole section, where the operator's own settings are."""
        lines = "".join(section(number))
        lines = lines.replace("/etc/unrewind.toml", self.environment["UNREWIND_CONFIG"])
        return self.paste(lines, **names)

    def reopen(self, **names: str) -> None:
        """Section 7 beside a dispatcher: what a stage lets out ends before the next block."""
        with self.dispatching():
            for block in section(7):
                self.paste(block, **names)
                until(lambda: "ready" not in self.statuses().values())

    def ask(self, *words: str) -> dict:
        done = subprocess.run(
            ["unrewind", *words, "--json"],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def decide(self, number: int, *actions: str) -> None:
        lines = [
            f"unrewind accept --operation op-{number}-{action} --entity document/d-{number}"
            f" --action {action}" + ("" if action == "submit" else " --version v1")
            for action in actions
        ]
        self.paste("\n".join(lines))

    @contextlib.contextmanager
    def dispatching(self) -> Iterator[None]:
        """The dispatcher at work, and then killed in the middle of whatever it does."""
        process = subprocess.Popen(
            ["unrewind", "dispatch"],
            cwd=self.home,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(SECONDS)

    def statuses(self) -> dict[str, str]:
        items = self.ask("releases")["items"]
        return {item["entity"]: item["status"] for item in items}

    def executed(self) -> list[str]:
        calls = [json.loads(line) for line in self.receiver.record.read_text().splitlines()]
        return [call["release"] for call in calls if call["kind"] == "call" and call["executed"]]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    receiver = Receiver(tmp_path / "receiver", contract="idempotent").start()
    try:
        desk = Desk(tmp_path, receiver)
        yield desk
        found = desk.ask("verify")
        assert found["verdict"] == "clean", found
    finally:
        receiver.kill()


def test_runbook_from_a_rewound_store_to_an_open_tenant(desk: Desk) -> None:
    """Sections 1 to 5 and 7: nothing is lost, the delivered document is not sent again."""
    desk.decide(1, "submit", "approve")
    desk.paste("unrewind snapshot before")
    desk.decide(1, "release")
    with desk.dispatching():
        until(lambda: desk.statuses().get("document/d-1") == "done")
    desk.decide(2, "submit", "approve", "release", "cancel")
    history = desk.ask("status")["history"]
    desk.paste(f"unrewind restore before --confirm-tenant main --confirm-history {history}")
    assert "rewound" in desk.paste("unrewind status || true")
    said = desk.run(2, SNAPSHOT="before")
    assert "safe to restore" in said
    for number in (3, 4, 5):
        desk.run(number)
    desk.reopen()
    assert desk.ask("status")["stage"] == "open"
    assert desk.statuses() == {"document/d-1": "done", "document/d-2": "cancelled"}
    assert len(desk.executed()) == 1
    assert desk.ask("operations", "--unresolved")["items"] == []


def test_runbook_heals_a_journal_that_lost_its_tail(desk: Desk) -> None:
    """Section 8, then 5 and 7: the journal is healed from the store."""
    desk.decide(1, "submit")
    journal = desk.data / "journal" / "main.db"
    older = desk.home / "older.db"
    shutil.copy(journal, older)
    desk.decide(2, "submit", "approve", "release")
    desk.decide(1, "approve")
    for side in journal.parent.glob("main.db-*"):
        side.unlink()
    shutil.copy(older, journal)
    assert desk.ask("status")["verdict"] == "journal-rewound"
    desk.run(8)
    desk.run(5)
    # A person has looked at what control may have lost.
    looked = '--rate 1 --despite healed --reason "looked at tokens and stops"'
    desk.reopen(**{"--rate 1": looked})
    assert desk.ask("status")["stage"] == "open"
    assert desk.ask("history", "document/d-1")["durable_through"] == 2
    assert desk.statuses() == {"document/d-2": "done"}
    assert len(desk.executed()) == 1


def test_runbook_stops_one_thing_alone(desk: Desk) -> None:
    """Section 10: the stop is told and taken back; nothing else is touched."""
    desk.decide(1, "submit")
    said = desk.run(10)
    assert "document/approve" in said
    desk.decide(1, "approve")
    assert desk.ask("status")["stage"] == "open"
