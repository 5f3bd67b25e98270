"""Stored evidence, changed a value at a time: every table, every column, every kind of change."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec import Struct

import journal
from journal.control import Role
from journal.entry import digest_of
from journal.errors import NewerFormat
from journal.tokens import create_token
from journal.worker import drive
from reconstruct import verification
from tests.reconstruct.scenes import raw
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings
from tests.support.tenants import operation

Row = tuple[Any, ...]
_RESERVED = -999
"""A key that no row has, for a swap."""


def built(folder: Path) -> journal.Settings:
    """A tenant with something in every table that holds evidence, closed and clean."""
    town = Town(lane_settings(folder))
    try:
        town.fill(6, entities=2)
        town.fill(2, kind="account", entities=1)
        drive(create_token(town.record, Role.READER, "one"))
        town.release("payment/1", amount=7)
        permit = town.permit("pay")
        town.beat(permit, "calling")
        town.report(permit, "confirmed", receipt="r-1")
        town.release("letter/1")
        posted = town.permit("post")
        town.beat(posted, "calling")
        town.observe(posted, "confirmed", receipt="r-9")
        town.recover()
        town.release("bundle/1")
        town.accept(operation("task/1", "start"))
        caller = town.caller(sequenced=True)
        town.append(*caller.chain("contract/1", 3), *caller.chain("contract/2", 2))
        town.put("case/0", "again")
        town.put("case/1", "again")
        town.decide("document/1", "submit", "approve")
        town.put("case/2", "the newest")
        town.settle()
        town.whole()
    finally:
        town.close()
    return town.settings


class Mutant(Struct, frozen=True):
    """One change: what it is, and the statements that make it."""

    table: str
    what: str
    """A column, or `row` for a change of a whole one."""
    how: str
    where: str
    statements: list[tuple[str, Row]]


class Evidence:
    """A database of a tenant as it was, and every change of it."""

    def __init__(self, settings: journal.Settings, file: Path) -> None:
        self.settings = settings
        self.file = file
        self._kept = {path: path.read_bytes() for path in _files(settings)}
        self.columns: dict[str, list[str]] = {}
        self.keys: dict[str, list[str]] = {}
        self.rows: dict[str, list[Row]] = {}
        with closing(sqlite3.connect(file)) as database:
            names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            for (name,) in names.fetchall():
                described = database.execute(f"PRAGMA table_info({name})").fetchall()
                self.columns[name] = [column[1] for column in described]
                self.keys[name] = [column[1] for column in described if column[5]]
                self.rows[name] = database.execute(f"SELECT * FROM {name}").fetchall()

    def found(self, mutant: Mutant) -> set[str] | None:
        """The kinds of what verification finds; None where the schema refuses the change."""
        try:
            raw(self.file, *mutant.statements)
            report = verification.verify(self.settings)
            return {item.kind for item in report.findings} | {report.verdict} - {"clean"}
        except sqlite3.IntegrityError:
            return None
        except NewerFormat:
            return {"newer format"}
        finally:
            self.restore()

    def restore(self) -> None:
        """Every file as it was."""
        for path in {*_files(self.settings)} - self._kept.keys():
            path.unlink()
        for path, content in self._kept.items():
            path.write_bytes(content)

    def mutants(self, table: str, chance: random.Random, *, thorough: bool) -> Iterator[Mutant]:
        """Every kind of change, in every row where ``thorough``, else in one that has it."""
        for column in self.columns[table]:
            for how in CHANGES:
                yield from self._of_column(table, column, how, chance, thorough=thorough)
        for make in (self._gone, self._swapped):
            rows = self.rows[table] if thorough else self._some(table, chance)
            for row in rows:
                mutant = make(table, row, chance)
                if mutant is not None:
                    yield mutant

    def _some(self, table: str, chance: random.Random) -> list[Row]:
        rows = self.rows[table]
        return chance.sample(rows, min(len(rows), 3))

    def _of_column(
        self, table: str, column: str, how: str, chance: random.Random, *, thorough: bool
    ) -> Iterator[Mutant]:
        at = self.columns[table].index(column)
        for row in chance.sample(self.rows[table], len(self.rows[table])):
            changed = CHANGES[how](row[at], chance)
            if changed != row[at]:
                yield self._set(table, column, how, row, changed)
                if not thorough:
                    return

    def every_byte(self, table: str, column: str, chance: random.Random) -> Iterator[Mutant]:
        """One bit of each byte of every value of a column."""
        at = self.columns[table].index(column)
        for row in self.rows[table]:
            value = row[at]
            size = len(value.encode() if isinstance(value, str) else value)
            for byte in range(size):
                changed = _with_bit(value, byte, chance.randrange(8))
                yield self._set(table, column, f"byte {byte}", row, changed)

    def _set(self, table: str, column: str, how: str, row: Row, value: Any) -> Mutant:
        where, key = self.where(table, row)
        sql = f"UPDATE {table} SET {column} = ? WHERE {where}"
        if isinstance(value, _Text):
            sql = f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE {where}"
            value = value.raw
        return Mutant(table, column, how, str(key), [(sql, (value, *key))])

    def where(self, table: str, row: Row) -> tuple[str, Row]:
        keys = self.keys[table]
        names = self.columns[table]
        return " AND ".join(f"{key} IS ?" for key in keys), tuple(
            row[names.index(key)] for key in keys
        )

    def _gone(self, table: str, row: Row, _: random.Random) -> Mutant:
        where, key = self.where(table, row)
        return Mutant(table, "row", "gone", str(key), [(f"DELETE FROM {table} WHERE {where}", key)])

    def _swapped(self, table: str, row: Row, chance: random.Random) -> Mutant | None:
        """Two rows have each other's key: everything of them but that is in the other's place."""
        others = [other for other in self.rows[table] if other != row]
        if not others:
            return None
        other = chance.choice(others)
        if len(self.keys[table]) != 1 or not isinstance(row[0], int):
            return None
        key = self.keys[table][0]
        at = self.columns[table].index(key)
        sql = f"UPDATE {table} SET {key} = ? WHERE {key} = ?"
        moves = [(_RESERVED, row[at]), (row[at], other[at]), (other[at], _RESERVED)]
        where = f"{row[at]}, {other[at]}"
        return Mutant(table, "row", "swapped", where, [(sql, move) for move in moves])


class _Text(Struct):
    """Bytes to be stored as text, whether they are or not."""

    raw: bytes


def _files(settings: journal.Settings) -> Iterator[Path]:
    for path in settings.home.rglob("*"):
        if path.is_file() and settings.evidence_home not in path.parents:
            yield path


# Changes of one value.


def _as(value: Any, changed: bytes) -> Any:
    if isinstance(value, bytes):
        return changed
    return _Text(changed)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _with_bit(value: Any, byte: int, bit: int) -> Any:
    changed = bytearray(_bytes(value))
    changed[byte] ^= 1 << bit
    return _as(value, bytes(changed))


def _flipped(value: Any, chance: random.Random) -> Any:
    if value is None:
        return value
    if isinstance(value, int | float):
        return value + chance.choice((1, -1))
    size = len(_bytes(value))
    return _with_bit(value, chance.randrange(size), chance.randrange(8)) if size else value


def _inserted(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, str | bytes):
        return value
    found = _bytes(value)
    at = chance.randint(0, len(found))
    return _as(value, found[:at] + bytes([chance.choice(b"09azAZ {}\x01")]) + found[at:])


def _deleted(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, str | bytes) or not value:
        return value
    found = _bytes(value)
    at = chance.randrange(len(found))
    return _as(value, found[:at] + found[at + 1 :])


def _exchanged(value: Any, chance: random.Random) -> Any:
    """Two neighbours that differ, each in the other's place."""
    if not isinstance(value, str | bytes):
        return value
    found = bytearray(_bytes(value))
    places = [at for at in range(len(found) - 1) if found[at] != found[at + 1]]
    if not places:
        return value
    at = chance.choice(places)
    found[at], found[at + 1] = found[at + 1], found[at]
    return _as(value, bytes(found))


