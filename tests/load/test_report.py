"""The report says what was run, what was not, and which goals were missed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.proof import SECTIONS, main
from benchmarks.registry import MEASURES
from tests.support.proof import record


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where evidence is kept meanwhile."""
    monkeypatch.setenv("UNREWIND_PROOF", str(tmp_path / "proof"))
    return tmp_path / "proof"


def reported(tmp_path: Path) -> str:
    page = tmp_path / "proof.md"
    (tmp_path / "results").mkdir(exist_ok=True)
    assert main(["--page", str(page), "--results", str(tmp_path / "results")]) == 0
    return page.read_text()


def measured(tmp_path: Path, at: str, *, quick: bool, **ratios: float) -> None:
    machine = dict.fromkeys(("cpus", "cpu", "kernel", "python", "sqlite", "filesystem"), "x")
    rows = {name: {"ratio": ratio, "runs": [ratio]} for name, ratio in ratios.items()}
    (tmp_path / "results").mkdir(exist_ok=True)
    content = {"at": at, "quick": quick, "machine": machine, "ratios": rows}
    (tmp_path / "results" / f"{at}.json").write_text(json.dumps(content))


def line_of(page: str, start: str) -> str:
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {start} |")]
    return line


def test_what_left_nothing_is_called_not_run(tmp_path: Path) -> None:
    page = reported(tmp_path)
    for section in SECTIONS:
        assert "**not run here**" in line_of(page, section.title)
    for measure in MEASURES:
        assert "not run here" in line_of(page, measure.name)


def test_evidence_is_shown_with_its_command(tmp_path: Path) -> None:
    record("load", "make load MINUTES=3", scope=180, acknowledged=1_234_567, kinds=["a|b", "c"])
    record("power-a", "make it", scope=1, lost=0)
    record("power-b", "make it", scope=2, lost=0)
    record("something-else", "make something", answers="x")
    page = reported(tmp_path)
    assert "1 run, 180 seconds" in line_of(page, "Load")
    assert "2 runs, 3 cases" in line_of(page, "Power loss")
    assert "| acknowledged | 1,234,567 |" in page
    assert "a\\|b<br>c" in page
    assert "**something-else**" in page
    for command in ("make load MINUTES=3", "make it", "make something"):
        assert f"`{command}`" in page


def test_a_missed_goal_is_called_missed_and_a_whole_run_counts_before_a_quick_one(
    tmp_path: Path,
) -> None:
    measured(tmp_path, "2026-01-01", quick=False, S1=0.5, S2=1.1)
    measured(tmp_path, "2026-01-02", quick=True, S1=0.9, S3=12)
    page = reported(tmp_path)
    assert "0.5 (0.5 to 0.5) | **missed** 2026-01-01 |" in line_of(page, "S1")
    assert "| met 2026-01-01 |" in line_of(page, "S2")
    assert "| met 2026-01-02, quick |" in line_of(page, "S3")
    assert "3 measured, 1 below their goal" in line_of(page, "Ratios")


def test_evidence_that_cannot_be_read_is_named(tmp_path: Path, kept: Path) -> None:
    kept.mkdir()
    (kept / "load.json").write_text("{")
    page = reported(tmp_path)
    assert "Not readable, and left out: load.json." in page
    assert "**not run here**" in line_of(page, "Load")


def figures(kept: Path) -> Any:
    return json.loads((kept / "x.json").read_text())["figures"]


def test_the_newest_is_kept_unless_the_one_before_covered_more(kept: Path) -> None:
    record("x", "c", scope=10, run=1)
    record("x", "c", scope=9, run=2)
    assert figures(kept) == {"scope": 10, "run": 1}
    record("x", "c", scope=10, run=3)
    assert figures(kept) == {"scope": 10, "run": 3}
    (kept / "x.json").write_text("[]")
    record("x", "c", run=4)
    assert figures(kept) == {"run": 4}
