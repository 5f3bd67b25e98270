"""The tour of releases, run as its reader runs it."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tour_of_releases_ends_with_both_sides_agreeing_by_release_id() -> None:
    ran = subprocess.run(
        [ROOT / "examples" / "tour.sh"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 released here, 2 executed there, the same IDs; 0 twice" in ran.stdout
    assert "verdict: clean" in ran.stdout
