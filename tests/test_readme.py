"""The README's tour, pasted line by line into a shell."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def blocks(title: str) -> list[str]:
    """The shell blocks under a heading of the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def paste(script: str, port: int) -> str:
    """Run the lines in one shell, at the top of the repository; what both streams said."""
    commands = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "UNREWIND_PORT": str(port),
        "UNREWIND_URL": f"http://127.0.0.1:{port}",
    }
    done = subprocess.run(
        ["bash", "-m"],
        input=script,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def test_tour_runs_as_it_is_written(tmp_path: Path) -> None:
    """Token, decision, history, gap, rewind and recovery, each doing what the text says."""
    port = free_port()
    tour = blocks("Five minutes")
    # Only what would touch the reader's own machine is changed: set-up, port, place of the data.
    changed = "\n".join(tour).replace("make setup\n", "")
    changed = changed.replace(":8420", f":{port}").replace("data/tour", str(tmp_path / "tour"))
    marked = "\n".join(
        f"{line}\necho; echo '=== {number}'" for number, line in enumerate(changed.splitlines())
    )
    output = paste(marked, port)
    lines = changed.splitlines()
    parts = re.split(r"=== \d+\n", output)
    said = dict(zip(lines, parts, strict=False))

    def of(*words: str) -> list[str]:
        return [
            text
            for line, text in zip(lines, parts, strict=False)
            if all(word in line for word in words)
        ]

    first, repeat = of("decisions", '"op-1"')
    assert '"outcome":"accepted"' in first, output
    assert '"outcome":"duplicate"' in repeat, output
    assert "submit" in of("history document")[0]
    assert "revision 1 is missing" in of("unrewind gaps")[0], output
    held, later = of("/gate")
    assert '"held"' in held, output
    assert "incomplete" in held
    assert "missing" not in of("unrewind gaps")[1]
    assert '"held"' in later, output
    assert "cancelled" in later
    assert '"outcome":"accepted"' in of('"op-2"')[0], output
    assert "rewound" in of("unrewind status")[1], output
    assert "/problems/recovering" in of('"op-3"')[0], output
    assert "approve" in of("history document")[1], output
    assert "clean" in of("unrewind verify")[0], output
    assert '"op-2"' in of("operations/op-2")[0], output
    assert "Traceback" not in output
    assert said


def test_sample_log_imports_as_the_readme_says(tmp_path: Path) -> None:
    """The import line takes every row, and nothing the second time."""
    line = blocks("Import a decision log")[0].strip()
    script = f"export UNREWIND_CONFIG=examples/unrewind.toml UNREWIND_DATA={tmp_path}/data\n"
    output = paste(script + f"{line}\n{line}\n", free_port())
    rows = len((ROOT / "examples/decisions.csv").read_text(encoding="utf-8").splitlines()) - 1
    assert f"{rows} accepted" in output, output
    assert f"{rows} duplicate" in output, output
