"""The story: decide and pay, restore an old backup, notice, recover, and count.

The service, the bank and every recovery command are processes of their own, as in a real house.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

import journal
from examples.payouts.app import CONFIG, Application, Insufficient, settings_for
from examples.payouts.worker import work
from journal.errors import Recovering, Refused

ROOT = Path(__file__).resolve().parents[2]
RECEIVER = ROOT / "examples" / "receiver" / "receiver.py"
SECONDS = 60
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class Backups(Protocol):
    """How the application's database is backed up and put back: no business of unrewind's."""

    store: str | None

    def take(self, settings: journal.Settings) -> None:
        """A backup, as of now."""

    def put_back(self, settings: journal.Settings) -> None:
        """The database as it was then."""


class FileBackups:
    """A copy of the database file by SQLite's own means, and the copy put back."""

    store: str | None = None

    def __init__(self, folder: Path) -> None:
        self._copy = folder / "backup.db"

    def take(self, settings: journal.Settings) -> None:
        """See ``Backups.take``."""
        with (
            closing(sqlite3.connect(settings.store_file)) as base,
            closing(sqlite3.connect(self._copy)) as copy,
        ):
            base.backup(copy)

    def put_back(self, settings: journal.Settings) -> None:
        """See ``Backups.put_back``."""
        for suffix in ("", "-wal", "-shm"):
            settings.store_file.with_name(settings.store_file.name + suffix).unlink(missing_ok=True)
        shutil.copyfile(self._copy, settings.store_file)


def tell(data: Path, backups: Backups) -> int:
    """Tell it over a new tenant in ``data``; 0 when nothing was lost and nothing paid twice."""
    settings = settings_for(data, backups.store)
    if settings.beside("founded").exists():
        raise Refused(f"{data} holds a tenant already; the story needs an empty directory")
    data.mkdir(parents=True, exist_ok=True)
    record = data / "bank.jsonl"
    flags = ("--contract", "opaque", "--port", "0", "--record", str(record))
    with _process(str(RECEIVER), *flags) as bank:
        acknowledged, before = _business(settings, backups, bank)
        _chapter("Somebody restores the backup: payouts that were paid are not even requested")
        backups.put_back(settings)
        _notice(settings)
        _chapter("Recovery, by the command line")
        for words in (
            ("recover", "begin", "--note", "the backup was restored"),
            ("recover", "plan"),
            ("recover", "apply"),
            ("recover", "reconcile"),
            ("recover", "reopen"),
        ):
            _command(settings, *words)
        _chapter("The worker goes on where it was")
        _pay_all(settings, bank)
        return _count(settings, acknowledged, before, record)


def _business(
    settings: journal.Settings, backups: Backups, bank: str
) -> tuple[list[journal.Acceptance], dict[str, str]]:
    """What is decided before and after the backup, and how each payout stood at the end."""
    app = Application(settings)
    try:
        app.found()
        app.pay_in("alma", 1000)
        _chapter("Payouts are requested and approved in the application's own transactions")
        done = [app.request("p-1", "alma", 100), app.request("p-2", "alma", 200)]
        done += [app.approve("p-1"), app.pay("p-1")]
        try:
            app.request("p-9", "alma", 5000)
        except Insufficient as refused:
            print(f"  {refused}: neither row nor decision")
        _show(app)
        _pay_all(settings, bank)
        _chapter("A backup is taken, and business goes on")
        backups.take(settings)
        done += [app.approve("p-2"), app.pay("p-2"), app.request("p-3", "alma", 300)]
        done += [app.approve("p-3"), app.pay("p-3"), app.request("p-4", "alma", 400)]
        _pay_all(settings, bank)
        done += [app.approve("p-4"), app.pay("p-4")]
        _show(app)
        return done, {name: state for name, _, _, state, _ in app.payouts()}
    finally:
        app.close()


def _notice(settings: journal.Settings) -> None:
    app = Application(settings)
    try:
        _show(app)
        app.request("p-5", "alma", 10)
    except Recovering as closed:
        print(f"  nothing is decided: {closed.detail}")
    finally:
        app.close()


def _pay_all(settings: journal.Settings, bank: str) -> None:
    """The service and the worker, for as long as there is something to pay."""
    token = _command(settings, "token", "create", "--role", "operator", quiet=True).strip()
    with _process("-m", "api.cli", "serve", "--port", "0", **_environment(settings)) as service:
        paid = work(service, token, bank)
    print(f"  the worker paid {len(paid)}")


def _count(
    settings: journal.Settings,
    acknowledged: list[journal.Acceptance],
    before: dict[str, str],
    record: Path,
) -> int:
    """Hold what was acknowledged against what there is, and the bank's own record."""
    app = Application(settings)
    try:
        _show(app)
        rows = app.payouts()
        lost = sum(_is_lost(app, accepted) for accepted in acknowledged)
        states = {name: state for name, _, _, state, _ in rows}
        lost += sum(name not in states for name in before)
    finally:
        app.close()
    executed = Counter(
        line["release"]
        for line in map(json.loads, record.read_text().splitlines())
        if line["executed"]
    )
    twice = sum(count > 1 for count in executed.values())
    print(f"\n{lost} lost, {twice} paid twice")
    all_paid = set(states.values()) == {"paid"} and len(executed) == len(states)
    return 0 if all_paid and not lost and not twice else 1


def _is_lost(app: Application, accepted: journal.Acceptance) -> bool:
    return app.inside.confirmed(accepted.operation).digest != accepted.digest


def _show(app: Application) -> None:
    for name, account, amount, state, revision in app.payouts():
        print(f"  {name}  {account} {amount:>5}  {state:<10} rev {revision}")


def _chapter(text: str) -> None:
    print(f"\n== {text}")


def _environment(settings: journal.Settings) -> dict[str, str]:
    found = {"UNREWIND_CONFIG": str(CONFIG), "UNREWIND_DATA": settings.data}
    if settings.store:
        found["UNREWIND_STORE"] = settings.store
    return found


def _command(settings: journal.Settings, *words: str, quiet: bool = False) -> str:
    """Run `unrewind`; what it printed. Raises Refused when it failed."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "api.cli", *words],
        cwd=ROOT,
        env={**os.environ, **_environment(settings), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Refused(f"unrewind {' '.join(words)}: {done.stderr or done.stdout}")
    if not quiet:
        print(f"  unrewind {' '.join(words)}")
    return done.stdout


@contextmanager
def _process(*words: str, **environment: str) -> Iterator[str]:
    """A process that says on which address it listens; it is ended at the end."""
    running = subprocess.Popen(  # noqa: S603 - our own programs
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield _address_of(running)
    finally:
        running.terminate()
        running.wait(SECONDS)
        if running.stdout is not None:
            running.stdout.close()


def _address_of(running: subprocess.Popen[str]) -> str:
    until = time.monotonic() + SECONDS
    while running.stdout is not None and time.monotonic() < until:
        line = running.stdout.readline()
        found = _ADDRESS.search(line)
        if found is not None:
            return found.group()
        if not line:
            break
    raise Refused(f"a process ended before it listened: {running.args!r}")
