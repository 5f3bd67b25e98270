"""What a run leaves: a table on the terminal and one JSON file."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import Noise
from benchmarks.measure import Figure, Measure, Result, median


@dataclass(frozen=True)
class Row:
    """A measure with its result, or with the reason why it has none at all."""

    measure: Measure
    result: Result | None
    reason: str | None
    absent: bool = False
    """Whether it was not to be had here, which is no failure."""

    @property
    def ratio(self) -> float | None:
        ratios = self.result.pairs.ratios if self.result else []
        return median(ratios) if ratios else None

    @property
    def met(self) -> bool | None:
        return None if self.ratio is None else self.measure.met(self.ratio)

    @property
    def missing(self) -> str | None:
        return self.reason or (self.result.pairs.reason if self.result else None)


def lines(row: Row) -> list[str]:
    """The row as text: the ratio, both sides, what was measured beside them, and notes."""
    measure, result = row.measure, row.result
    text = [f"{measure.name}  {measure.title}", f"    against {measure.against}"]
    if row.ratio is None or result is None:
        text.append(f"    not measured: {row.missing} ({_goal(measure)})")
    else:
        met = "met" if row.met else "MISSED"
        figure = spread(Figure("", "", result.pairs.ratios))
        verdict = "" if measure.goal is None else f": {met}"
        text.append(f"    ratio  {figure}  {_goal(measure)}{verdict}")
    if result is None:
        return text
    sides = [Figure("theirs", result.unit, result.pairs.theirs)]
    if row.ratio is not None:
        sides.insert(0, Figure("ours", result.unit, result.pairs.ours))
    width = max(len(one.label) for one in [*sides, *result.also])
    text += [f"    {one.label:<{width}}  {spread(one)}" for one in [*sides, *result.also]]
    text += [f"    note: {note}" for note in result.notes]
    return text


def _goal(measure: Measure) -> str:
    if measure.goal is None:
        return "no goal"
    return f"goal {'>=' if measure.better == 'higher' else '<='} {measure.goal:g}"


def spread(figure: Figure) -> str:
    """Median and range of all runs."""
    if not figure.values:
        return "no runs"
    low, high = min(figure.values), max(figure.values)
    middle = median(figure.values)
    unit = f" {figure.unit}" if figure.unit else ""
    return f"{_number(middle)}{unit}  ({_number(low)} to {_number(high)})"


def noise_lines(noise: Noise) -> list[str]:
    text = ["Noise of the machine during the run: the same loop, median and range"]
    for name, values in (("CPU", noise.cpu_ms), ("fsync", noise.fsync_ms)):
        if values:
            off = (max(values) - min(values)) / median(values)
            text.append(f"    {name:<5}  {spread(Figure('', 'ms', values))}, {off:.0%} apart")
    return text


def document(
    rows: list[Row], noise: Noise, machine: dict[str, object], settings: dict[str, object]
) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        **settings,
        "machine": machine,
        "noise": {"cpu_ms": _rounded(noise.cpu_ms), "fsync_ms": _rounded(noise.fsync_ms)},
        "ratios": {row.measure.name: _ratio(row) for row in rows},
    }


def save(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ") + ".json")
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path


def _ratio(row: Row) -> dict[str, Any]:
    measure, result = row.measure, row.result
    pairs = result.pairs if result else None
    found: dict[str, Any] = {
        "ratio": None if row.ratio is None else round(row.ratio, 4),
        "goal": measure.goal,
        "better": measure.better,
        "met": row.met,
        "runs": _rounded(pairs.ratios) if pairs else [],
        "ours": round(median(pairs.ours), 4) if pairs and row.ratio is not None else None,
        "theirs": round(median(pairs.theirs), 4) if pairs and pairs.theirs else None,
        "unit": result.unit if result else None,
        "title": measure.title,
        "against": measure.against,
    }
    if row.ratio is None:
        found["reason"] = row.missing
    if result:
        found["ours_runs"] = _rounded(result.pairs.ours) if row.ratio is not None else []
        found["theirs_runs"] = _rounded(result.pairs.theirs)
        found["notes"] = result.notes
        found["also"] = [
            {"label": one.label, "unit": one.unit, "values": _rounded(one.values)}
            for one in result.also
        ]
    return found


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.2g}"
