-- The journal. Format 1. Entries and rivals are evidence: they are never changed.
-- authority, chains, flaws and dropped are derived from them and can be rebuilt.

CREATE TABLE IF NOT EXISTS entries (
  position  INTEGER PRIMARY KEY,
  stream    TEXT NOT NULL,          -- decisions, control, caller/<type>
  sequence  INTEGER,
  history   BLOB NOT NULL,
  entity    TEXT NOT NULL,
  revision  INTEGER NOT NULL,
  operation TEXT NOT NULL,
  digest    BLOB NOT NULL,
  envelope  TEXT NOT NULL,
  body      BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS entries_operation ON entries (operation);
CREATE UNIQUE INDEX IF NOT EXISTS entries_revision ON entries (entity, revision, history);
CREATE UNIQUE INDEX IF NOT EXISTS entries_sequence ON entries (stream, sequence, history)
  WHERE sequence IS NOT NULL;

CREATE TABLE IF NOT EXISTS rivals (
  number   INTEGER PRIMARY KEY,
  entity   TEXT NOT NULL,
  stored   TEXT NOT NULL,           -- the digest that stands
  seen     TEXT NOT NULL,
  digest   TEXT NOT NULL UNIQUE,
  envelope TEXT NOT NULL,
  body     BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS rivals_entity ON rivals (entity);

CREATE TRIGGER IF NOT EXISTS entries_no_update BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'journal entries are never changed'); END;
CREATE TRIGGER IF NOT EXISTS entries_no_delete BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'journal entries are never deleted'); END;
CREATE TRIGGER IF NOT EXISTS rivals_no_update BEFORE UPDATE ON rivals
  BEGIN SELECT RAISE(ABORT, 'rivals are never changed'); END;
CREATE TRIGGER IF NOT EXISTS rivals_no_delete BEFORE DELETE ON rivals
  BEGIN SELECT RAISE(ABORT, 'rivals are never deleted'); END;

CREATE TABLE IF NOT EXISTS authority (
  one        INTEGER PRIMARY KEY CHECK (one = 1),
  history    TEXT    NOT NULL,
  generation INTEGER NOT NULL,
  stage      TEXT    NOT NULL,
  first      INTEGER NOT NULL,
  digest     TEXT    NOT NULL
);

CREATE TABLE IF NOT EXISTS chains (
  entity   TEXT PRIMARY KEY,
  revision INTEGER NOT NULL,        -- the durable boundary
  history  TEXT NOT NULL,
  digest   TEXT NOT NULL,
  state    TEXT NOT NULL,
  newest   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS flaws (
  entity  TEXT NOT NULL,
  flaw    TEXT NOT NULL,
  first   INTEGER NOT NULL,
  last    INTEGER NOT NULL,
  digests TEXT NOT NULL,            -- JSON array
  through INTEGER NOT NULL,
  holds   INTEGER NOT NULL,
  since   TEXT NOT NULL,
  detail  TEXT NOT NULL,
  PRIMARY KEY (entity, first, flaw, digests)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS dropped (
  position INTEGER PRIMARY KEY      -- an entry that was abandoned: evidence, no decision
);
