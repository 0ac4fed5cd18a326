-- Limits of subscriptions over all workers. The row is what claims of a limited subscription wait for each other at; other
-- subscriptions have none. What is under way is counted where it is, in the slices, so nothing here can leak. `starts` says
-- how many events were started when, for the rate.
CREATE TABLE tramline_limit (
    subscription bigint PRIMARY KEY,
    starts       text NOT NULL DEFAULT '[]'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- The last event of every unique key. Whether it is still pending is looked up at the next emit, so nobody else pays for it;
-- until: how long it is unique even if it is not. A sweep looks at entries when look_at is over.
CREATE TABLE tramline_unique (
    topic   bigint NOT NULL,
    key     text COLLATE "C" NOT NULL,
    event   bigint NOT NULL,
    until   bigint NOT NULL,
    look_at bigint NOT NULL,
    PRIMARY KEY (topic, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX tramline_unique_look ON tramline_unique (look_at);

-- Ballast, as in migration 5.
INSERT INTO tramline_limit (subscription) SELECT -n FROM generate_series(1, 1000) AS n;
INSERT INTO tramline_unique (topic, key, event, until, look_at)
SELECT 0, n::text, 0, 0, 9223372036854775807 FROM generate_series(1, 1000) AS n;