def _emptied(value: Any, _: random.Random) -> Any:
    if isinstance(value, int | float):
        return 0 * value
    return value if not value else _as(value, b"")


def _huge(value: Any, _: random.Random) -> Any:
    return value + 2**52 if isinstance(value, int) and not isinstance(value, bool) else value


def _nothing(_value: Any, _chance: random.Random) -> Any:
    return None


def _something(value: Any, _: random.Random) -> Any:
    return "something" if value is None else value


CHANGES: dict[str, Callable[[Any, random.Random], Any]] = {
    "flipped": _flipped,
    "inserted": _inserted,
    "deleted": _deleted,
    "exchanged": _exchanged,
    "emptied": _emptied,
    "huge": _huge,
    "nothing": _nothing,
    "something": _something,
}


# Entries that are sealed anew: every digest is right, and the chain is not.


def resealed(evidence: Evidence, row: Row, **changes: Any) -> Mutant:
    """An entry with other fields, hashed anew, in the place of the stored one."""
    names = evidence.columns["entries"]
    stored = dict(zip(names, row, strict=True))
    text, digest = _sealed(stored["envelope"], changes)
    where, key = evidence.where("entries", row)
    sql = f"UPDATE entries SET envelope = ?, digest = ? WHERE {where}"
    return Mutant("entries", "row", "sealed anew", str(key), [(sql, (text, digest, *key))])


def doubled(evidence: Evidence, row: Row) -> Mutant:
    """A second successor of an entry's predecessor, sealed under another history."""
    names = evidence.columns["entries"]
    stored = dict(zip(names, row, strict=True))
    operation_id = f"rival of {stored['operation']}"
    changes = {"history": "ef" * 16, "operation": operation_id, "sequence": None}
    text, digest = _sealed(stored["envelope"], changes)
    position = 1 + max(other[names.index("position")] for other in evidence.rows["entries"])
    stored |= {
        "position": position,
        "sequence": None,
        "history": bytes.fromhex("ef" * 16),
        "operation": operation_id,
        "digest": digest,
        "envelope": text,
    }
    sql = f"INSERT INTO entries ({', '.join(names)}) VALUES ({','.join('?' * len(names))})"
    values = tuple(stored[name] for name in names)
    return Mutant("entries", "row", "doubled", str(position), [(sql, values)])


def _sealed(envelope: str, changes: dict[str, Any]) -> tuple[str, bytes]:
    fields = json.loads(envelope) | changes
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return text, bytes.fromhex(digest_of(text.encode()))
