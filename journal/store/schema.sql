-- unrewind's tables in the store, beside the application's own. Format 1.

CREATE TABLE IF NOT EXISTS unrewind_marker (
  one        INTEGER PRIMARY KEY CHECK (one = 1),
  format     INTEGER NOT NULL,
  tenant     TEXT    NOT NULL,
  instance   TEXT    NOT NULL,
  history    TEXT    NOT NULL,
  generation INTEGER NOT NULL,
  sequence   INTEGER NOT NULL,   -- the last decision's place in the tenant's order
  digest     TEXT    NOT NULL,
  journalled INTEGER NOT NULL    -- decisions above this sequence are obligations
);

CREATE TABLE IF NOT EXISTS unrewind_decisions (
  sequence INTEGER PRIMARY KEY,
  digest   BLOB NOT NULL,
  envelope TEXT NOT NULL,
  body     BLOB NOT NULL
);

CREATE TABLE IF NOT EXISTS unrewind_entities (
  entity   TEXT PRIMARY KEY,
  revision INTEGER NOT NULL,
  history  BLOB    NOT NULL,
  digest   BLOB    NOT NULL,
  sequence INTEGER NOT NULL,
  state    TEXT    NOT NULL,
  version  TEXT,
  data     TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS unrewind_control (
  sequence INTEGER PRIMARY KEY,
  digest   BLOB NOT NULL,
  envelope TEXT NOT NULL,
  body     BLOB NOT NULL
);
