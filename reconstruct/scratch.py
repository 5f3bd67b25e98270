"""Heads that a rehearsal has changed, kept outside memory.

A rehearsal goes through everything that a store lacks, perhaps the whole journal; what it holds in
memory must not grow with that. The file has no name and is gone when this is closed or killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager

import msgspec

from journal.acceptance import EntityHead
from journal.sqlite import nameless

_decode = msgspec.msgpack.Decoder(EntityHead).decode


class Scratch:
    """Heads by entity: written page by page, read back when their entity comes up again."""

    def __init__(self) -> None:
        self._file = nameless()
        self._file.execute("CREATE TABLE heads (entity TEXT PRIMARY KEY, head BLOB) WITHOUT ROWID")

    def write(self, heads: Mapping[str, EntityHead]) -> None:
        """Put these entities at these heads."""
        self._file.execute("BEGIN")
        self._file.executemany(
            "INSERT INTO heads VALUES (?, ?) ON CONFLICT DO UPDATE SET head = excluded.head",
            ((entity, msgspec.msgpack.encode(head)) for entity, head in heads.items()),
        )
        self._file.execute("COMMIT")

    def read(self, entities: Iterable[str]) -> dict[str, EntityHead]:
        """The heads of those of these entities that were written."""
        found = self._file.execute(
            "SELECT entity, head FROM heads WHERE entity IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(list(entities)).decode(),),
        )
        return {entity: _decode(head) for entity, head in found}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


@contextmanager
def scratch() -> Iterator[Scratch]:
    """A place for heads while the block runs."""
    with closing(Scratch()) as kept:
        yield kept
