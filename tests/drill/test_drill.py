"""The drill: it passes, and with any one promise broken on purpose it names that promise."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api.drill.struck import POINTS
from tests.support.proof import record

ROOT = Path(__file__).resolve().parents[2]
BREAKING = Path(__file__).with_name("breaking")
PROMISES = [f"P{number}" for number in range(1, 13)]
SECONDS = 240


def drill(folder: Path, *arguments: str, breaks: str | None = None) -> tuple[int, Any, str]:
    """`unrewind drill` as a process of its own: exit code, report, stderr."""
    environment = {name: value for name, value in os.environ.items() if "UNREWIND" not in name}
    path = [str(ROOT)]
    if breaks is not None:
        environment["UNREWIND_BREAK"] = breaks
        path.insert(0, str(BREAKING))
    environment["PYTHONPATH"] = os.pathsep.join(path)
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "drill", "--json", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def shown(report: Any) -> list[Any]:
    """What a report has that did not hold."""
    return [
        check for kept in report["promises"] for check in kept["checks"] if not check["held"]
    ] or [report["stuck"]]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, Any, str]:
    """One whole drill, kept in a directory."""
    folder = tmp_path_factory.mktemp("drill")
    kept = folder / "kept"
    return kept, *drill(folder, "--dir", str(kept))


def test_every_promise_holds(rehearsed: tuple[Path, int, Any, str]) -> None:
    kept, code, report, errors = rehearsed
    assert (code, errors) == (0, ""), shown(report)
    assert (report["broke"], report["held"], report["stuck"]) == ([], True, None)
    assert [promise["promise"] for promise in report["promises"]] == PROMISES
    assert all(promise["state"] == "held" and promise["checks"] for promise in report["promises"])
    assert json.loads((kept / "report.json").read_text()) == report
    # Both times were measured, and every interrupt took place.
    assert all(time["seconds"] > 0 for time in report["times"])
    killed = [step for step in report["steps"] if step["what"].startswith("kill -9 ")]
    assert len(killed) == report["counts"]["kills"] == len(POINTS) + 1
    assert {step["code"] for step in killed} == {-signal.SIGKILL, None}
    checks = sum(len(promise["checks"]) for promise in report["promises"])
    figures = {"promises": len(PROMISES), "checks": checks, "kills": len(killed), "broken": 0}
    record("drill", "unrewind drill", scope=checks, **figures)


def test_the_page_stands_alone(rehearsed: tuple[Path, int, Any, str]) -> None:
    kept, _, report, _ = rehearsed
    page = (kept / "report.html").read_text()
    assert not re.search(r"<script|<link|\bsrc=|https?://(?!127)", page)
    for kept_promise in report["promises"]:
        assert f"<b>{kept_promise['promise']}</b>" in page
    for step in report["steps"]:
        assert not step["command"] or f"<code>{step['command']}</code>" in page


def test_a_rehearsal_with_own_data_leaves_them_as_they_are(
    rehearsed: tuple[Path, int, Any, str], tmp_path: Path
) -> None:
    """The drill's own tenant as the operator's, with names of secrets and an alert added."""
    kept, *_ = rehearsed
    own = tmp_path / "own"
    shutil.copytree(kept / "data", own)
    config = (kept / "unrewind.toml").read_text().replace(f'data = "{kept}/data"', "")
    config = config.replace("[receiver.post]\n", '[receiver.post]\ntoken_env = "POST_TOKEN"\n')
    config = re.sub(r"http://127.0.0.1:\d+", "https://post.example.org", config)
    config += '\n[alert]\nwebhook = "https://alerts.example.org/hook"\nsecret_env = "ALERTS"\n'
    config += '\n[lane.run]\neffect = "internal"\nhandler = "nowhere:nothing"\n'
    (tmp_path / "own.toml").write_text(config)
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    code, report, errors = drill(
        tmp_path,
        *("--from", "own", "--config", "own.toml", "--back", "12", "--dir", "kept"),
    )
    assert (code, errors) == (0, ""), shown(report)
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before
    assert report["credentials"] == {"ALERTS": False, "POST_TOKEN": False}
    written = (tmp_path / "kept/unrewind.toml").read_text()
    assert not re.search(r"example\.org|_env|handler|\[alert\]\n\w", written)
    assert report["counts"]["plan"]["missing"] == 12
    commands = [step["command"] for step in report["steps"] if step["command"]]
    assert "unrewind recover reconcile" in commands
    assert any(line.startswith("store: own/store, device ") for line in report["places"])


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_that_is_broken_on_purpose_is_named(promise: str, tmp_path: Path) -> None:
    code, report, _ = drill(tmp_path, "--only", promise, "--dir", "kept", breaks=promise)
    assert code == 1
    assert report["broke"] == [promise], shown(report)
    assert not report["held"]
    record(f"drill-broken-{promise}", "pytest tests/drill", scope=1, broken=promise, named=promise)
