-- Tallies. The row has sums over finished parts, and changes only when items are added, a part is finished, or it is sealed or
-- ended. States above 4 are rows on their way out. idle_since is never later than the last activity, and raised only by those
-- who look for idle ones: no index has a column that activity changes, so that the row is updated in place.
CREATE SEQUENCE tramline_tally_number;
CREATE TABLE tramline_tally (
    id           bigint PRIMARY KEY DEFAULT nextval('tramline_tally_number'),
    state        smallint NOT NULL,
    growing      boolean NOT NULL,
    estimated    boolean NOT NULL,
    tells        smallint NOT NULL,
    user_key     text COLLATE "C",
    topic        text COLLATE "C",
    parent_tally bigint,
    parent_item  bigint,
    next_part    bigint NOT NULL DEFAULT 0,
    total        bigint NOT NULL DEFAULT 0,
    parts_left   bigint NOT NULL DEFAULT 0,
    done         bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,
    created_at   bigint NOT NULL,
    sealed_at    bigint,
    ended_at     bigint,
    active_at    bigint NOT NULL,
    expires_at   bigint,
    ended_by     bigint NOT NULL DEFAULT 0,
    idle_since   bigint NOT NULL,
    checked_at   bigint NOT NULL,
    open_key     text COLLATE "C",
    open_hash    bytea
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX tramline_tally_state ON tramline_tally (state, id);
CREATE INDEX tramline_tally_idle ON tramline_tally (state, idle_since);
CREATE INDEX tramline_tally_user_key ON tramline_tally (user_key, id) WHERE user_key IS NOT NULL;
CREATE INDEX tramline_tally_expiry ON tramline_tally (expires_at) WHERE state < 2 AND expires_at IS NOT NULL;
CREATE INDEX tramline_tally_unchecked ON tramline_tally (checked_at) WHERE state = 1;
CREATE UNIQUE INDEX tramline_tally_open_key ON tramline_tally (open_key) WHERE open_key IS NOT NULL AND state < 5;

-- What is only read now and then: the metadata (kind -1), and the event to emit on each occasion.
CREATE TABLE tramline_tally_note (
    tally bigint NOT NULL,
    kind  smallint NOT NULL,
    body  text NOT NULL,
    PRIMARY KEY (tally, kind)
);

-- Items that were added together. They begin with a part of their own.
CREATE TABLE tramline_tally_extent (
    tally bigint NOT NULL,
    part  bigint NOT NULL,
    count bigint NOT NULL,
    token bigint,
    PRIMARY KEY (tally, part)
);
CREATE UNIQUE INDEX tramline_tally_extent_token ON tramline_tally_extent (tally, token) WHERE token IS NOT NULL;

-- Up to 4,096 items, written when the first of them ends. pending and failures are masks of 64 items each, lowest byte first;
-- pending is NULL where all or none are. The index has the parts that are under way. It asks a column of its own and not whether
-- something remains: an update that changes a column of an index, be it only in its condition, cannot be done in place. Masks
-- of random bits cannot be compressed, so nobody tries.
CREATE TABLE tramline_tally_part (
    tally     bigint NOT NULL,
    part      bigint NOT NULL,
    items     int NOT NULL,
    remaining int NOT NULL,
    done      int NOT NULL DEFAULT 0,
    failed    int NOT NULL DEFAULT 0,
    active_at bigint NOT NULL,
    is_open   boolean NOT NULL DEFAULT true,
    pending   bytea,
    failures  bytea,
    PRIMARY KEY (tally, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
ALTER TABLE tramline_tally_part ALTER COLUMN pending SET STORAGE PLAIN, ALTER COLUMN failures SET STORAGE PLAIN;
CREATE INDEX tramline_tally_part_open ON tramline_tally_part (tally) WHERE is_open;

-- News on their way: written with what they tell, removed with their emission.
CREATE TABLE tramline_tally_outbox (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tally  bigint NOT NULL,
    news   smallint NOT NULL,
    total  bigint NOT NULL,
    done   bigint NOT NULL,
    failed bigint NOT NULL,
    item   bigint
);
CREATE INDEX tramline_tally_outbox_tally ON tramline_tally_outbox (tally);

ALTER TABLE tramline_slice ADD COLUMN tallied boolean NOT NULL DEFAULT false;

-- Locks parts, given in sorted order without repetition, and writes those of live tallies that nobody has touched before. First all that are
-- missing, then the locks, both in this order: then nobody who waits for a part holds one that a predecessor in the queue wants.
-- Two statements: the snapshot of one would be older than what it waited for.
CREATE FUNCTION tramline_tally_lock(of_tallies bigint[], of_parts bigint[], at_time bigint)
RETURNS TABLE (tally bigint, part bigint, items int, remaining int, pending bytea, failures bytea)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO tramline_tally_part (tally, part, items, remaining, active_at)
    SELECT u.tally, u.part, n.items, n.items, at_time
    FROM unnest(of_tallies, of_parts) WITH ORDINALITY AS u(tally, part, place)
    JOIN tramline_tally t ON t.id = u.tally AND t.state + 0 < 2
    CROSS JOIN LATERAL (SELECT e.part, e.count FROM tramline_tally_extent e
        WHERE e.tally = u.tally AND e.part <= u.part ORDER BY e.tally DESC, e.part DESC LIMIT 1) e
    CROSS JOIN LATERAL (SELECT least(e.count - (u.part - e.part) * 4096, 4096) AS items) n
    WHERE n.items > 0
        AND NOT EXISTS (SELECT FROM tramline_tally_part p WHERE p.tally = u.tally AND p.part = u.part)
    ORDER BY u.place
    ON CONFLICT DO NOTHING;
    RETURN QUERY
    SELECT p.tally, p.part, p.items, p.remaining, p.pending, p.failures
    FROM unnest(of_tallies, of_parts) WITH ORDINALITY AS u(tally, part, place)
    JOIN tramline_tally_part p ON p.tally = u.tally AND p.part = u.part
    ORDER BY u.place
    FOR UPDATE OF p;
END $$;

-- Ballast, as in 0005: a tally of a negative number, in a state that none is in.
INSERT INTO tramline_tally (id, state, growing, estimated, tells, created_at, active_at, idle_since, checked_at)
SELECT -n, 9, false, false, 0, 0, 0, 0, 0 FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_tally_extent (tally, part, count) SELECT -n, 0, 0 FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_tally_part (tally, part, items, remaining, active_at, is_open)
SELECT -n, 0, 0, 0, 0, false FROM generate_series(1, 1000) AS n;
