"""`python -m benchmarks.proof`: write docs/proof.md from what long runs have left.

Evidence of tests lies in `.proof/` (or `UNREWIND_PROOF`), ratios in `benchmarks/results/`. What has
left nothing is named as not run.
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.registry import MEASURES
from tests.support.proof import ROOT, commit, folder

PAGE = ROOT / "docs" / "proof.md"
RESULTS = ROOT / "benchmarks" / "results"
_SCOPE = {"scope"}
"""Figures that only say which of two runs is kept."""


@dataclass(frozen=True)
class Section:
    """One kind of evidence: which files hold it, what is done, and what it would have shown."""

    title: str
    names: tuple[str, ...]
    done: str
    shows: str
    command: str
    unit: str = "cases"
    """What the figure ``scope`` counts."""


SECTIONS = (
    Section(
        "Simulation",
        ("simulation*",),
        "The real rules, writers and recoveries in one process, with simulated time, disk, network "
        "and receivers. A seed makes a whole history of crashes, rewinds, lost messages and clock "
        "jumps, and gives the same one again.",
        "A promise (P1 to P12) that some order of events breaks, with the seed that repeats it.",
        "make simulate SEEDS=20000",
        "seeds",
    ),
    Section(
        "Mutants",
        ("mutants*", "drill-broken*"),
        "Each promise is broken on purpose in the code, one at a time.",
        "A check that would not notice: a mutant that no run finds.",
        "make simulate SEEDS=1000 ARGS=--mutants",
        "mutants",
    ),
    Section(
        "Failing calls",
        ("faults*",),
        "Each system call that a process makes on the tenant's files fails in turn (EIO, ENOSPC), "
        "or kills its process there.",
        "An acknowledged decision that is lost, one that is made twice, an effect that happens "
        "twice, a message that does not name its cause.",
        "make soak ARGS=tests/faults",
        "faults",
    ),
    Section(
        "Power loss",
        ("power*",),
        "All writes and syncs of a run are recorded, and replayed up to each of them, without what "
        "was not synced, or with part of it, or with a torn write.",
        "A sync that is missing: an acknowledgement that did not survive.",
        "make soak ARGS=tests/faults",
    ),
    Section(
        "Input",
        ("schemathesis*", "fuzz*", "machine*", "machines*", "input*"),
        "Requests made from the API's own description and from nonsense; state machines over "
        "histories, the gate and leases; generated files, entries and settings.",
        "A server error, an answer that the description does not have, a rule that contradicts its "
        "model.",
        "make soak ARGS='tests/fuzz tests/api/test_openapi.py tests/journal'",
    ),
    Section(
        "Damaged evidence",
        ("mutations*", "mutated*"),
        "Stored bytes of every kind are flipped, cut, removed, doubled and swapped.",
        "A change that `verify` does not find, or calls by a wrong name.",
        "make soak ARGS=tests/reconstruct",
    ),
    Section(
        "Rounds of kills and rewinds",
        ("rounds*",),
        "Servers, dispatchers, workers and receivers as processes under load. In each round one is "
        "killed or stopped at a random moment, or the store is put back to an earlier copy.",
        "An acknowledged decision that is gone or was made twice; an effect twice, uncommitted, or "
        "after its receipt.",
        "make soak ARGS='tests/soak tests/engines/test_rounds.py'",
        "rounds",
    ),
    Section(
        "Kill points of a recovery",
        ("kill-points*",),
        "A whole recovery, killed before and after each call that it makes of store and journal, "
        "and run again.",
        "Another state at the end, or other calls to receivers, than without a kill.",
        "make soak ARGS=tests/reconstruct/test_killed.py",
        "kills",
    ),
    Section(
        "The drill",
        ("drill", "drill-on-*"),
        "`unrewind drill`: the failures that the design claims to survive, with real processes.",
        "A promise that is named as broken.",
        "make soak ARGS=tests/engines/test_drill.py",
        "checks",
    ),
    Section(
        "Several processes",
        ("processes*",),
        "Server processes of one tenant are killed and paused in turn while the others go on.",
        "A decision or an effect twice, or a process that keeps the others waiting.",
        "make soak ARGS=tests/processes",
        "kills and pauses",
    ),
    Section(
        "Load",
        ("load*",),
        "Mixed traffic in closed loops against one server process, as fast as it answers; the same "
        "with a journal that cannot be written for 2 s in every 20. Memory (MiB, without what is "
        "mapped from files), handles and threads are medians, early when memory had stopped rising "
        "for an eighth of the time, late at the end. `load` has small page caches, so whatever "
        "else grows shows; `load-stalling` has those of a real service, which fill up to a limit.",
        "Memory, handles, threads or times that grow; anything acknowledged that is not in the "
        "journal; an effect twice.",
        "make load MINUTES=10",
        "seconds",
    ),
    Section(
        "Overload",
        ("overload*",),
        "Twice and ten times what may wait, by callers that come again at once; stops in the midst "
        "of it. Slow clients, idle connections and receivers that hang are in the same tests.",
        "A rate that collapses, an answer other than 429 or 503 with `Retry-After`, a stop that "
        "loses something or does not end.",
        "make load MINUTES=10",
        "seconds",
    ),
)

_LIMITS = """\
## What this does not show

