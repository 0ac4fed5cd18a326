-- Numbers and settings of the store: the catalogue's version, and the counters behind chunks and slices. Rowids are
-- reused after a deletion, so they cannot serve as numbers that must never come back.
CREATE TABLE tramline_meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO tramline_meta VALUES ('catalog', 1), ('topic', 0), ('subscription', 0), ('chunk', 0), ('slice', 0);

CREATE TABLE tramline_topic (
    id           INTEGER PRIMARY KEY,
    name         TEXT NOT NULL UNIQUE,
    lanes        INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    created_at   INTEGER NOT NULL
);

CREATE TABLE tramline_subscription (
    id         INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    policy     TEXT NOT NULL,
    created_at INTEGER NOT NULL
);

-- Chunks from backfill_next to backfill_until were emitted before the subscription and are still to be written into it.
CREATE TABLE tramline_subscription_topic (
    subscription   INTEGER NOT NULL,
    topic          INTEGER NOT NULL,
    backfill_next  INTEGER NOT NULL,
    backfill_until INTEGER NOT NULL,
    PRIMARY KEY (subscription, topic)
) WITHOUT ROWID;

CREATE TABLE tramline_rule (
    subscription INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    by           TEXT NOT NULL,
    reason       TEXT NOT NULL,
    since        INTEGER NOT NULL,
    until        INTEGER,
    PRIMARY KEY (subscription, kind)
) WITHOUT ROWID;

CREATE TABLE tramline_audit (
    id           INTEGER PRIMARY KEY,
    subscription INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    by           TEXT NOT NULL,
    action       TEXT NOT NULL,
    reason       TEXT NOT NULL
);

-- Events, up to 64 in a row; written once. prevs and mains are JSON arrays of event ids, NULL where all are zero.
CREATE TABLE tramline_chunk (
    chunk      INTEGER PRIMARY KEY,
    topic      INTEGER NOT NULL,
    emitted_at INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    meta       TEXT NOT NULL,
    prevs      TEXT,
    mains      TEXT,
    body       BLOB NOT NULL
);
CREATE INDEX tramline_chunk_topic ON tramline_chunk (topic, chunk);

-- What is left to do. The primary key ascends with the chunks and finds the slices of an event; the one index serves
-- every claim: without order by priority and due time, with order by lane and chunk.
CREATE TABLE tramline_slice (
    chunk        INTEGER NOT NULL,
    id           INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    state        INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    rank         INTEGER NOT NULL,
    pos          INTEGER NOT NULL,
    mask         INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    attempts     INTEGER NOT NULL,
    crashes      INTEGER NOT NULL,
    alone        INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    owner        INTEGER NOT NULL,
    replayed     INTEGER NOT NULL,
    bytes        INTEGER NOT NULL,
    error        TEXT,
    PRIMARY KEY (chunk, id)
) WITHOUT ROWID;
CREATE INDEX tramline_slice_claim ON tramline_slice (subscription, state, lane, rank, pos);

CREATE TABLE tramline_lane (
    subscription INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    owner        INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    until        INTEGER NOT NULL,
    halted_until INTEGER NOT NULL,
    leased       INTEGER NOT NULL,
    marks        INTEGER NOT NULL,
    PRIMARY KEY (subscription, lane)
) WITHOUT ROWID;

CREATE TABLE tramline_parked (
    subscription INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    key          TEXT NOT NULL,
    blocked_by   INTEGER NOT NULL,
    since        INTEGER NOT NULL,
    PRIMARY KEY (subscription, lane, key)
) WITHOUT ROWID;

CREATE TABLE tramline_gap (
    subscription INTEGER NOT NULL,
    lane         INTEGER NOT NULL,
    key          TEXT NOT NULL,
    id           INTEGER NOT NULL,
    PRIMARY KEY (subscription, lane, key, id)
) WITHOUT ROWID;

CREATE TABLE tramline_head (
    topic   INTEGER NOT NULL,
    key     TEXT NOT NULL,
    last_id INTEGER NOT NULL,
    state   BLOB,
    PRIMARY KEY (topic, key)
) WITHOUT ROWID;

CREATE TABLE tramline_idempotency (
    topic      INTEGER NOT NULL,
    key        TEXT NOT NULL,
    hash       BLOB NOT NULL,
    receipt    TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (topic, key)
) WITHOUT ROWID;
CREATE INDEX tramline_idempotency_expiry ON tramline_idempotency (expires_at);

CREATE TABLE tramline_worker (
    incarnation   INTEGER PRIMARY KEY,
    name          TEXT NOT NULL,
    subscriptions TEXT NOT NULL,
    born_at       INTEGER NOT NULL,
    beat_at       INTEGER NOT NULL
);
