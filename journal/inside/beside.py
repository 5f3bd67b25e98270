"""Founding a tenant in a database that the application has already.

A server's database takes a schema at any time. An embedded file that is there and holds no tables
of unrewind's may be the application's, or a store that lost them: only an adoption may say which.
"""

from __future__ import annotations

import sqlite3

from journal.driving import drive
from journal.errors import EngineError, Refused
from journal.founding import first_marker, found_journal
from journal.record import Record
from journal.settings import Settings
from journal.sql import Statement
from journal.sqlite import Database, translated
from journal.store import tables
from journal.store.sqlite import SqliteStore, schema

_HAS_MARKER = Statement("SELECT count(*) FROM sqlite_master WHERE name = 'unrewind_marker'")


def is_foreign(record: Record) -> bool:
    """Whether the store's file is there and holds no table of unrewind's."""
    place = record.store_place
    if place.file is None or not place.exists():
        return False
    found = Database(place.file, read_only=True)
    try:
        return not found.read([_HAS_MARKER])[0][0][0]
    finally:
        found.close()


def check_adopted(record: Record) -> None:
    """Refuse an application's database in which no tenant was ever founded."""
    if is_foreign(record) and not record.log_place.exists():
        raise Refused(
            f"{record.store_place.label} holds no tables of unrewind's: run `unrewind adopt` once"
        )


def found_beside(settings: Settings) -> bool:
    """Found the tenant in the application's file; whether that was to be done.

    The journal first, then tables and marker in one transaction of the file. Killed in between it
    goes on when it is run again. Raises Refused where a tenant was founded before, which is no
    adoption but a rewind.
    """
    record = Record(settings)
    try:
        with record.lock.held():
            if not is_foreign(record):
                return False
            if not record.log_place.exists():
                _check_new(record)
                drive(found_journal(record.log_place, settings, record.clock))
            _found(record)
        return True
    finally:
        record.lock.close()


def _check_new(record: Record) -> None:
    founded = record.settings.beside("founded")
    if record.witness.exists() or founded.exists():
        raise Refused(
            f"tenant {record.settings.tenant} was founded here before, its journal is missing, and "
            f"{record.store_place.label} holds none of its tables: bring both back. If nothing was "
            f"ever decided under this name, remove {founded} and {record.settings.witness_file}"
        )


def _found(record: Record) -> None:
    drive(record.open_files())
    try:
        control = drive(record.read_control())
        look = drive(record.look())
    finally:
        drive(record.close_files())
    if look.position > 1:
        raise Refused(
            f"the journal {record.log_place.label} holds {look.position} entries, and "
            f"{record.store_place.label} none of the tenant's tables: this is a rewind, see "
            "`unrewind recover plan`"
        )
    if record.store_place.file is None:
        return
    store = SqliteStore(record.store_place.file)
    try:
        with translated(record.store_place.file):
            _put_tables(store.database.connection, tables.found(first_marker(control)))
    except EngineError as error:
        raise Refused(f"unrewind's tables cannot be added: {error}") from error
    finally:
        store.database.close()


def _put_tables(connection: sqlite3.Connection, marker: Statement) -> None:
    connection.executescript(f"BEGIN IMMEDIATE;\n{schema()}")
    try:
        connection.execute(marker.sql, marker.parameters)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
