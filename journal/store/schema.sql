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

-- Work: what lanes carry. One row for each release, command and best-effort item; docs/lanes.md
-- describes every column. `status` is an open list: a new one needs no migration.

CREATE TABLE IF NOT EXISTS unrewind_work (
  number     INTEGER PRIMARY KEY,  -- in the order in which rows were made
  id         TEXT    NOT NULL UNIQUE, -- rel_… a release, cmd_… a command, item_… best-effort
  lane       TEXT    NOT NULL,
  effect     TEXT    NOT NULL,     -- external, internal, best-effort
  name       TEXT    NOT NULL,     -- the kind of work: the permitting action, or the command
  status     TEXT    NOT NULL,
  entity     TEXT,
  revision   INTEGER,              -- of the decision that made it
  sequence   INTEGER NOT NULL,     -- of that decision; 0 for an item
  place      INTEGER NOT NULL,     -- in the list of its action
  operation  TEXT,
  version    TEXT,
  receiver   TEXT,
  recipient  TEXT,
  digest     TEXT,
  corrects   TEXT,
  data       TEXT    NOT NULL,
  weight     REAL    NOT NULL,
  due        TEXT,                 -- when it is to be picked up or asked about; NULL: by nobody
  created    TEXT    NOT NULL,
  committed  TEXT,
  claimed    TEXT,
  started    TEXT,
  finished   TEXT,
  heartbeat  TEXT,
  sweep_at   TEXT,                 -- from then on the sweeper moves it
  lease      INTEGER NOT NULL,
  claim      TEXT,                 -- the claim's own operation ID
  worker     TEXT,
  execution  TEXT,
  attempts   INTEGER NOT NULL,
  failures   INTEGER NOT NULL,
  expired    INTEGER NOT NULL,
  maybe      INTEGER NOT NULL,
  step       TEXT    NOT NULL,
  last_error TEXT,
  receipt    TEXT,
  owner      TEXT,
  cancel_requested INTEGER NOT NULL,
  incident   TEXT
);
CREATE INDEX IF NOT EXISTS unrewind_work_due ON unrewind_work (lane, due, sequence, place)
  WHERE status IN ('ready', 'retry');
CREATE INDEX IF NOT EXISTS unrewind_work_ask ON unrewind_work (lane, due)
  WHERE status IN ('pending', 'unknown') AND due IS NOT NULL;
CREATE INDEX IF NOT EXISTS unrewind_work_sweep ON unrewind_work (sweep_at)
  WHERE status = 'running';
CREATE INDEX IF NOT EXISTS unrewind_work_claim ON unrewind_work (claim)
  WHERE status = 'running';
CREATE INDEX IF NOT EXISTS unrewind_work_open ON unrewind_work (entity) WHERE finished IS NULL;
CREATE INDEX IF NOT EXISTS unrewind_work_unended ON unrewind_work (id) WHERE finished IS NULL;
CREATE INDEX IF NOT EXISTS unrewind_work_entity ON unrewind_work (entity, version);
CREATE INDEX IF NOT EXISTS unrewind_work_order ON unrewind_work (sequence, place)
  WHERE effect = 'internal' AND finished IS NULL;
CREATE INDEX IF NOT EXISTS unrewind_work_lane ON unrewind_work (lane, number);
CREATE INDEX IF NOT EXISTS unrewind_work_status ON unrewind_work (lane, status);
CREATE INDEX IF NOT EXISTS unrewind_work_done ON unrewind_work (finished)
  WHERE effect <> 'external' AND status IN ('done', 'discarded');

-- Counters, so that no page ever scans the work.

CREATE TABLE IF NOT EXISTS unrewind_counts (
  lane   TEXT NOT NULL,
  status TEXT NOT NULL,
  items  INTEGER NOT NULL,
  weight REAL    NOT NULL,
  PRIMARY KEY (lane, status)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS unrewind_flow (
  lane     TEXT    NOT NULL,
  bucket   INTEGER NOT NULL,       -- ten seconds of Unix time
  arrived  REAL    NOT NULL,       -- by weight
  finished REAL    NOT NULL,
  PRIMARY KEY (lane, bucket)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS unrewind_work_made AFTER INSERT ON unrewind_work BEGIN
  INSERT INTO unrewind_counts VALUES (new.lane, new.status, 1, new.weight)
    ON CONFLICT DO UPDATE SET items = items + 1, weight = weight + excluded.weight;
  INSERT INTO unrewind_flow VALUES (new.lane, strftime('%s', 'now') / 10, new.weight, 0)
    ON CONFLICT DO UPDATE SET arrived = arrived + excluded.arrived;
END;
CREATE TRIGGER IF NOT EXISTS unrewind_work_moved AFTER UPDATE OF status ON unrewind_work
  WHEN new.status <> old.status BEGIN
  UPDATE unrewind_counts SET items = items - 1, weight = weight - old.weight
    WHERE lane = old.lane AND status = old.status;
  INSERT INTO unrewind_counts VALUES (new.lane, new.status, 1, new.weight)
    ON CONFLICT DO UPDATE SET items = items + 1, weight = weight + excluded.weight;
  INSERT INTO unrewind_flow SELECT new.lane, strftime('%s', 'now') / 10, 0, new.weight
    WHERE new.finished IS NOT NULL AND old.finished IS NULL
    ON CONFLICT DO UPDATE SET finished = finished + excluded.finished;
END;
CREATE TRIGGER IF NOT EXISTS unrewind_work_gone AFTER DELETE ON unrewind_work BEGIN
  UPDATE unrewind_counts SET items = items - 1, weight = weight - old.weight
    WHERE lane = old.lane AND status = old.status;
END;

CREATE TABLE IF NOT EXISTS unrewind_budgets (
  name   TEXT PRIMARY KEY,         -- lane/<name> or receiver/<name>
  tokens REAL NOT NULL,
  at     REAL NOT NULL             -- Unix time of the last refill
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS unrewind_sweeps (
  one       INTEGER PRIMARY KEY CHECK (one = 1),
  succeeded TEXT    NOT NULL,
  moved     INTEGER NOT NULL,      -- rows that the last sweep moved
  total     INTEGER NOT NULL,
  absorbed  INTEGER NOT NULL,      -- observations that were looked at
  process   INTEGER NOT NULL
);

CREATE TABLE IF NOT EXISTS unrewind_callbacks (
  receiver TEXT NOT NULL,
  id       TEXT NOT NULL,
  seen     TEXT NOT NULL,
  PRIMARY KEY (receiver, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unrewind_callbacks_seen ON unrewind_callbacks (seen);

-- What a recovery's reconciliation found of each release, once a generation.

CREATE TABLE IF NOT EXISTS unrewind_reconciled (
  id         TEXT    NOT NULL,
  generation INTEGER NOT NULL,
  found      TEXT    NOT NULL,     -- an open list; docs/commands.md describes it
  at         TEXT    NOT NULL,
  evidence   TEXT    NOT NULL,     -- a JSON object: why, receipt, owner, deadline and so on
  authority  TEXT,                 -- what is wrong with its permission; NULL: nothing
  PRIMARY KEY (generation, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unrewind_reconciled_found ON unrewind_reconciled (generation, found, id);
