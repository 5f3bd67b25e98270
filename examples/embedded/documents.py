"""The application's tables, and the projection that keeps them in step with the decisions.

A replay runs ``apply`` again, perhaps years later, and must get the same rows: everything comes
from the decision, nothing from a clock, a random source, another row or an automatic row ID.
"""

from __future__ import annotations

from collections.abc import Sequence

from journal import Decided, Statement

DOCUMENTS = """
CREATE TABLE IF NOT EXISTS documents (
  id       TEXT PRIMARY KEY,
  folder   TEXT NOT NULL,
  title    TEXT NOT NULL,
  state    TEXT NOT NULL,
  version  TEXT,
  revision INTEGER NOT NULL,
  UNIQUE (folder, title)
) STRICT, WITHOUT ROWID
"""

AUDIT = """
CREATE TABLE IF NOT EXISTS audit (
  document TEXT NOT NULL,
  revision INTEGER NOT NULL,
  action   TEXT NOT NULL,
  actor    TEXT NOT NULL,
  at       TEXT NOT NULL,
  digest   TEXT NOT NULL,
  PRIMARY KEY (document, revision)
) STRICT, WITHOUT ROWID
"""


class DocumentsProjection:
    """`documents`: how each stands now. `audit`: one row for each of its decisions."""

    tables: Sequence[str] = (DOCUMENTS, AUDIT)

    def apply(self, decision: Decided) -> Sequence[Statement]:
        """A row of `documents` put where the decision leads, and a new row of `audit`.

        What is missing from the data becomes NULL and what collides is inserted all the same: the
        tables refuse it, and with it the decision.
        """
        data = decision.data
        return [
            Statement(
                "INSERT INTO documents (id, folder, title, state, version, revision)"
                " VALUES (?,?,?,?,?,?)"
                " ON CONFLICT (id) DO UPDATE SET folder = excluded.folder, title = excluded.title,"
                " state = excluded.state, version = excluded.version, revision = excluded.revision",
                (
                    name_of(decision.entity),
                    data.get("folder"),
                    data.get("title"),
                    decision.state,
                    decision.version,
                    decision.revision,
                ),
            ),
            Statement(
                "INSERT INTO audit (document, revision, action, actor, at, digest)"
                " VALUES (?,?,?,?,?,?)",
                (
                    name_of(decision.entity),
                    decision.revision,
                    decision.action,
                    decision.actor,
                    decision.at,
                    decision.digest,
                ),
            ),
        ]

    def clear(self, entity: str) -> Sequence[Statement]:
        """Remove the entity's rows from both tables; a rebuild inserts them anew."""
        return [
            Statement("DELETE FROM audit WHERE document = ?", (name_of(entity),)),
            Statement("DELETE FROM documents WHERE id = ?", (name_of(entity),)),
        ]


def name_of(entity: str) -> str:
    """The application's own ID of a document: `document/offer-1` is `offer-1` in its tables."""
    return entity.partition("/")[2]
