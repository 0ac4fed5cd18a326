-- Why attempts failed, and (in the last slot, attempt 0) why events went without being done. Written by failures only. A row is for events
-- of one chunk that failed alike; attempts go round in a ring of slots, so that an event has at most one bit in each. It goes with
-- its chunk.
CREATE TABLE tramline_failure (
    chunk        bigint NOT NULL,
    id           bigint GENERATED ALWAYS AS IDENTITY,
    subscription bigint NOT NULL,
    slot         smallint NOT NULL,
    mask         bigint NOT NULL,
    attempt      int NOT NULL,
    at           bigint NOT NULL,
    worker       text NOT NULL,
    error        text NOT NULL,
    PRIMARY KEY (chunk, subscription, slot, id)
);
INSERT INTO tramline_failure (chunk, subscription, slot, mask, attempt, at, worker, error)
SELECT -n, 0, 0, 0, 0, 0, '', '' FROM generate_series(1, 1000) AS n;

-- Dead and held events by id, and dead ones by the time of their death. What is not dead is in neither.
CREATE INDEX tramline_slice_dead ON tramline_slice (subscription, chunk, id) WHERE state IN (5, 6);
CREATE INDEX tramline_slice_died ON tramline_slice (subscription, due_at) WHERE state = 6;

-- Rules for all subscriptions whose names match, and of which all topics match one of `topics` (JSON; NULL: any). Each is also written into the rules of those that there are, and of those that come:
-- what a claim reads is what stops its subscription, however many rules there are.
CREATE TABLE tramline_pattern_rule (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pattern text COLLATE "C" NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    topics  text,
    by      text NOT NULL,
    reason  text NOT NULL,
    since   bigint NOT NULL,
    until   bigint
);

-- source: the rule by pattern that a rule comes from; zero for one that names the subscription. (The name of the old key is put together,
-- because a constraint may not have a schema before it.)
ALTER TABLE tramline_rule ADD COLUMN source bigint NOT NULL DEFAULT 0;
DO $$ BEGIN EXECUTE 'ALTER TABLE tramline_rule DROP CONSTRAINT tram' || 'line_rule_pkey'; END $$;
ALTER TABLE tramline_rule ADD PRIMARY KEY (subscription, kind, source);
CREATE INDEX tramline_rule_source ON tramline_rule (source) WHERE source <> 0;

-- What was done by pattern: subscription is zero there.
ALTER TABLE tramline_audit ADD COLUMN pattern text COLLATE "C";
