"""`python -m benchmarks [NAME ...]`: run measures, print a table, leave one JSON file."""

import argparse
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, report
from benchmarks.measure import Absent, Context, Measure, why
from benchmarks.registry import MEASURES

RESULTS = Path(__file__).parent / "results"


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [measure.name for measure in MEASURES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all unless named: {names}")
    parser.add_argument("--rounds", type=int, help="paired runs of each measure (5; quick 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes: rough figures soon")
    parser.add_argument("--strict", action="store_true", help="exit 1 unless every goal is met")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    found = parser.parse_args(given)
    found.names = [name.upper() for name in found.names]
    unknown = sorted(set(found.names) - set(names))
    if unknown:
        parser.error(f"no measure is named {', '.join(unknown)}; there are {', '.join(names)}")
    if found.rounds is None:
        found.rounds = 3 if found.quick else 5
    if found.rounds < 1:
        parser.error("--rounds must be at least 1")
    return found


def main(given: list[str] | None = None) -> int:
    chosen = arguments(given)
    # As an interrupt does: end the child processes and remove the data.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    measures = [one for one in MEASURES if not chosen.names or one.name in chosen.names]
    beside = chosen.results.resolve().parent
    beside.mkdir(parents=True, exist_ok=True)
    facts = machine.facts(beside)
    print(
        f"{facts['cpus']} CPUs, {facts['kernel']}, Python {facts['python']}, "
        f"SQLite {facts['sqlite']}, data on {facts['filesystem']}"
    )
    if facts["filesystem"] in {"tmpfs", "ramfs", "overlay"}:
        print(f"warning: fsync on {facts['filesystem']} may cost nothing; use a disk (--results)")
    with TemporaryDirectory(prefix=".work-", dir=beside) as work:
        noise = machine.Noise(Path(work))
        context = Context(Path(work), chosen.rounds, chosen.quick, noise, _say)
        rows = [_run(measure, context) for measure in measures]
    print()
    for row in rows:
        print("\n".join(report.lines(row)), end="\n\n")
    print("\n".join(report.noise_lines(noise)))
    settings = {"quick": chosen.quick, "rounds": chosen.rounds}
    path = report.save(chosen.results, report.document(rows, noise, facts, settings))
    print(f"written to {path}")
    needed = [row for row in rows if not row.absent]
    failed = any(row.result is None for row in needed)
    return int(failed or (chosen.strict and not all(row.met for row in needed)))


def _run(measure: Measure, context: Context) -> report.Row:
    _say(measure.name)
    try:
        return report.Row(measure, measure.run(context), None)
    except Absent as error:
        return report.Row(measure, None, why(error), absent=True)
    except Exception as error:  # noqa: BLE001 - the other measures still have figures
        return report.Row(measure, None, why(error))


def _say(text: str) -> None:
    """Progress, on a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
