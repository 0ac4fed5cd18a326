-- How the sending of push subscriptions stands, as JSON. Updated in place after every request that changes something.
CREATE TABLE tramline_push (
    subscription bigint PRIMARY KEY,
    state        text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The last requests of each push subscription, as JSON.
CREATE TABLE tramline_attempt (
    subscription bigint NOT NULL,
    id           bigint GENERATED ALWAYS AS IDENTITY,
    entry        text NOT NULL,
    PRIMARY KEY (subscription, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

INSERT INTO tramline_push (subscription, state) SELECT -n, '{}' FROM generate_series(1, 1000) AS n;
INSERT INTO tramline_attempt (subscription, entry) SELECT -n, '{}' FROM generate_series(1, 1000) AS n;
