-- Tallies. The row has sums over finished parts, and changes only when items are added, a part is finished, or it is sealed or
-- ended. States above 4 are rows on their way out. idle_since is never later than the last activity, and raised only by those
-- who look for idle ones, so that activity costs no index entry.
CREATE TABLE tramline_tally (
    id           INTEGER PRIMARY KEY,
    state        INTEGER NOT NULL,
    growing      INTEGER NOT NULL,
    estimated    INTEGER NOT NULL,
    tells        INTEGER NOT NULL,
    user_key     TEXT,
    topic        TEXT,
    parent_tally INTEGER,
    parent_item  INTEGER,
    next_part    INTEGER NOT NULL,
    total        INTEGER NOT NULL,
    parts_left   INTEGER NOT NULL,
    done         INTEGER NOT NULL,
    failed       INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    sealed_at    INTEGER,
    ended_at     INTEGER,
    active_at    INTEGER NOT NULL,
    expires_at   INTEGER,
    ended_by     INTEGER NOT NULL,
    idle_since   INTEGER NOT NULL,
    checked_at   INTEGER NOT NULL,
    open_key     TEXT,
    open_hash    BLOB
);
CREATE INDEX tramline_tally_state ON tramline_tally (state, id);
CREATE INDEX tramline_tally_idle ON tramline_tally (state, idle_since);
CREATE INDEX tramline_tally_user_key ON tramline_tally (user_key, id) WHERE user_key IS NOT NULL;
CREATE INDEX tramline_tally_expiry ON tramline_tally (expires_at) WHERE state < 2 AND expires_at IS NOT NULL;
CREATE INDEX tramline_tally_unchecked ON tramline_tally (state, checked_at) WHERE state = 1;
CREATE UNIQUE INDEX tramline_tally_open_key ON tramline_tally (open_key) WHERE open_key IS NOT NULL AND state < 5;
INSERT INTO tramline_meta VALUES ('tally', 0);

-- What is only read now and then: the metadata (kind -1), and the event to emit on each occasion.
CREATE TABLE tramline_tally_note (
    tally INTEGER NOT NULL,
    kind  INTEGER NOT NULL,
    body  TEXT NOT NULL,
    PRIMARY KEY (tally, kind)
) WITHOUT ROWID;

-- Items that were added together. They begin with a part of their own.
CREATE TABLE tramline_tally_extent (
    tally INTEGER NOT NULL,
    part  INTEGER NOT NULL,
    count INTEGER NOT NULL,
    token INTEGER,
    PRIMARY KEY (tally, part)
) WITHOUT ROWID;
CREATE UNIQUE INDEX tramline_tally_extent_token ON tramline_tally_extent (tally, token) WHERE token IS NOT NULL;

-- Up to 4,096 items, written when the first of them ends. pending and failures are masks of 64 items each, lowest byte first;
-- pending is NULL where all or none are. The index has the parts that are under way, and all that counting them needs.
CREATE TABLE tramline_tally_part (
    tally     INTEGER NOT NULL,
    part      INTEGER NOT NULL,
    items     INTEGER NOT NULL,
    remaining INTEGER NOT NULL,
    done      INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    active_at INTEGER NOT NULL,
    pending   BLOB,
    failures  BLOB,
    PRIMARY KEY (tally, part)
) WITHOUT ROWID;
CREATE INDEX tramline_tally_part_open ON tramline_tally_part (tally, remaining, done, failed, active_at) WHERE remaining > 0;

-- News on their way: written with what they tell, removed with their emission.
CREATE TABLE tramline_tally_outbox (
    id     INTEGER PRIMARY KEY,
    tally  INTEGER NOT NULL,
    news   INTEGER NOT NULL,
    total  INTEGER NOT NULL,
    done   INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    item   INTEGER
);
CREATE INDEX tramline_tally_outbox_tally ON tramline_tally_outbox (tally);

ALTER TABLE tramline_slice ADD COLUMN tallied INTEGER NOT NULL DEFAULT 0;
