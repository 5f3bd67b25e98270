"""The example application, told to its end: on a file, and on a server that is really restored."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import psycopg
import pytest

from examples.payouts import app
from examples.payouts.story import tell
from journal.settings import Settings
from reconstruct.verification import verify
from tests.support.postgres import PostgresServer
from tests.support.servers import require_postgres

ROOT = Path(__file__).resolve().parents[2]
END = "0 lost, 0 paid twice"


def paid(settings: Settings) -> list[tuple[str, str]]:
    made = app.Application(settings)
    try:
        return [(name, state) for name, _, _, state, _ in made.payouts()]
    finally:
        made.close()


def test_the_story_on_a_file_ends_with_nothing_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.payouts.app", "story", "--data", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == END
    settings = app.settings_for(tmp_path)
    assert paid(settings) == [(f"p-{number}", "paid") for number in range(1, 5)]
    report = verify(settings)
    assert (report.verdict, report.findings) == ("clean", [])


class PointInTime:
    """A base backup and a moment; put back by PostgreSQL's own recovery to that moment."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.store: str | None = url
        self._server = server
        self._backup = server.base_backup()
        self._moment: datetime | None = None

    def take(self, settings: Settings) -> None:
        """See ``Backups.take``."""
        self._moment = self._server.now()

    def put_back(self, settings: Settings) -> None:
        """See ``Backups.put_back``."""
        assert self._moment is not None
        self._server.restore_to(self._backup, self._moment)


@pytest.fixture
def server(server_area: None) -> Iterator[PostgresServer]:
    require_postgres()
    with PostgresServer(archive=True) as made:
        yield made


@pytest.mark.engines
def test_the_story_on_a_restored_server_ends_with_nothing_lost(
    server: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = server.create_database()
    assert tell(tmp_path, PointInTime(server, url)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == END
    settings = msgspec.structs.replace(app.settings_for(tmp_path), store=url)
    assert paid(settings) == [(f"p-{number}", "paid") for number in range(1, 5)]
    with psycopg.connect(url) as found:
        assert found.execute("SELECT count(*) FROM accounts").fetchone() == (1,)
    assert verify(settings).verdict == "clean"
