"""The drill's report: everything that was done and found, as one structure."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from api.drill import facts
from api.drill.notebook import moment
from api.drill.story import PROMISES, Check, Step, Story
from api.drill.verdict import broken
from journal.places import LogPlace, StorePlace, place_of_log, place_of_store
from journal.settings import Objective, Settings

FILE, PAGE = "report.json", "report.html"


HELD, BROKE, NOT_REACHED = "held", "broke", "not reached"


class Kept(Struct, frozen=True):
    """A promise and what was found about it; *not reached*: the drill broke off before."""

    promise: str
    text: str
    state: str
    checks: list[Check]


class Time(Struct, frozen=True):
    """A measured time in seconds, and the objective (0: none); None: it was not reached."""

    what: str
    seconds: float | None
    within: float

    @property
    def met(self) -> bool:
        """Whether the objective was met; one that is not set always is."""
        return not self.within or (self.seconds is not None and self.seconds <= self.within)


class Report(Struct, frozen=True):
    """What a drill did and found. ``directory`` holds the evidence that it names."""

    at: str
    directory: str
    held: bool
    broke: list[str]
    missed: list[str]
    stuck: str | None
    seconds: float
    promises: list[Kept]
    times: list[Time]
    steps: list[Step]
    counts: dict[str, Any]
    places: list[str]
    rights: list[str]
    source: str | None = None
    credentials: dict[str, bool] = {}


def sentences(report: Report) -> list[str]:
    """What broke, and which objective was missed: one line each, the promise's number first."""
    lines = []
    for kept in report.promises:
        if kept.state == BROKE:
            check = next(check for check in kept.checks if not check.held)
            lines.append(
                f"{kept.promise} broke: {check.name}: expected {check.expected}, "
                f"found {check.found}"
            )
    missing = [kept.promise for kept in report.promises if kept.state == NOT_REACHED]
    if missing:
        lines.append(f"not reached: {', '.join(missing)}: {report.stuck}")
    return [*lines, *report.missed]


def report_on(
    story: Story, objective: Objective, seconds: float, source: Settings | None = None
) -> Report:
    """The report on a drill that has been judged."""
    broke = broken(story)
    promises = [
        _kept(promise, text, story) for promise, text in PROMISES.items() if promise in story.wanted
    ]
    times = _times(story, objective)
    missed = [_missed(time) for time in times if not time.met]
    return Report(
        at=moment(),
        directory=str(story.site.folder),
        held=all(kept.state == HELD for kept in promises),
        broke=list(broke),
        missed=missed,
        stuck=story.stuck,
        seconds=round(seconds, 1),
        promises=promises,
        times=times,
        steps=story.steps,
        counts=_counts(story),
        places=_places(story, source or story.settings),
        rights=_rights(story),
        source=None if source is None else source.data,
        credentials=story.facts.get("credentials", {}),
    )


def _kept(promise: str, text: str, story: Story) -> Kept:
    checks = [check for check in story.checks if check.promise == promise]
    good = all(check.held for check in checks)
    # What broke off the drill is a failed step of one promise; it shows nothing of the others.
    reached = checks and not (good and story.stuck)
    return Kept(promise, text, (HELD if good else BROKE) if reached else NOT_REACHED, checks)


def _missed(time: Time) -> str:
    found = "it was not reached" if time.seconds is None else f"it took {time.seconds:.1f} s"
    return f"objective missed: {time.what} within {time.within:g} s; {found}"


def _times(story: Story, objective: Objective) -> list[Time]:
    begun = story.times.get("begun")
    if begun is None:
        return []
    named = (
        ("safe service again", "safe", objective.safe_within),
        ("the backlog cleared", "clear", objective.backlog_within),
    )
    return [
        Time(what, None if key not in story.times else round(story.times[key] - begun, 2), within)
        for what, key, within in named
    ]


def _counts(story: Story) -> dict[str, Any]:
    calls = facts.calls(story.site.record)
    return {
        "sent": len(story.notebook.sent),
        "acknowledged": len(story.notebook.told),
        "calls": len(calls),
        "executed": sum(call["executed"] for call in calls),
        "releases": len(story.releases),
        "kills": sum(step.what.startswith("kill -9 ") for step in story.steps),
        **{name: story.facts[name] for name in _TOLD if name in story.facts},
    }


_TOLD = ("plan", "report", "fates", "unresolved", "waiting", "rolled", "remark")


def _places(story: Story, settings: Settings) -> list[str]:
    """Where things are, and on which device; of the original where a copy was rehearsed with."""
    named = [
        ("witness", settings.witness_file.parent),
        ("evidence of recoveries", settings.evidence_home),
    ]
    places: dict[str, StorePlace | LogPlace] = {
        "store": place_of_store(settings),
        "journal": place_of_log(settings),
    }
    named[:0] = [(what, place.file.parent) for what, place in places.items() if place.file]
    devices = {what: device_of(path) for what, path in named}
    lines = [f"{what}: {place.label}" for what, place in places.items() if place.file is None]
    lines += [f"{what}: {path}, device {devices[what] or 'unknown'}" for what, path in named]
    shared = [
        what
        for what in ("journal", "witness")
        if what in devices and "store" in devices and devices[what] == devices["store"]
    ]
    lines += [
        f"{what} and store share a device: losing it loses both" for what in shared if devices[what]
    ]
    return [
        *lines,
        f"stop file: {settings.beside('stop')}",
        f"the drill's configuration: {story.site.config}",
        f"what the receiver was called with: {story.site.record}",
        f"what callers were told: {story.site.folder / 'notebook.jsonl'}",
    ]


def device_of(path: Path) -> str | None:
    """The device that a directory lies on, or will lie on when it is made."""
    for each in (path, *path.parents):
        with suppress(OSError):
            device = each.stat().st_dev
            return f"{os.major(device)}:{os.minor(device)}"
    return None


def _rights(story: Story) -> list[str]:
    """What whoever follows the procedure has to be allowed; files as the drill left them."""
    home = story.settings.home
    files = sorted(path.relative_to(home) for path in home.rglob("*") if path.is_file())
    kept = [str(path) for path in files if path.parts[0] != "evidence"]
    return [
        f"write below the data directory: {', '.join(kept)}",
        f"make directories and files in {story.settings.evidence_home.name}/ beside them",
        "read the configuration, and the snapshot or backup that is restored",
        "listen on one port for the service, and call the receivers",
        "end processes of the service's user (kill -9), where one hangs",
    ]


def write(report: Report, folder: Path) -> None:
    """Write the report into the drill's directory, for programs and for people."""
    import msgspec

    from api.drill.page import page

    text = msgspec.json.format(msgspec.json.encode(report))
    (folder / FILE).write_bytes(text + b"\n")
    (folder / PAGE).write_text(page(report), encoding="utf-8")
