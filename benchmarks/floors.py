"""What SQLite and SHA-256 cost bare: the floors that unrewind's own work is measured against."""

import hashlib
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import shape

WAL_PAGES = 4000
"""`wal_autocheckpoint` on every side, as unrewind sets it."""


def opened(path: Path) -> sqlite3.Connection:
    """A writing connection in autocommit mode, as durable as a store or journal of unrewind."""
    file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    durable(file)
    return file


def durable(file: sqlite3.Connection) -> None:
    """Set WAL with an fsync at each commit, and check that it is in force."""
    file.execute("PRAGMA journal_mode=WAL").fetchone()
    file.execute("PRAGMA synchronous=FULL").fetchone()
    file.execute(f"PRAGMA wal_autocheckpoint={WAL_PAGES}").fetchone()
    found = [
        file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")
    ]
    if found != ["wal", 2]:
        raise RuntimeError(f"SQLite did not take WAL with synchronous=FULL: {found}")


def write_same_rows(sources: Sequence[Path], folder: Path, decisions: int, batch: int) -> float:
    """Seconds to `executemany` the rows of `sources` into new files, `batch` decisions a commit.

    Same columns, keys, indexes and page size; no triggers, views or checks across rows. Each
    table's rows are dealt evenly over the commits; files are written in turn, as unrewind does.
    """
    shapes = [shape.read(path) for path in sources]
    commits = -(-decisions // batch)
    files = []
    for number, one in enumerate(shapes):
        file = sqlite3.connect(folder / f"{number}.db", isolation_level=None)
        file.execute(f"PRAGMA page_size={one.page_size}")
        durable(file)
        for statement in one.schema:
            file.execute(statement)
        files.append(file)
    parts = [[one.dealt(number, commits) for one in shapes] for number in range(commits)]
    started = time.perf_counter()
    for part in parts:
        for file, tables in zip(files, part, strict=True):
            file.execute("BEGIN IMMEDIATE")
            for insert, rows in tables:
                file.executemany(insert, rows)
            file.execute("COMMIT")
    took = time.perf_counter() - started
    for file in files:
        file.close()
    return took


def read_and_hash(path: Path, query: str, *, each: bool = False) -> tuple[int, float]:
    """How many entries a file holds, and the seconds to read and SHA-256 all their bytes.

    One hash for the bytes of an entry, or with `each` one for each of its two parts.
    """
    sha256 = hashlib.sha256
    read = 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        file.text_factory = bytes
        started = time.perf_counter()
        if each:
            for envelope, body in file.execute(query):
                sha256(envelope).digest()
                sha256(body).digest()
                read += 1
        else:
            for envelope, body in file.execute(query):
                sha256(envelope + body).digest()
                read += 1
        took = time.perf_counter() - started
    return read, took
