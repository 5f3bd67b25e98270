"""A store and a journal full of decisions, written by unrewind, for the sides that read them."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks import ours
from benchmarks.isolated import isolated
from benchmarks.workload import Slice


@dataclass(frozen=True)
class Material:
    """unrewind's directory and the files in it."""

    data: Path
    store: Path
    journal: Path


def written(folder: Path, decisions: Slice) -> Material:
    """Fill `folder` with the decisions."""
    data = folder / "data"
    isolated(import_slice, data, decisions)
    return Material(data, *ours.database_files(data))


def import_slice(data: Path, decisions: Slice, where: ours.Where = ours.EMBEDDED) -> float:
    return ours.import_decisions(data, list(decisions), where)
