"""A store and a journal full of decisions, written by unrewind, for the sides that read them."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks import ours, standin
from benchmarks.isolated import isolated
from benchmarks.measure import NotBuiltError
from benchmarks.workload import Slice


@dataclass(frozen=True)
class Material:
    """The files; `data` is unrewind's directory, absent (with a note why) for a stand-in."""

    store: Path
    journal: Path
    entry_bytes: str
    data: Path | None
    notes: list[str]

    def own(self) -> Path:
        """The directory to give to unrewind. Raises NotBuiltError for a stand-in."""
        if self.data is None:
            raise NotBuiltError(self.notes[0])
        return self.data


def written(folder: Path, decisions: Slice) -> Material:
    """Fill `folder` with the decisions, by unrewind where it can."""
    data = folder / "data"
    try:
        isolated(import_slice, data, decisions)
        store, journal = ours.database_files(data)
    except NotBuiltError as error:
        store, journal = isolated(standin.write, folder, decisions)
        note = f"{error}; the baseline's rows are a stand-in's"
        return Material(store, journal, standin.ENTRY_BYTES, None, [note])
    return Material(store, journal, ours.ENTRY_BYTES, data, [])


def import_slice(data: Path, decisions: Slice) -> float:
    return ours.import_decisions(data, list(decisions))
