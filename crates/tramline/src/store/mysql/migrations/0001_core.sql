-- Names and keys are bytes: every collation of MariaDB and MySQL that both know takes 'a' and 'a ' for equal.

-- The catalogue's version, which every change of topics and subscriptions raises.
CREATE TABLE IF NOT EXISTS tramline_meta (
    name  VARBINARY(64) NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO tramline_meta VALUES ('catalog', 1);

-- Always empty: its counter numbers the chunks. A row that is inserted and undone leaves its number drawn, and nobody waits for
-- anybody, as everybody would at a row that counts.
CREATE TABLE IF NOT EXISTS tramline_chunk_number (
    chunk BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY
) ENGINE = InnoDB;

-- removed_events: those of chunks that were removed; with those that are there, all that were ever emitted to the topic.
CREATE TABLE IF NOT EXISTS tramline_topic (
    id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name         VARBINARY(255) NOT NULL UNIQUE,
    lanes        INT NOT NULL,
    retention_ms BIGINT NOT NULL,
    created_at   BIGINT NOT NULL,
    owner        VARBINARY(255),
    removed_events BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_subscription (
    id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name       VARBINARY(255) NOT NULL UNIQUE,
    policy     LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    created_at BIGINT NOT NULL
) ENGINE = InnoDB;

-- Rows to be locked, because there are no advisory locks that end with a transaction.
--   kind 0: a topic. An emit shares side 0 or 1 before it draws numbers; a change of its subscriptions has both for itself. Row 2
--           names in `open` the side that emits should take, row 3 is for whoever changes that.
--   kind 1: a subscription. Whatever writes its slices shares side 0; its deletion has it for itself. A claim shares side 1 too,
--           before it looks at the rules; who sets one has it for itself, to know that no claim is under way that has not seen it.
CREATE TABLE IF NOT EXISTS tramline_gate (
    kind   TINYINT NOT NULL,
    id     BIGINT NOT NULL,
    side   TINYINT NOT NULL,
    `open` TINYINT NOT NULL DEFAULT 0,
    PRIMARY KEY (kind, id, side)
) ENGINE = InnoDB;

-- Chunks from backfill_next to backfill_until were emitted before the subscription and are still to be written into it.
CREATE TABLE IF NOT EXISTS tramline_subscription_topic (
    subscription   BIGINT NOT NULL,
    topic          BIGINT NOT NULL,
    backfill_next  BIGINT NOT NULL,
    backfill_until BIGINT NOT NULL,
    PRIMARY KEY (subscription, topic),
    KEY tramline_subscription_topic_topic (topic)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_rule (
    subscription BIGINT NOT NULL,
    kind         VARBINARY(16) NOT NULL,
    `by`         LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    reason       LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    since        BIGINT NOT NULL,
    until        BIGINT,
    PRIMARY KEY (subscription, kind)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_audit (
    id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription BIGINT NOT NULL,
    at           BIGINT NOT NULL,
    `by`         LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    action       VARBINARY(16) NOT NULL,
    reason       LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    KEY tramline_audit_subscription (subscription, id)
) ENGINE = InnoDB;

-- Events, up to 64 in a row; written once. Sums over chunks, and the search for those that can go, read the index only: the rows
-- carry payloads. prevs and mains are JSON arrays of event ids, NULL where all are zero.
CREATE TABLE IF NOT EXISTS tramline_chunk (
    chunk      BIGINT NOT NULL PRIMARY KEY,
    topic      BIGINT NOT NULL,
    emitted_at BIGINT NOT NULL,
    count      INT NOT NULL,
    bytes      INT NOT NULL,
    meta       LONGBLOB NOT NULL,
    prevs      BLOB,
    mains      BLOB,
    body       LONGBLOB NOT NULL,
    KEY tramline_chunk_topic (topic, chunk, count, bytes)
) ENGINE = InnoDB;

-- What is left to do. The primary key ascends with the chunks and finds the slices of an event; the one index serves every claim:
-- without order by priority and due time, with order by lane and chunk. The numbers of slices are made by the processes that
-- write them: a counter that begins anywhere, unique within a chunk.
CREATE TABLE IF NOT EXISTS tramline_slice (
    chunk        BIGINT NOT NULL,
    id           BIGINT NOT NULL,
    subscription BIGINT NOT NULL,
    state        TINYINT NOT NULL,
    lane         BIGINT NOT NULL,
    `rank`       BIGINT NOT NULL,
    pos          BIGINT NOT NULL,
    mask         BIGINT NOT NULL,
    due_at       BIGINT NOT NULL,
    attempts     INT NOT NULL DEFAULT 0,
    crashes      INT NOT NULL DEFAULT 0,
    alone        INT NOT NULL DEFAULT 0,
    epoch        BIGINT NOT NULL DEFAULT 0,
    owner        BIGINT NOT NULL DEFAULT 0,
    replayed     BOOLEAN NOT NULL DEFAULT FALSE,
    bytes        INT NOT NULL,
    error        LONGTEXT CHARACTER SET utf8mb4,
    tallied      BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (chunk, id),
    KEY tramline_slice_claim (subscription, state, lane, `rank`, pos)
) ENGINE = InnoDB;

-- Who holds a lane.
CREATE TABLE IF NOT EXISTS tramline_lane (
    subscription BIGINT NOT NULL,
    lane         BIGINT NOT NULL,
    owner        BIGINT NOT NULL DEFAULT 0,
    epoch        BIGINT NOT NULL DEFAULT 0,
    until        BIGINT NOT NULL DEFAULT 0,
    halted_until BIGINT NOT NULL DEFAULT 0,
    leased       BIGINT NOT NULL DEFAULT 0,
    marks        BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription, lane)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_parked (
    subscription BIGINT NOT NULL,
    lane         BIGINT NOT NULL,
    `key`        VARBINARY(512) NOT NULL,
    blocked_by   BIGINT NOT NULL,
    since        BIGINT NOT NULL,
    PRIMARY KEY (subscription, lane, `key`)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_gap (
    subscription BIGINT NOT NULL,
    lane         BIGINT NOT NULL,
    `key`        VARBINARY(512) NOT NULL,
    id           BIGINT NOT NULL,
    PRIMARY KEY (subscription, lane, `key`, id)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_head (
    topic   BIGINT NOT NULL,
    `key`   VARBINARY(512) NOT NULL,
    last_id BIGINT NOT NULL,
    state   LONGBLOB,
    PRIMARY KEY (topic, `key`)
) ENGINE = InnoDB;

-- An entry without a receipt belongs to an emit that is under way.
CREATE TABLE IF NOT EXISTS tramline_idempotency (
    topic      BIGINT NOT NULL,
    `key`      VARBINARY(512) NOT NULL,
    hash       VARBINARY(64) NOT NULL,
    receipt    LONGBLOB NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (topic, `key`),
    KEY tramline_idempotency_expiry (expires_at)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_worker (
    incarnation   BIGINT NOT NULL PRIMARY KEY,
    name          VARBINARY(1024) NOT NULL,
    subscriptions LONGBLOB NOT NULL,
    born_at       BIGINT NOT NULL,
    beat_at       BIGINT NOT NULL
) ENGINE = InnoDB;

-- Workers that claim through a node, by name: they have no heartbeat, only the last time at which they were seen.
CREATE TABLE IF NOT EXISTS tramline_remote (
    subscription BIGINT NOT NULL,
    name         VARBINARY(512) NOT NULL,
    born_at      BIGINT NOT NULL,
    seen_at      BIGINT NOT NULL,
    claims       BIGINT NOT NULL,
    PRIMARY KEY (subscription, name)
) ENGINE = InnoDB;

-- What was deleted and still has rows: a topic, a subscription, or what a subscription had of a topic that it left. Zero stands
-- for none. Chunks below next have been looked at.
CREATE TABLE IF NOT EXISTS tramline_deleted (
    topic        BIGINT NOT NULL,
    subscription BIGINT NOT NULL,
    next         BIGINT NOT NULL,
    PRIMARY KEY (topic, subscription)
) ENGINE = InnoDB;
