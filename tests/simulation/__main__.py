"""`make simulate SEEDS=count START=n`: play seeds on every core; exit 1 for a broken promise."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from tests.simulation.mutants import MUTANTS
from tests.simulation.playing import Played, shared
from tests.simulation.running import first_to_find, run_all, total
from tests.simulation.shortening import shorten
from tests.support.proof import record

_TAIL = 40
_HASHES = "PYTHONHASHSEED"


def main() -> int:
    """Play, tell, and shorten what breaks."""
    arguments = _arguments()
    if os.environ.get(_HASHES) != "0":
        # The order of a set is part of what a seed fixes.
        os.execve(  # noqa: S606 - this very program
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, _HASHES: "0"},
        )
    if arguments.mutants:
        return _mutants(arguments.seeds, arguments.jobs)
    began = time.monotonic()
    every: list[Played] = []
    failed: list[Played] = []
    with shared() as folder:
        seeds = range(arguments.start, arguments.start + arguments.seeds)
        for played in run_all(seeds, folder, arguments.jobs, arguments.mutant):
            every.append(played)
            _progress(len(every), arguments.seeds, len(failed))
            if played.promise is None:
                continue
            failed.append(played)
            _tell(played, arguments.trace)
            if arguments.mutant is not None or len(failed) >= arguments.failures:
                break
        if failed and not arguments.long:
            events, best = shorten(failed[0], folder, arguments.mutant)
            _say(f"\nseed {failed[0].seed}, shortened to {len(events)} events:")
            _say(*(f"  {event}" for event in events))
            _tell(best, arguments.trace or _TAIL)
    counts = total(every)
    if arguments.counts:
        for name, number in sorted(counts.items()):
            _say(f"{number:9d}  {name}")
    if arguments.json:
        _say(json.dumps(dict(sorted(counts.items()))))
        return 1 if failed else 0
    if arguments.hashes:
        _say(*(f"{one.seed} {one.digest}" for one in sorted(every, key=_seed)))
    seconds = time.monotonic() - began
    _say(f"{len(every)} seeds, {len(failed)} broken, {counts['steps']} steps, {seconds:.0f} s")
    if not failed and arguments.mutant is None:
        _record(arguments.seeds, arguments.start, counts)
    return 1 if failed else 0


def _mutants(seeds: int, jobs: int) -> int:
    """Break the code in every way; 1 where one is not found within so many seeds."""
    missed: list[str] = []
    began = time.monotonic()
    with shared() as folder:
        for name, mutant in MUTANTS.items():
            found = first_to_find(name, seeds, folder, jobs)
            told = "NOT FOUND" if found is None else f"seed {found.seed}: {found.promise}"
            _say(f"{mutant.promise:4} {name:36} {told}")
            if found is None or found.promise == "error":
                missed.append(name)
    seconds = time.monotonic() - began
    _say(f"{len(MUTANTS)} mutants, {len(missed)} not found, {seconds:.0f} s")
    if not missed:
        promises = sorted({mutant.promise for mutant in MUTANTS.values()}, key=_number)
        command = f"make simulate SEEDS={seeds} ARGS=--mutants"
        record("mutants", command, scope=len(MUTANTS), found=len(MUTANTS), promises=promises)
    return 1 if missed else 0


def _number(promise: str) -> int:
    return int(promise[1:])


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _seed(played: Played) -> int:
    return played.seed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--start", type=int, default=1, help="the first one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="put a fault into the code")
    parser.add_argument("--mutants", action="store_true", help="look for each of the faults")
    parser.add_argument("--failures", type=int, default=1, help="end after so many broken seeds")
    parser.add_argument("--trace", type=int, default=0, help="lines of the trace to show")
    parser.add_argument("--long", action="store_true", help="do not shorten what breaks")
    parser.add_argument("--counts", action="store_true", help="what happened, all seeds together")
    parser.add_argument("--json", action="store_true", help="the same, as JSON, and no summary")
    parser.add_argument("--hashes", action="store_true", help="a hash of each seed's whole trace")
    return parser.parse_args()


def _progress(done: int, of: int, broken: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done}/{of} seeds, {broken} broken ")


def _tell(played: Played, lines: int) -> None:
    _say(f"\nseed {played.seed}, step {played.step}, {played.at:.3f} s: {played.promise}")
    _say(f"  {played.detail}")
    for line in played.trace[-lines:] if lines else ():
        _say(f"  {line}")
    _say(f"  again: make simulate SEEDS=1 START={played.seed}")


def _record(seeds: int, start: int, counts: dict[str, int]) -> None:
    """Leave the figures for the report."""

    def of(prefix: str) -> int:
        return sum(number for name, number in counts.items() if name.startswith(prefix))

    record(
        "simulation",
        f"make simulate SEEDS={seeds} START={start}",
        scope=seeds,
        seeds=seeds,
        steps=counts["steps"],
        decisions=counts["decisions"],
        acknowledged=counts["accepted"] + counts["repeated"],
        rewinds=of("rewind:"),
        faults=of("fault:"),
        kills=of("kill:"),
        recoveries=counts["recoveries"],
        calls=counts["calls"],
        permits=counts["permits"],
        effects=counts["effects"],
        broken=0,
    )


if __name__ == "__main__":
    sys.exit(main())
