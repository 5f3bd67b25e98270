"""P1, P2, P6, P11: rounds of load, kills and rewinds, over one tenant that goes on and on."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api.drill.copying import embedded
from api.drill.facts import rows_of
from journal.places import place_of_log
from tests.soak.ledger import ROWS, Ledger
from tests.soak.processes import Site, holders, site_at, until
from tests.soak.storm import ENTITIES, Work, storm
from tests.support.proof import record
from tests.support.whole import verify_files

SEED = int(os.environ.get("UNREWIND_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
SHORT, LONG = 8, int(os.environ.get("UNREWIND_ROUNDS", "100"))
_CLIENTS, _CALLS = 32, 12
_CHECKED = 1000
_KEPT = 6
_IMPORT = (
    "--entity-type", "case", "--entity", "case", "--action", "action", "--operation", "operation",
)  # fmt: skip


class Rounds:
    """A tenant, its server, what clients were told, and the snapshots to go back to."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.work = Work(self.rng, self.ledger)
        self.snapshots: list[Path] = []
        self.server = site.start()
        self.rewound = 0

    # One round.

    def run(self, number: int) -> None:
        """Load; an end of the server in the midst of it; perhaps a rewind; and every check."""
        kind = ("rewind", "kill", "terminate", "import")[number % 4]
        imported = self._import(number, strict=number % 8 == 3) if kind == "import" else None
        graceful = kind == "terminate"
        answers = _CLIENTS * _CALLS
        happens: dict[int, Callable[[], Awaitable[None]]] = {
            self.rng.randint(10, answers // 2): lambda: self._snapshot(number),
            self.rng.randint(answers // 2, answers - 40): lambda: self._strike(graceful=graceful),
        }
        load = storm(
            [self.server], self.work, self.ledger, clients=_CLIENTS, calls=_CALLS, at=happens
        )
        asyncio.run(load)
        code = self.server.wait()
        assert code == (0 if graceful else -signal.SIGKILL), self.server.errors
        assert "Traceback" not in self.server.errors, self.server.errors
        if imported is not None:
            imported()
        if kind == "rewind" and self.snapshots:
            self._rewind(interrupted=number % 8 == 4)
        else:
            self.server = self.site.start()
        self.check()

    def check(self, most: int = _CHECKED) -> None:
        self.ledger.check(self.server, self.rng, most)
        self.ledger.check_rows(rows_of(place_of_log(self.site.settings), ROWS))
        report = self.site.do("verify")
        assert (report["verdict"], report["findings"]) == ("clean", [])

    async def _strike(self, *, graceful: bool) -> None:
        await asyncio.sleep(self.rng.random() * 0.005)  # a random moment within a batch
        self.server.signal(signal.SIGTERM if graceful else signal.SIGKILL)

    async def _snapshot(self, number: int) -> None:
        folder = self.site.folder / f"snapshot-{number}"
        ran = await asyncio.to_thread(self.site.run, "snapshot", str(folder), "--json")
        assert ran.code == 0, ran
        self.snapshots.append(folder)
        if len(self.snapshots) > _KEPT:
            shutil.rmtree(self.snapshots.pop(self.rng.randrange(_KEPT)))

    # Kills of other processes.

    def _import(self, number: int, *, strict: bool) -> Callable[[], None]:
        """Begin an import beside the server; what kills it, and then runs it to its end."""
        prefix = f"import-{number}-"
        count = 150 if strict else 9000
        names = {f"{prefix}{row}" for row in range(count)}
        lines = [f"{name},{self.rng.randrange(ENTITIES)},note,{len(name)}" for name in names]
        file = self.site.folder / "rows.csv"
        file.write_text("\n".join(["operation,case,action,n", *lines, ""]))
        arguments = ("import", str(file), *_IMPORT, *(["--strict"] if strict else []))
        process = self.site.popen(*arguments)
        enough = self.rng.randrange(1, count // 2)

        def finish() -> None:
            with process:
                until(
                    "rows are imported",
                    lambda: process.poll() is not None or self._count(prefix) >= enough,
                )
                process.kill()
                process.communicate()
            self.ledger.imported |= names
            done = self.site.do(*arguments)
            assert (done["accepted"] + done["duplicate"], done["refused"]) == (count, 0)
            assert done["duplicate"] >= enough

        return finish

    def _count(self, prefix: str) -> int:
        sql = "SELECT count(*) FROM entries WHERE substr(operation, 1, ?) = ?"
        found: int = rows_of(place_of_log(self.site.settings), sql, len(prefix), prefix)[0][0]
        return found

    def _rewind(self, *, interrupted: bool) -> None:
        """Back to a random snapshot, and forward again by the command line."""
        site = self.site
        status = site.status()
        restored = site.do(
            "restore",
            str(self.rng.choice(self.snapshots)),
            "--confirm-tenant",
            "main",
            "--confirm-history",
            status["history"],
        )
        self.rewound += 1
        behind = restored["snapshot"]["place"]["sequence"] < status["sequence"]
        if interrupted:
            site.do("recover", "begin")
            for _ in range(2):
                self._apply_and_kill()
            site.do("recover", "apply")
            site.do("recover", "reopen")
            self.server = site.start()
        else:
            self.server = site.start()
            if behind:
                told, answer = self.server.decide(*self._known())
                assert (told, answer["type"]) == (503, "/problems/recovering"), answer
            site.recover()

    def _known(self) -> tuple[str, str, str]:
        sent = self.ledger.sent[self.rng.choice(list(self.ledger.told))]
        return sent["operation"], sent["entity"], sent["action"]

    def _apply_and_kill(self) -> None:
        lock = self.site.settings.beside("recovery")
        with self.site.popen("recover", "apply") as process:
            until("it applies", lambda: process.poll() is not None or holders(lock))
            time.sleep(self.rng.random() * 0.03)  # a random moment of its work
            process.kill()
            process.communicate()


def note(name: str, where: str, told: dict[str, Any]) -> None:
    """Keep what happened, for the report."""
    heard = [f"{kind}: {count}" for kind, count in sorted(told["heard"].items())]
    figures = {**told, "heard": heard, "lost": 0, "decided_twice": 0}
    record(name, f"make soak ARGS={where}", scope=told["rounds"], **figures)


def play(folder: Path, rounds: int, **environment: str) -> dict[str, Any]:
    """Rounds over a tenant whose place the environment may name; what happened in them."""
    seed = SEED
    with site_at(folder, **environment) as site:
        run = Rounds(site, seed)
        for number in range(1, rounds + 1):
            try:
                run.run(number)
            except BaseException as error:
                error.add_note(f"in round {number} of UNREWIND_SEED={seed}; stderr of its server:")
                error.add_note(run.server.errors)
                raise
        run.check(len(run.ledger.told))
        assert run.server.stop() == 0, run.server.errors
        assert verify_files(embedded(site.settings, folder / "copied")) == []
        return {
            "rounds": rounds,
            "seed": seed,
            "rewound": run.rewound,
            "acknowledged": len(run.ledger.told),
            "imported": len(run.ledger.imported),
            "heard": dict(run.ledger.reasons),
        }


def test_p2_nothing_acknowledged_is_lost_or_doubled_over_rounds(tmp_path: Path) -> None:
    told = play(tmp_path, SHORT)
    assert told["rewound"] == SHORT // 4
    assert told["acknowledged"] > SHORT * 50
    note("rounds", "tests/soak/test_rounds.py", told)


@pytest.mark.soak
def test_p2_nothing_acknowledged_is_lost_or_doubled_over_many_rounds(tmp_path: Path) -> None:
    told = play(tmp_path, LONG)
    assert told["rewound"] == LONG // 4
    note("rounds", "tests/soak/test_rounds.py", told)
    sys.stdout.write(f"{told}\n")
