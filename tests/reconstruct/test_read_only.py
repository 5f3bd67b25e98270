"""Looking needs no right to write: status, plan and verify over directories that are read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.errors import Unreachable
from journal.sqlite import Database, stamp_of
from tests.reconstruct.scenes import Scene, kill, tree
from tests.support.tenants import make_settings

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65_534
LOOK = f"""
import os, sys
import msgspec
from api.opening import ask
from journal.status import status
from reconstruct import recovery, verification
from tests.support.tenants import make_settings
from pathlib import Path

settings = make_settings(Path(sys.argv[1]))
if os.geteuid() == 0 and sys.argv[2] == "drop":
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
found = {{
    "writable": os.access(settings.journal_file.parent, os.W_OK),
    "status": ask(settings, status),
    "plan": ask(settings, recovery.plan),
    "verify": verification.verify(settings),
}}
sys.stdout.buffer.write(msgspec.json.encode(found))
"""
MOUNT = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that any user may enter."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    for path in [made, *made.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(made)


def rewound(folder: Path, tmp_path: Path, ending: str) -> Scene:
    """A tenant that was rewound, its process ended cleanly or killed."""
    scene = Scene(make_settings(folder))
    scene.fill(4)
    scene.keep(tmp_path / "old")
    scene.fill(5)
    scene.settle()
    scene.restore(tmp_path / "old")
    if ending == "killed":
        scene.detect()
        kill(scene.record)
        scene.records.clear()
    scene.close()
    return scene


def look(folder: Path, *before: str, how: str = "drop", copies: Path | None = None) -> Any:
    """What a process that may write nothing finds; its copies go under ``copies``."""
    command = [*before, sys.executable, "-c", LOOK, str(folder), how]
    done = subprocess.run(
        command,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(copies or tempfile.gettempdir()),
        },
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout)


def agrees(found: Any) -> None:
    assert found["writable"] is False
    assert found["status"]["verdict"] == "rewound"
    assert (found["plan"]["missing"], found["plan"]["direction"]) == (5, "store")
    assert found["verify"]["verdict"] == "rewound"
    assert found["verify"]["entries"] >= 9


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_status_plan_and_verify_read_what_they_may_not_write_beside(
    folder: Path, tmp_path: Path, ending: str
) -> None:
    scene = rewound(folder, tmp_path, ending)
    for path in scene.settings.home.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    scene.settings.home.chmod(0o555)
    before = tree(folder)
    with tempfile.TemporaryDirectory() as copies:
        Path(copies).chmod(0o777)
        agrees(look(folder, copies=Path(copies)))
        assert [*Path(copies).iterdir()] == []
    assert tree(folder) == before


def mounts() -> bool:
    """Whether this machine lets us mount in a namespace of our own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as place:
        command = ["unshare", "-m", "sh", "-c", MOUNT, "sh", place, "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not mounts(), reason="no mounts here")
@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_read_only_file_system_is_looked_at_by_root_too(
    folder: Path, tmp_path: Path, ending: str
) -> None:
    rewound(folder, tmp_path, ending)
    before = tree(folder)
    agrees(look(folder, "unshare", "-m", "sh", "-c", MOUNT, "sh", str(folder), how="stay"))
    assert tree(folder) == before


def test_a_file_that_keeps_changing_is_not_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is taken only when the file was the same before and after it."""
    path = tmp_path / "main.db"
    Database(path, schema="CREATE TABLE t (a);").close()
    monkeypatch.setattr("journal.sqlite.os.access", lambda *_, **__: False)
    real_connect = Database._connect
    real_copy = shutil.copyfile

    def connect(self: Database, file: Path, *given: Any, **named: Any) -> None:
        if file == path:
            raise Unreachable("nothing may be written here")
        real_connect(self, file, *given, **named)

    changed: list[int] = []

    def copy(source: Path, target: Path) -> None:
        real_copy(source, target)
        if len(changed) < limit:
            changed.append(1)
            os.utime(source, ns=(0, len(changed)))

    monkeypatch.setattr(Database, "_connect", connect)
    monkeypatch.setattr("journal.sqlite.shutil.copyfile", copy)
    limit = 2
    database = Database(path, read_only=True)
    assert database.check_identity() == stamp_of(path)
    database.close()
    limit = 100
    with pytest.raises(Unreachable, match="changes while it is copied"):
        Database(path, read_only=True)
