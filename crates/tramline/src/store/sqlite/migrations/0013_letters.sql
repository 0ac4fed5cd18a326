-- Why attempts failed, and (in the last slot, attempt 0) why events went without being done. Written by failures only. A row is for events
-- of one chunk that failed alike; attempts go round in a ring of slots, so that an event has at most one bit in each. It goes with
-- its chunk.
CREATE TABLE tramline_failure (
    chunk        INTEGER NOT NULL,
    id           INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    slot         INTEGER NOT NULL,
    mask         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    worker       TEXT NOT NULL,
    error        TEXT NOT NULL,
    PRIMARY KEY (chunk, subscription, slot, id)
) WITHOUT ROWID;
INSERT INTO tramline_meta VALUES ('failure', 0);

-- Dead and held events by id, and dead ones by the time of their death. What is not dead is in neither.
CREATE INDEX tramline_slice_dead ON tramline_slice (subscription, chunk, id) WHERE state IN (5, 6);
CREATE INDEX tramline_slice_died ON tramline_slice (subscription, due_at) WHERE state = 6;

-- Rules for all subscriptions whose names match, and of which all topics match one of `topics` (JSON; NULL: any). Each is also written into the rules of those that there are, and of those that come:
-- what a claim reads is what stops its subscription, however many rules there are.
CREATE TABLE tramline_pattern_rule (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    pattern TEXT NOT NULL,
    kind    TEXT NOT NULL,
    topics  TEXT,
    by      TEXT NOT NULL,
    reason  TEXT NOT NULL,
    since   INTEGER NOT NULL,
    until   INTEGER
);

-- source: the rule by pattern that a rule comes from; zero for one that names the subscription.
ALTER TABLE tramline_rule RENAME TO tramline_rule_before;
CREATE TABLE tramline_rule (
    subscription INTEGER NOT NULL,
    kind         TEXT NOT NULL,
    source       INTEGER NOT NULL,
    by           TEXT NOT NULL,
    reason       TEXT NOT NULL,
    since        INTEGER NOT NULL,
    until        INTEGER,
    PRIMARY KEY (subscription, kind, source)
) WITHOUT ROWID;
INSERT INTO tramline_rule SELECT subscription, kind, 0, by, reason, since, until FROM tramline_rule_before;
DROP TABLE tramline_rule_before;
CREATE INDEX tramline_rule_source ON tramline_rule (source) WHERE source <> 0;

-- What was done by pattern: subscription is zero there.
ALTER TABLE tramline_audit ADD COLUMN pattern TEXT;
