"""P1 to P12: the drill, wherever store and journal are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.test_rounds import COMBINATIONS, environment, own_nats_server
from tests.soak.processes import ROOT
from tests.support.proof import record

__all__ = ["environment", "own_nats_server"]

pytestmark = pytest.mark.engines


def rehearse(where: str, named: dict[str, str], folder: Path) -> None:
    arguments = ["--dir", str(folder / "drill"), "--json"]
    for flag in ("store", "journal", "accept"):
        value = named.get(f"UNREWIND_{flag.upper()}")
        if value is not None:
            arguments += [f"--{flag}", value]
    done = subprocess.run(
        [sys.executable, "-m", "api.cli", "drill", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    broken = [
        f"{check['promise']} {check['name']}: {check['expected']}, {check['found']}"
        for kept in report["promises"]
        for check in kept["checks"]
        if not check["held"]
    ]
    assert (broken, [kept["state"] for kept in report["promises"]]) == ([], ["held"] * 12)
    assert done.returncode == 0, done.stderr
    checks = sum(len(kept["checks"]) for kept in report["promises"])
    command = "make soak ARGS=tests/engines/test_drill.py"
    record(f"drill-on-{where}", command, scope=checks, checks=checks, broken=0)


@pytest.mark.parametrize("environment", COMBINATIONS[-1:], ids="-".join, indirect=True)
def test_the_drill_passes_on_servers(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path
) -> None:
    rehearse(request.node.callspec.id, environment, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("environment", COMBINATIONS[:-1], ids="-".join, indirect=True)
def test_the_drill_passes_on_every_combination(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path
) -> None:
    rehearse(request.node.callspec.id, environment, tmp_path)
