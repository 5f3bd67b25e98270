"""The simulation over some seeds: no promise breaks, every kind of fault comes up, seeds replay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import journal
from tests.simulation.mutants import MUTANTS
from tests.simulation.workload import REWINDS

ROOT = Path(journal.__file__).resolve().parents[1]
SHARDS = 20
EACH = 50
SECONDS = 900.0

# What the seeds have to come by, each a few times.
COVERED = (
    *(f"rewind:{how}" for how in (*sorted(set(REWINDS)), "table")),
    *(f"fault:{kind}" for kind in ("refused", "disk", "full", "unanswered", "disk-after")),
    *(f"fault:{kind}" for kind in ("kill", "kill-after", "freeze", "freeze-after")),
    *(f"kill:{name}" for name in ("service", "begin", "plan", "apply", "reconcile", "reopen all")),
    *(f"done:{name}" for name in ("begin", "plan", "apply", "reconcile", "restore", "snapshot")),
    *(f"stage:{name}" for name in ("reading", "internal", "external", "open")),
    *(f"receiver:{fate}" for fate in ("unreachable", "lost", "busy", "later", "unanswered")),
    *(f"receiver:{fate}" for fate in ("broken", "garbled", "slow")),
    *(f"worker:{fate}" for fate in ("absent", "failed", "late", "refused", "silent", "twice")),
    *(f"worker:{fate}" for fate in ("stranger", "unsure")),
    *(f"fate:{fate}" for fate in ("completed", "cancelled", "rejected")),
    *("away", "slow", "clock", "restart", "out of order", "recoveries", "lose:both", "healed"),
    *("lose:journal", "not fenced", "accepted", "repeated", "refused", "reuse refused", "reads"),
    *("gate go", "gate held", "observed", "settled by hand", "tokens revoked", "calls broken off"),
)  # fmt: skip
FEW = 2


def simulate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; its figures stay out of the report."""
    environment = {**os.environ, "PYTHONHASHSEED": "0", "UNREWIND_PROOF": str(folder / "proof")}
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--jobs", "1", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("shard", range(SHARDS))
def test_simulation(shard: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    start = 1 + shard * EACH
    ran = simulate(tmp_path, "--seeds", str(EACH), "--start", str(start), "--json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    (shared / f"simulated-{shard}").write_text(ran.stdout.splitlines()[-1])
    # Whichever ends last sees what all of them came by.
    files = [shared / f"simulated-{number}" for number in range(SHARDS)]
    if all(file.exists() for file in files):
        covers([file.read_text() for file in files])


def covers(said: list[str]) -> None:
    """Every kind of event, fault and step has come up."""
    counts: Counter[str] = Counter()
    for one in said:
        counts.update(json.loads(one))
    rare = {name: counts[name] for name in COVERED if counts[name] < FEW}
    assert not rare, f"hardly ever: {rare}"


def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    seeds = ("--seeds", "6", "--start", "40", "--hashes")
    first, second = simulate(tmp_path, *seeds), simulate(tmp_path, *seeds)
    assert first.returncode == 0, first.stdout + first.stderr
    hashes = [line.split() for line in first.stdout.splitlines()[:6]]
    assert [seed for seed, _ in hashes] == [str(seed) for seed in range(40, 46)]
    assert first.stdout.splitlines()[:6] == second.stdout.splitlines()[:6]


def test_every_mutant_is_found(tmp_path: Path) -> None:
    broken = {mutant.promise for mutant in MUTANTS.values()}
    assert broken == {f"P{number}" for number in range(1, 13)}
    ran = simulate(tmp_path, "--seeds", "1000", "--mutants")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(MUTANTS) >= 30


def test_a_failure_is_shortened(tmp_path: Path) -> None:
    ran = simulate(tmp_path, "--seeds", "1", "--mutant", "answer-before-append")
    assert ran.returncode == 1
    assert "shortened to 1 events:" in ran.stdout
    assert "make simulate SEEDS=1 START=1" in ran.stdout
