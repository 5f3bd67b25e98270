"""R6, R8, R19: real commands over a store that is put back, put forward, and recovered at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import journal
from api.opening import ask
from journal import load_settings
from journal.errors import Recovering
from journal.settings import Settings
from journal.status import Status, status
from reconstruct import recovery, verification
from tests.reconstruct.scenes import Scene, checkpoint, query
from tests.support.tenants import make_settings, operation
from tests.support.whole import verify_files

ROOT = Path(__file__).resolve().parents[2]
CONFIG = '[lifecycle.case]\nkind = "free"\n'
GAP = 65_537


class Site:
    """`unrewind` over a directory, and the operator's own means to copy its store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "unrewind.toml").write_text(CONFIG)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "UNREWIND" not in name},
            "PYTHONPATH": str(ROOT),
        }
        self.store = folder / "data/store/main.db"

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "api.cli", *words, "--json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> tuple[int, Any]:
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return process.returncode, json.loads(out)

    def fill(self, first: int, last: int, outcome: str = "accepted") -> None:
        rows = [f"op-{n},{n % 3},set,{n}" for n in range(first, last + 1)]
        (self.folder / "rows.csv").write_text("operation,case,action,n\n" + "\n".join(rows) + "\n")
        code, done = self(
            *("import", "rows.csv", "--entity-type", "case", "--entity", "case"),
            *("--action", "action", "--operation", "operation"),
        )
        assert (code, done[outcome]) == (0, last - first + 1)

    @property
    def settings(self) -> Settings:
        return load_settings(
            self.folder / "unrewind.toml", {"data": str(self.folder / "data")}, environment={}
        )

    def status(self) -> Status:
        return ask(self.settings, status)

    def verify(self) -> verification.Report:
        return verification.verify(self.settings)

    def copy(self, name: str) -> None:
        """Copy the store while nobody has it open."""
        checkpoint(self.store)
        shutil.copyfile(self.store, self.folder / name)

    def put_back(self, name: str) -> None:
        """Put a copy in the store's place, side files gone, as any restore does."""
        for suffix in ("-wal", "-shm"):
            self.store.with_name(self.store.name + suffix).unlink(missing_ok=True)
        aside = self.store.with_name("incoming")
        shutil.copyfile(self.folder / name, aside)
        aside.replace(self.store)

    def journalled(self) -> list[tuple[Any, ...]]:
        sql = (
            "SELECT operation, entity, revision, lower(hex(digest)) FROM entries"
            " WHERE stream = 'decisions' ORDER BY position"
        )
        return query(self.folder / "data/journal/main.db", sql)

    def recover(self) -> Any:
        assert self("recover", "begin", "--reason", "a test")[0] == 0
        code, applied = self("recover", "apply")
        assert code == 0, applied
        code, opened = self("recover", "reopen")
        assert (code, opened["stage"]) == (0, "open")
        return applied


def test_r19_rewound_recovered_and_unrewound_makes_three_histories_and_loses_nothing(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path / "site")
    site.fill(1, 6)
    site.copy("early.db")
    site.fill(7, 12)
    site.copy("latest.db")
    acknowledged = site.journalled()
    histories = [site.status().history]
    digests = [site.verify().state_digest]
    for name, lost in (("early.db", 6), ("latest.db", 3)):
        site.put_back(name)
        assert site.status().verdict == "rewound"
        applied = site.recover()
        assert (applied["replayed"], applied["undone"], applied["incomplete"]) == (lost, 0, [])
        assert applied["parent"] == histories[-1]
        histories.append(applied["history"])
        digests.append(site.verify().state_digest)
        # The journal goes on in the new history: what the un-rewound store lacks of it is replayed.
        first = 13 + 3 * (len(histories) - 2)
        site.fill(first, first + 2)
    assert len(set(histories)) == 3
    assert digests[0] == digests[1] != digests[2]
    assert site.status().verdict == "clean"
    report = site.verify()
    assert (report.verdict, report.findings) == ("clean", [])
    assert site.journalled()[: len(acknowledged)] == acknowledged
    assert len(site.journalled()) == 18
    assert verify_files(site.settings) == []
    site.fill(1, 18, outcome="duplicate")


def test_r8_of_two_recoveries_at_once_one_wins_and_there_is_one_new_history(
    tmp_path: Path,
) -> None:
    site = Site(tmp_path / "site")
    site.fill(1, 40)
    site.copy("early.db")
    site.fill(41, 400)
    site.put_back("early.db")
    assert site("recover", "begin", "--reason", "a test")[0] == 0
    racing = [site.start("recover", "apply") for _ in range(3)]
    told = []
    for process in racing:
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err
        told.append((process.returncode, json.loads(out)))
    won = [answer for code, answer in told if code == 0]
    lost = [answer for code, answer in told if code != 0]
    assert won
    assert all("another recovery" in json.dumps(answer) for answer in lost)
    assert {code for code, _ in told} <= {0, 3}
    # Who came after the first had ended found nothing left to do, and the same history.
    assert len({answer["history"] for answer in won}) == 1
    assert sorted(answer["replayed"] for answer in won) == [0] * (len(won) - 1) + [360]
    assert site("recover", "reopen")[1]["stage"] == "open"
    report = site.verify()
    assert (report.verdict, report.findings) == ("clean", [])
    assert verify_files(site.settings) == []
    assert site.status().generation == 2


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


async def test_r6_a_decision_that_arrives_at_once_is_not_acknowledged_as_a_revision_twice(
    settings: Settings, tmp_path: Path
) -> None:
    """The journal is at revision 7; the store goes back to 5 under the running service."""
    async with journal.open(settings) as tenant:
        for number in range(1, 8):
            if number == 6:
                await tenant.write(_copy, tmp_path / "five.db")
            await tenant.accept(operation("case/1", "set", {"value": number}))
        aside = settings.store_file.with_name("incoming")
        shutil.copyfile(tmp_path / "five.db", aside)
        for suffix in ("-wal", "-shm"):
            settings.store_file.with_name(settings.store_file.name + suffix).unlink()
        aside.replace(settings.store_file)
        late = operation("case/1", "set", {"value": "at once"})
        with pytest.raises(Recovering):
            await tenant.accept(late)
        sql = "SELECT revision FROM entries WHERE entity = 'case/1' ORDER BY position"
        assert query(settings.journal_file, sql) == [(number,) for number in range(1, 8)]
        recovery.stop(settings, "a test")
        await tenant.write(recovery.begin, "a test")
        await tenant.write(recovery.apply)
        await tenant.write(recovery.reopen)
        assert (await tenant.accept(late)).revision == 8
    scene = Scene(settings)
    scene.whole()
    scene.close()


async def _copy(record: Any, target: Path) -> None:
    record.store.database.copy_to(target)