- Power loss and failing disks are replayed and injected, not made with real power and real disks.
- Ratios were measured on the machine above; another one has others.
- Both copies lost at once are lost: see *What is not promised* in `unrewind status`.
- What a receiver does is what it says it did.
"""


class Evidence:
    """Everything that was recorded, by name; ``used`` is what some section has shown."""

    def __init__(self, where: Path) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.used: set[str] = set()
        self.unreadable: list[str] = []
        for path in sorted(where.glob("*.json")):
            try:
                content = json.loads(path.read_bytes())
                content["figures"].items()
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                self.unreadable.append(path.name)
                continue
            self.found[path.stem] = content

    def of(self, section: Section) -> list[tuple[str, dict[str, Any]]]:
        names = [name for name in self.found if any(fnmatch(name, each) for each in section.names)]
        self.used.update(names)
        return [(name, self.found[name]) for name in names]


@dataclass(frozen=True)
class Ratio:
    """One measure as it was last run, by preference at its full size."""

    name: str
    found: dict[str, Any]
    at: str
    quick: bool
    machine: dict[str, Any]


def ratios(results: Path) -> dict[str, Ratio]:
    """The newest result of each measure that has one; a quick run gives way to a whole one."""
    found: dict[str, Ratio] = {}
    for path in sorted(results.glob("*.json")):
        try:
            run = json.loads(path.read_bytes())
            rows = run["ratios"].items()
        except (OSError, ValueError, KeyError, AttributeError):
            continue
        for name, row in rows:
            known = found.get(name)
            worse = known is not None and run["quick"] and not known.quick
            if row.get("ratio") is not None and not worse:
                found[name] = Ratio(name, row, run["at"], run["quick"], run["machine"])
    return found


def page(evidence: Evidence, measured: dict[str, Ratio], now: str) -> str:
    return "\n".join(
        [
            *_top(now),
            *_summary(evidence, measured),
            "",
            *(line for section in SECTIONS for line in _section(section, evidence)),
            *_others(evidence),
            *_ratios(measured),
            "",
            *_machines(evidence, measured),
            "",
            _LIMITS.rstrip(),
            "",
        ]
    )


def _top(now: str) -> Iterator[str]:
    yield "# Proof"
    yield ""
    yield _wrapped(
        "What was run to find this wrong, how much of it, and what came of it. `make report` wrote "
        f"this page on {now[:10]} at commit {commit()}, from what the runs left behind; a `+` "
        "behind a commit says that files differed from it. What left nothing is called *not run "
        "here*. A test that finds something fails and leaves nothing, so figures stand here only "
        "of runs that came to their end; where one counts what it missed, that is among them."
    )
    yield ""


def _summary(evidence: Evidence, measured: dict[str, Ratio]) -> Iterator[str]:
    yield "| | Run | Again with |"
    yield "|---|---|---|"
    for section in SECTIONS:
        runs = evidence.of(section)
        latest = max((run["at"] for _, run in runs), default=None)
        told = (
            "**not run here**" if latest is None else f"{_most(runs, section.unit)}, {latest[:10]}"
        )
        yield f"| {section.title} | {told} | `{section.command}` |"
    missed = [one for one in MEASURES if one.name in measured and not _met(measured[one.name])]
    absent = [one.name for one in MEASURES if one.name not in measured]
    said = f"{len(measured)} measured, {len(missed)} below their goal"
    if absent:
        said += f", not run here: {', '.join(absent)}"
    yield f"| Ratios | {said} | `make bench` |"


def _most(runs: list[tuple[str, dict[str, Any]]], unit: str) -> str:
    """What a section's runs covered, in a few words."""
    total = sum(int(run["figures"].get("scope", 0)) for _, run in runs)
    many = f"{len(runs)} run" + ("s" if len(runs) > 1 else "")
    return f"{many}, {total:,} {unit if total != 1 else unit.removesuffix('s')}" if total else many


