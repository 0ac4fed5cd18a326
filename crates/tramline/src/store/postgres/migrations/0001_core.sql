-- The catalogue's version, which every change of topics and subscriptions raises.
CREATE TABLE tramline_meta (
    name  text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO tramline_meta VALUES ('catalog', 1);

-- Numbers that never come back. Chunks are drawn one by one (no CACHE): of two emits to a key, the later one must
-- get the greater number, whichever session it runs in.
CREATE SEQUENCE tramline_topic_number;
CREATE SEQUENCE tramline_subscription_number;
CREATE SEQUENCE tramline_chunk_number;
CREATE SEQUENCE tramline_slice_number CACHE 32;

CREATE TABLE tramline_topic (
    id           bigint PRIMARY KEY DEFAULT nextval('tramline_topic_number'),
    name         text COLLATE "C" NOT NULL UNIQUE,
    lanes        int NOT NULL,
    retention_ms bigint NOT NULL,
    created_at   bigint NOT NULL
);

CREATE TABLE tramline_subscription (
    id         bigint PRIMARY KEY DEFAULT nextval('tramline_subscription_number'),
    name       text COLLATE "C" NOT NULL UNIQUE,
    policy     text NOT NULL,
    created_at bigint NOT NULL
);

-- Chunks from backfill_next to backfill_until were emitted before the subscription and are still to be written into it.
CREATE TABLE tramline_subscription_topic (
    subscription   bigint NOT NULL,
    topic          bigint NOT NULL,
    backfill_next  bigint NOT NULL,
    backfill_until bigint NOT NULL,
    PRIMARY KEY (subscription, topic)
);
CREATE INDEX tramline_subscription_topic_topic ON tramline_subscription_topic (topic);

CREATE TABLE tramline_rule (
    subscription bigint NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    by           text NOT NULL,
    reason       text NOT NULL,
    since        bigint NOT NULL,
    until        bigint,
    PRIMARY KEY (subscription, kind)
);

CREATE TABLE tramline_audit (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription bigint NOT NULL,
    at           bigint NOT NULL,
    by           text NOT NULL,
    action       text NOT NULL,
    reason       text NOT NULL
);
CREATE INDEX tramline_audit_subscription ON tramline_audit (subscription, id);

-- Events, up to 64 in a row; written once. prevs and mains are event ids, NULL where all are zero.
-- Rows of up to a page stay whole and uncompressed: payloads are often compressed already, and pglz would cost more
-- than the rest of an emit.
CREATE TABLE tramline_chunk (
    chunk      bigint PRIMARY KEY,
    topic      bigint NOT NULL,
    emitted_at bigint NOT NULL,
    count      int NOT NULL,
    bytes      int NOT NULL,
    meta       text NOT NULL,
    prevs      bigint[],
    mains      bigint[],
    body       bytea NOT NULL
) WITH (toast_tuple_target = 8160);
ALTER TABLE tramline_chunk ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX tramline_chunk_topic ON tramline_chunk (topic, chunk);

-- What is left to do. The primary key ascends with the chunks and finds the slices of an event; the one index serves
-- every claim: without order by priority and due time, with order by lane and chunk. Every row is written about three
-- times and then deleted, so it is vacuumed by number and not by share, without pauses.
CREATE TABLE tramline_slice (
    chunk        bigint NOT NULL,
    id           bigint NOT NULL DEFAULT nextval('tramline_slice_number'),
    subscription bigint NOT NULL,
    state        smallint NOT NULL,
    lane         bigint NOT NULL,
    rank         bigint NOT NULL,
    pos          bigint NOT NULL,
    mask         bigint NOT NULL,
    due_at       bigint NOT NULL,
    attempts     int NOT NULL DEFAULT 0,
    crashes      int NOT NULL DEFAULT 0,
    alone        int NOT NULL DEFAULT 0,
    epoch        bigint NOT NULL DEFAULT 0,
    owner        bigint NOT NULL DEFAULT 0,
    replayed     boolean NOT NULL DEFAULT false,
    bytes        int NOT NULL,
    error        text,
    PRIMARY KEY (chunk, id)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX tramline_slice_claim ON tramline_slice (subscription, state, lane, rank, pos);

-- Who holds a lane. Updated by every ordered claim and settle: half of each page is left free for that. A lane is found from its newest
-- epoch back, so that versions of its row that nobody can clear away are not met; see NEWEST in rows.rs. low: where its ready
-- slices begin. What has state 0 below this chunk is taken, by who holds the lane; see low.rs and taken.rs.
CREATE TABLE tramline_lane (
    subscription bigint NOT NULL,
    lane         bigint NOT NULL,
    owner        bigint NOT NULL DEFAULT 0,
    epoch        bigint NOT NULL DEFAULT 0,
    until        bigint NOT NULL DEFAULT 0,
    halted_until bigint NOT NULL DEFAULT 0,
    leased       bigint NOT NULL DEFAULT 0,
    marks        bigint NOT NULL DEFAULT 0,
    low          bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (subscription, lane, epoch)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE tramline_parked (
    subscription bigint NOT NULL,
    lane         bigint NOT NULL,
    key          text COLLATE "C" NOT NULL,
    blocked_by   bigint NOT NULL,
    since        bigint NOT NULL,
    PRIMARY KEY (subscription, lane, key)
);

CREATE TABLE tramline_gap (
    subscription bigint NOT NULL,
    lane         bigint NOT NULL,
    key          text COLLATE "C" NOT NULL,
    id           bigint NOT NULL,
    PRIMARY KEY (subscription, lane, key, id)
);

CREATE TABLE tramline_head (
    topic   bigint NOT NULL,
    key     text COLLATE "C" NOT NULL,
    last_id bigint NOT NULL,
    state   bytea,
    PRIMARY KEY (topic, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE tramline_idempotency (
    topic      bigint NOT NULL,
    key        text COLLATE "C" NOT NULL,
    hash       bytea NOT NULL,
    receipt    text NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (topic, key)
);
CREATE INDEX tramline_idempotency_expiry ON tramline_idempotency (expires_at);

CREATE TABLE tramline_worker (
    incarnation   bigint PRIMARY KEY,
    name          text COLLATE "C" NOT NULL,
    subscriptions bigint[] NOT NULL,
    born_at       bigint NOT NULL,
    beat_at       bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The store's clock. clock_timestamp and not now(): a step that waited for a lock must not live in the past.
CREATE FUNCTION tramline_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
