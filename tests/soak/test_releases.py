"""P3, P4, P12: rounds of releases in which somebody is struck at a handoff.

One tenant goes on and on. In each round documents are released to a push lane of each contract and
to a lane that a worker pulls, some are cancelled in time, and one process is killed or stopped.
What happened in the world is told by the other ends' own records.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from journal.release import release_id
from tests.soak.books import Books
from tests.soak.clients import Cut
from tests.soak.effects import LANES, PULLED, PUSHED, Town, town_at
from tests.soak.handoffs import Handoff, Watch, behaviour, widening
from tests.soak.ledger import Ledger
from tests.soak.processes import Ran, item, until
from tests.support.proof import record
from tests.support.whole import verify_files

SEED = int(os.environ.get("UNREWIND_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SHORT, LONG = 12, int(os.environ.get("UNREWIND_ROUNDS", "200"))
_QUIET = 60.0
_LATER = "2099-01-01T00:00:00Z"
_DIGEST = "5a" * 32
_VICTIMS = ("holder", "service", "dispatcher", "worker", "receiver")
_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


class Document:
    """One document on its way: its decisions in order, and the releases that follow from them."""

    def __init__(self, name: str, lane: str, *, cancelled: bool, due: str | None = None) -> None:
        self.entity = f"document/{name}"
        self.cancelled = cancelled
        data = {"recipient": f"{name}@example.org", "digest": _DIGEST, "due": due}
        action = f"release-{lane}"
        lanes = LANES if lane == "all" else (lane,)
        self.releases = {
            one: release_id(
                "main", self.entity, "v1", action, one, one if one in PUSHED else None,
                data["recipient"],
            )
            for one in lanes
        }  # fmt: skip
        steps = [("submit", None), ("approve", "v1"), (action, "v1")]
        self.items = [
            item(f"{name}-{step}", self.entity, step, version=version, body=data)
            for step, version in steps
        ]
        if cancelled:
            self.items.append(item(f"{name}-cancel", self.entity, "cancel"))


class Rounds:
    """The tenant with its processes, what they were told to do, and how far that came."""

    def __init__(self, town: Town, seed: int) -> None:
        self.town = town
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.books = Books(town)
        self.hits: Counter[str] = Counter()
        self.rewound = 0
        self._lock = threading.Lock()
        strikes = list(itertools.product(_VICTIMS, _SIGNALS, Handoff))
        self.rng.shuffle(strikes)
        self._strikes = itertools.cycle(strikes)

    # One round.

    def run(self, number: int) -> None:
        """Release, strike at a handoff, perhaps rewind, mend, and wait until all is quiet."""
        town = self.town
        victim, how, handoff = next(self._strikes)
        lane = PULLED if victim == "worker" else self.rng.choice(PUSHED)
        said = f"{number}: {victim} {how.name} at {handoff.name} in {lane}"
        copy = self._snapshot(number) if number % 4 == 0 else None
        documents = self._documents(number, lane)
        watched = documents[0].releases[lane]
        self._tell_receivers(documents, watched, handoff)
        watch = Watch(town, handoff, lane, watched)
        try:
            with ThreadPoolExecutor(4) as pool:
                deciding = [pool.submit(self._decide, document) for document in documents]
                there = watch.until_there()
                self.hits[handoff.name] += there
                pid = self._strike(victim, how, lane, watch)
                self.books.check_effects()
                if how is signal.SIGSTOP:
                    self._outlast(pid, lane)
                elif self.rng.random() < 0.5:
                    assert town.run("sweep").code in {0, 3}
                if copy is not None and self.rng.random() < 0.5:
                    self._rewind(copy)
                    copy = None
                town.mend()
                _all_well(deciding)
        except BaseException as error:
            error.add_note(said)
            raise
        finally:
            watch.close()
        self._until_quiet()
        if copy is not None:
            self._rewind(copy)
            town.mend()
            self._until_quiet()
        self.books.check_accounts()
        self._settle_some(number)

    def _documents(self, number: int, lane: str) -> list[Document]:
        made = [Document(f"r{number}-watched", lane, cancelled=False)]
        for place, name in enumerate([*PUSHED, PULLED, "all"]):
            made.append(Document(f"r{number}-{place}", name, cancelled=False))
        for place in range(2):
            name = self.rng.choice(LANES)
            made.append(Document(f"r{number}-late-{place}", name, cancelled=True, due=_LATER))
        made.append(Document(f"r{number}-racing", self.rng.choice(LANES), cancelled=True))
        return made

    def _tell_receivers(
        self, documents: Sequence[Document], watched: str, handoff: Handoff
    ) -> None:
        for document in documents:
            for lane, release in document.releases.items():
                if lane == PULLED:
                    continue
                wide = release == watched
                rule = widening(handoff, self.rng) if wide else behaviour(lane, self.rng)
                name = str(rule.pop("behave"))
                self.town.receivers[lane].tell(name, release=release, calls=1, **rule)

    # Deciding.

    def _decide(self, document: Document) -> None:
        for made in document.items:
            with self._lock:
                self.ledger.send(made)
            self._until_told(made)
        if document.cancelled and document.items[0]["body"]["due"] == _LATER:
            with self._lock:
                assert document.items[-1]["operation"] in self.ledger.told
                self.books.cancelled |= set(document.releases.values())

    def _until_told(self, made: dict[str, Any]) -> None:
        """Repeat a decision under its ID until it was accepted or refused."""
        deadline = time.monotonic() + _QUIET
        while True:
            assert time.monotonic() < deadline, f"nobody answers {made['operation']}"
            try:
                status, answer = self.town.service.ask("POST", "/v1/main/decisions", made)
            except Cut:
                time.sleep(0.02)
                continue
            with self._lock:
                self.ledger.hear(made["operation"], status, answer)
            if status in {200, 201, 409}:
                return
            time.sleep(0.02)

    # Striking.

    def _strike(self, victim: str, how: signal.Signals, lane: str, watch: Watch) -> int:
        town = self.town
        pids: dict[str, Callable[[], int | None]] = {
            "holder": watch.holder,
            "service": lambda: town.service.pid,
            "dispatcher": lambda: town.dispatcher.pid,
            "worker": lambda: town.puller.pid,
            "receiver": lambda: _process(town.receivers[lane]),
        }
        pid = pids[victim]()
        if pid not in {town.service.pid, town.dispatcher.pid} and victim == "holder":
            pid = town.dispatcher.pid
        assert pid is not None
        os.kill(pid, how)
        if how is signal.SIGKILL:
            self._reap(pid)
            self.hits["left pending"] += watch.pending() > 0
        return pid

    def _reap(self, pid: int) -> None:
        """Wait for the end of a process that was killed: one that nobody waits for seems alive."""
        town = self.town
        processes = [town.service.process, town.dispatcher.process, town.puller.process]
        processes += [receiver.process for receiver in town.receivers.values()]
        for process in processes:
            if process is not None and process.pid == pid:
                process.wait(_QUIET)

    def _outlast(self, pid: int, lane: str) -> None:
        """Sweep until nothing goes on that a process held when it was stopped, wherever it stands.

        One that stands inside a turn is named, and ended.
        """
        town = self.town
        held = {
            row["id"]: row["lease"]
            for row in town.rows().values()
            if row["status"] == "running" and _held_by(row, pid, lane, town)
        }
        deadline = time.monotonic() + _QUIET
        while True:
            swept = town.run("sweep", "--json")
            if swept.code == 3 and f"kill -9 {pid}" in swept.err:
                self.hits["stopped in a turn"] += 1
                os.kill(pid, signal.SIGKILL)
                self._reap(pid)
                return
            assert swept.code in {0, 3}, swept
            if swept.code == 0 and not self._left(held):
                return
            until("their time is over", lambda: all(map(_is_over, self._left(held))))
            assert time.monotonic() < deadline, f"never swept: {self._left(held)}"

    def _left(self, held: dict[str, int]) -> list[dict[str, Any]]:
        """The rows that still run under these claims."""
        rows = self.town.rows()
        return [
            rows[identity]
            for identity, lease in held.items()
            if (rows[identity]["status"], rows[identity]["lease"]) == ("running", lease)
        ]

    # Rewinding.

    def _snapshot(self, number: int) -> Path:
        folder = self.town.folder / f"snapshot-{number}"
        self.town.do("snapshot", str(folder))
        return folder

    def _rewind(self, copy: Path) -> None:
        """Back to before the round's releases, and forward again by the command line.

        The worker and the receivers know nothing of it. Half of the time neither do the service and
        the dispatcher: the file is replaced under them.
        """
        town = self.town
        self.rewound += 1
        if self.rng.random() < 0.5:
            for each in (town.service, town.dispatcher):
                each.kill()
            history = town.status()["history"]
            confirmed = ("--confirm-tenant", "main", "--confirm-history", history)
            town.do("restore", str(copy), *confirmed)
        else:
            town.put_back(copy)
        begun = town.run("recover", "begin", "--reason", "a round", "--json")
        if begun.code == 3:
            _end_holder(begun)
            begun = town.run("recover", "begin", "--reason", "a round", "--json")
        assert begun.code == 0, begun
        plan = town.run("recover", "plan", "--json")
        assert plan.code in {0, 1}, plan
        town.do("recover", "apply", "--plan", plan.json["plan"])
        if self.rng.random() < 0.5:
            # What nobody can tell ends with 1; what was asked about is settled by then.
            asked = town.run("recover", "reconcile", "--json")
            assert asked.code in {0, 1}, asked
            self.books.held |= {
                row["id"] for row in town.rows().values() if row["status"] == "unknown"
            }
        waived = ("--despite", "reconciled", "--reason", "a round")
        assert town.do("recover", "reopen", *waived)["stage"] == "open"
        shutil.rmtree(copy)

    # The end of a round.

    def _until_quiet(self) -> None:
        deadline = time.monotonic() + _QUIET
        while left := self.books.unquiet():
            assert time.monotonic() < deadline, f"never quiet: {left}"
            time.sleep(0.05)

    def _settle_some(self, number: int) -> None:
        """The owner finds out and says so, in later rounds: nobody can be at work any more."""
        executed = {release for lane in LANES for release in self.books.executed(lane)}
        for row in self.town.rows().values():
            early = row["entity"].startswith(f"document/r{number}-")
            if row["status"] != "unknown" or early or self.rng.random() < 0.5:
                continue
            self._settle(row["id"], happened=row["id"] in executed)

    def _settle(self, release: str, *, happened: bool) -> None:
        said = {"happened": happened, "evidence": "found in the record"}
        status, answer = self.town.service.ask("POST", f"/v1/main/releases/{release}/settle", said)
        assert status == 200, answer
        assert answer["status"] == ("done" if happened else "refused"), answer

    def finish(self) -> Counter[str]:
        """Settle everything, repeat everything, and compare to the last byte."""
        executed = {release for lane in LANES for release in self.books.executed(lane)}
        for row in self.town.rows().values():
            if row["status"] == "unknown":
                self._settle(row["id"], happened=row["id"] in executed)
        ends = self.books.check_accounts()
        done = {row["id"] for row in self.town.rows().values() if row["status"] == "done"}
        assert done == executed
        self.ledger.imported |= self.books.journal.reports
        refused = len(self.ledger.unsettled)
        self.ledger.repeat(self.town.service, self.ledger.told)
        assert len(self.ledger.unsettled) == refused
        self.ledger.check_journal(self.town.journal)
        report = self.town.do("verify")
        assert (report["verdict"], report["findings"]) == ("clean", [])
        return ends


def _process(receiver: Any) -> int | None:
    return None if receiver.process is None else receiver.process.pid


def _held_by(row: dict[str, Any], pid: int, lane: str, town: Town) -> bool:
    """Whether a process is at work on a row: by its claim, or at the other end of its call."""
    if pid == town.puller.pid:
        return bool(row["worker"] == town.puller.name)
    if pid in {town.service.pid, town.dispatcher.pid}:
        return str(row["worker"]).endswith(f":{pid}")
    return bool(row["lane"] == lane)


def _is_over(row: dict[str, Any]) -> bool:
    return bool(datetime.fromisoformat(row["sweep_at"]) < datetime.now(UTC))


def _end_holder(refused: Ran) -> None:
    """End the process that hangs inside a turn, as the command says to."""
    assert "kill -9 " in refused.err, refused
    os.kill(int(refused.err.rpartition("kill -9 ")[2].split()[0]), signal.SIGKILL)


def _all_well(deciding: Sequence[Future[None]]) -> None:
    for each in deciding:
        each.result(_QUIET)


def _run(folder: Path, rounds: int) -> dict[str, Any]:
    began = time.monotonic()
    with town_at(folder) as town:
        town.start_all()
        run = Rounds(town, SEED)
        for number in range(1, rounds + 1):
            try:
                run.run(number)
            except BaseException as error:
                error.add_note(f"in round {number} of UNREWIND_SEED={SEED}; stderr of the service:")
                error.add_note(town.service.errors)
                error.add_note(f"and of the dispatcher:\n{town.dispatcher.errors}")
                raise
        ends = run.finish()
        for server in town.servers:
            assert "Traceback" not in server.errors, (SEED, server.errors)
        town.puller.kill()
        assert "Traceback" not in town.puller.log.read_text(), town.puller.log.read_text()
        for receiver in town.receivers.values():
            assert not receiver.errors, receiver.errors
        assert town.dispatcher.stop() == 0, town.dispatcher.errors
        assert town.service.stop() == 0, town.service.errors
        assert verify_files(town.settings) == []
    told: dict[str, Any] = {
        "rounds": rounds,
        "seed": SEED,
        "seconds": round(time.monotonic() - began),
        "rewound": run.rewound,
        "acknowledged": len(run.ledger.told),
        "hits": dict(run.hits),
        "ends": dict(sorted(ends.items())),
    }
    lists = {name: [f"{k}: {n}" for k, n in told[name].items()] for name in ("hits", "ends")}
    figures = {**told, **lists, "effects_twice": 0, "effects_uncommitted": 0}
    command = "make soak ARGS=tests/soak/test_releases.py"
    record("rounds-releases", command, scope=rounds, **figures)
    return told


def test_p4_no_effect_happens_twice_or_uncommitted_over_rounds(tmp_path: Path) -> None:
    told = _run(tmp_path, SHORT)
    assert told["rewound"] == SHORT // 4
    assert told["hits"].get("STORED", 0) + told["hits"].get("CALLING", 0) > 0
    sys.stdout.write(f"{told}\n")


@pytest.mark.soak
def test_p4_no_effect_happens_twice_or_uncommitted_over_many_rounds(tmp_path: Path) -> None:
    told = _run(tmp_path, LONG)
    assert told["rewound"] == LONG // 4
    sys.stdout.write(f"{told}\n")
