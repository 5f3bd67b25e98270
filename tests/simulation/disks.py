"""The disks: copies of the store and the journal from earlier moments, and what puts them back."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from tests.simulation import machine
from tests.simulation.promises import Line, lines_of

if TYPE_CHECKING:
    from tests.simulation.world import World

AUTHORITY = "SELECT history, generation, stage, first, digest FROM authority"
_SIDES = ("-wal", "-shm")
_ENTRIES = (
    "SELECT position, stream, sequence, history, entity, revision, operation, digest,"
    " CAST(envelope AS BLOB), body FROM entries ORDER BY position"
)


class Copy(Struct):
    """A consistent copy of a file as of one moment."""

    file: Path
    at: float


def read(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a database, by a connection that is no part of the world."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        try:
            return database.execute(sql).fetchall()
        except UnicodeDecodeError as error:  # of an error whose message names what is no text
            raise sqlite3.DatabaseError(repr(error.object)) from error


def journal_lines(path: Path) -> list[Line]:
    """Every entry of a journal's file."""
    return lines_of(value for row in read(path, _ENTRIES) for value in row)


class Disks:
    """The tenant's two files, and the copies that were made of them."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        folder.mkdir()
        self.store = world.settings.store_file
        self.journal = world.settings.journal_file
        self.copies: dict[str, list[Copy]] = {"store": [], "journal": []}
        self.newest: Copy | None = None
        self.inode = self.journal.stat().st_ino
        self.behind: dict[str, str] = {}
        """Files of the store that were put there, by inode, while the journal knew more."""

    def file(self, what: str) -> Path:
        """The file of the store or of the journal."""
        return self.store if what == "store" else self.journal

    def copy(self, what: str) -> Copy | None:
        """Keep a copy; None: there is no file that can be read."""
        target = self.folder / f"{what}-{self.world.fresh()}.db"
        source = self.file(what)
        if not source.exists() or source.stat().st_size == 0:
            return None
        try:
            with (
                closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old,
                closing(sqlite3.connect(target)) as new,
            ):
                old.backup(new)
        except sqlite3.Error:
            target.unlink(missing_ok=True)
            return None
        return Copy(target, machine.hub().now)

    def keep(self, what: str) -> None:
        """Keep a copy to go back to."""
        made = self.copy(what)
        if made is not None:
            self.copies[what].append(made)

    def rewind(self, how: str, depth: float) -> bool:
        """Put an earlier store in the place of the present one; whether one was there to put.

        ``how`` is *renamed* (a new file), *over* (written over in place), *under* (the old main
        file beside the newer log), *emptied*, *gone* or *forward* (the newest put back).
        """
        if how in {"emptied", "gone"}:
            self._remove(how)
            self.reckon()
            return True
        copies = self.copies["store"]
        chosen = self.newest if how == "forward" else None
        if how != "forward" and copies:
            chosen = copies[min(int(depth * len(copies)), len(copies) - 1)]
        if chosen is None:
            return False
        if how != "forward":
            self.newest = self.copy("store") or self.newest
        else:
            self.newest = None
        if how in {"over", "under"} and not self.store.exists():
            how = "renamed"
        if how == "over":
            self._write_over(chosen.file)
        else:
            self._put(chosen.file, self.store, sides=how != "under")
        if how == "renamed":
            self.note(f"was rewound to {chosen.at:.1f} s")
        self.reckon()
        return True

    def put_table_back(self, depth: float) -> bool:
        """Put rows of releases back that stand in an earlier copy too; whether any are there."""
        copies = self.copies["store"]
        if not copies or not self.store.exists():
            return False
        chosen = copies[min(int(depth * len(copies)), len(copies) - 1)]
        try:
            with closing(sqlite3.connect(self.store, timeout=0)) as present:
                present.execute("ATTACH ? AS earlier", (str(chosen.file),))
                columns = [row[1] for row in present.execute("PRAGMA table_info(unrewind_work)")]
                kept = ", ".join(name for name in columns if name not in {"number", "id"})
                changed = present.execute(
                    f"UPDATE unrewind_work SET ({kept}) = (SELECT {kept} FROM earlier.unrewind_work"
                    " AS o WHERE o.id = unrewind_work.id) WHERE effect = 'external'"
                    " AND id IN (SELECT id FROM earlier.unrewind_work)"
                ).rowcount
                present.commit()
        except sqlite3.Error:
            return False
        return changed > 0

    def reckon(self) -> None:
        """While the journal is an older one, what the store does not hold either is gone."""
        self.world.mirror.reckon(self._stored([])[0])

    def _remove(self, how: str) -> None:
        self.newest = self.copy("store") or self.newest
        for side in ("", *_SIDES):
            self.store.with_name(self.store.name + side).unlink(missing_ok=True)
        if how == "emptied":
            self.store.touch()

    def _put(self, source: Path, target: Path, *, sides: bool) -> None:
        aside = target.with_name("incoming")
        aside.write_bytes(source.read_bytes())
        if sides:
            for side in _SIDES:
                target.with_name(target.name + side).unlink(missing_ok=True)
        aside.rename(target)

    def _write_over(self, source: Path) -> None:
        content = source.read_bytes()
        with self.store.open("r+b") as file:
            file.write(content)
            file.truncate()
        machine.bump(str(self.store))

    def note(self, how: str) -> None:
        """Remember whether what stands there now, a file of its own, lacks what is journalled."""
        tip = self.world.mirror.tip
        try:
            rows = read(self.store, "SELECT history, sequence FROM unrewind_marker")
        except sqlite3.Error:
            return
        if tip is not None and rows and rows[0] != (tip.history, tip.sequence):
            self.behind[str(self.store.stat().st_ino)] = how

    def lose(self, depth: float, *, store: bool) -> bool:
        """Put an earlier journal back, and perhaps a store; nobody may have them open."""
        copies = self.copies["journal"]
        if not copies or (store and not self.copies["store"]):
            return False
        known = len(self.world.mirror.lines)
        chosen = copies[min(int(depth * len(copies)), len(copies) - 1)]
        self._put(chosen.file, self.journal, sides=True)
        if store:
            self._put(self.copies["store"][0].file, self.store, sides=True)
        lines = journal_lines(self.journal)
        stored, ahead = self._stored(lines)
        witness = self._witnessed()
        told = ahead or (witness > len(lines) and known > len(lines))
        self.inode = self.journal.stat().st_ino
        self.world.mirror.lose(lines, self._authority(), stored, told=told)
        return True

    def _stored(self, lines: list[Line]) -> tuple[set[str], bool]:
        """The decisions that the store holds, and whether it is ahead of these entries."""
        try:
            rows = read(self.store, "SELECT lower(hex(digest)), sequence FROM unrewind_decisions")
            handed = read(self.store, "SELECT journalled FROM unrewind_marker")
        except sqlite3.Error:
            return set(), False
        last = max((line.sequence or 0 for line in lines if line.stream == "decisions"), default=0)
        return {str(digest) for digest, _ in rows}, bool(handed and handed[0][0] > last)

    def _witnessed(self) -> int:
        """How many entries the witness saw."""
        path = self.world.settings.witness_file
        return int(json.loads(path.read_bytes())["position"]) if path.exists() else 0

    def _authority(self) -> tuple[Any, ...]:
        return read(self.journal, AUTHORITY)[0]

    def look(self) -> None:
        """Notice a journal that was put in the place of another one: it was healed."""
        if not self.journal.exists():
            return
        inode = self.journal.stat().st_ino
        if inode != self.inode:
            self.inode = inode
            self.world.count("journal replaced")
            self.world.mirror.heal(journal_lines(self.journal), self._authority())