def _section(section: Section, evidence: Evidence) -> Iterator[str]:
    yield f"## {section.title}"
    yield ""
    yield _wrapped(section.done)
    yield ""
    yield _wrapped(f"It would have shown: {section.shows[0].lower()}{section.shows[1:]}")
    yield ""
    runs = evidence.of(section)
    if not runs:
        yield f"**Not run here.** `{section.command}` runs it."
        yield ""
    yield from _runs(runs)


def _others(evidence: Evidence) -> Iterator[str]:
    left = sorted(evidence.found.keys() - evidence.used)
    if left:
        yield "## Also run"
        yield ""
    yield from _runs([(name, evidence.found[name]) for name in left])
    if evidence.unreadable:
        yield f"Not readable, and left out: {', '.join(evidence.unreadable)}."
        yield ""


def _runs(runs: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    """Runs by themselves, or in one table where they have the same command and figures."""
    alike: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    for name, run in runs:
        lists = any(isinstance(value, list) for value in run["figures"].values())
        key = (name,) if lists else (run["command"], *run["figures"])
        alike.setdefault(key, []).append((name, run))
    for group in alike.values():
        yield from (_run(*group[0]) if len(group) == 1 else _table(group))


def _table(runs: list[tuple[str, dict[str, Any]]]) -> Iterator[str]:
    names = [name for name in runs[0][1]["figures"] if name not in _SCOPE]
    yield f"`{runs[0][1]['command']}`"
    yield ""
    yield f"| | {' | '.join(name.replace('_', ' ') for name in names)} | |"
    yield "|---" * (len(names) + 2) + "|"
    for name, run in runs:
        figures = [_figure(run["figures"][each]) for each in names]
        yield f"| {name} | {' | '.join(figures)} | {run['at'][:10]} at {run['commit']} |"
    yield ""


def _run(name: str, run: dict[str, Any]) -> Iterator[str]:
    yield f"**{name}**, {run['at'][:10]} at {run['commit']}: `{run['command']}`"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for key, value in run["figures"].items():
        if key not in _SCOPE or len(run["figures"]) == 1:
            yield f"| {key.replace('_', ' ')} | {_figure(value)} |"
    yield ""


def _figure(value: Any) -> str:
    if isinstance(value, list):
        return "<br>".join(_figure(each) for each in value) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) < 1 << 31 else str(value)
    return str(value).replace("|", "\\|")


def _ratios(measured: dict[str, Ratio]) -> Iterator[str]:
    yield "## Ratios"
    yield ""
    yield _wrapped(
        "Both sides in one run, with the same durability; medians of paired runs (range). "
        "[performance.md](performance.md) says where the time goes. *Quick* is a run of small "
        "sizes."
    )
    yield ""
    yield "| | Measured | Against | Goal | Reached | |"
    yield "|---|---|---|---|---|---|"
    for measure in MEASURES:
        one = measured.get(measure.name)
        sign = "≥" if measure.better == "higher" else "≤"
        goal = "none" if measure.goal is None else f"{sign} {measure.goal:g}"
        start = f"| {measure.name} | {measure.title} | {measure.against} | {goal} |"
        if one is None:
            yield f"{start} | not run here |"
            continue
        runs = one.found["runs"]
        reached = f"{one.found['ratio']:.3g} ({min(runs):.3g} to {max(runs):.3g})"
        verdict = "" if measure.goal is None else ("met" if _met(one) else "**missed**")
        when = one.at[:10] + (", quick" if one.quick else "")
        yield f"{start} {reached} | {f'{verdict} {when}'.strip()} |"


def _met(one: Ratio) -> bool:
    """By the goal of today, not by that of the run."""
    measure = next(each for each in MEASURES if each.name == one.name)
    return measure.met(float(one.found["ratio"]))


def _machines(evidence: Evidence, measured: dict[str, Ratio]) -> Iterator[str]:
    yield "## Machines"
    yield ""
    runs = [run["machine"] for run in evidence.found.values()]
    told = {_machine(each) for each in [*runs, *(one.machine for one in measured.values())]}
    for each in sorted(told):
        yield f"- {each}"
    if not told:
        yield "None: nothing was run here."


def _machine(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cpus']} CPUs ({facts['cpu']}), {facts['kernel']}, Python {facts['python']}, "
        f"SQLite {facts['sqlite']}, {facts['filesystem']}"
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 104, break_long_words=False, break_on_hyphens=False)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    chosen = parser.parse_args(given)
    evidence = Evidence(folder())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    text = page(evidence, ratios(chosen.results), now)
    chosen.page.write_text(text)
    absent = [section.title for section in SECTIONS if not evidence.of(section)]
    print(f"written to {chosen.page.name}" + (f"; not run: {', '.join(absent)}" if absent else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
