-- What is emitted at certain times: the schedule as JSON, and how it stands. A tick changes the row in the transaction that emits,
-- if `next_run` is what it was: so each run is emitted once.
CREATE TABLE tramline_schedule (
    name        text COLLATE "C" PRIMARY KEY,
    body        text NOT NULL,
    declared_by text,
    paused      boolean NOT NULL,
    anchor      bigint NOT NULL,
    next_run    bigint,
    last_tick   bigint,
    last_run    bigint,
    last_event  bigint,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX tramline_schedule_next ON tramline_schedule (next_run);
CREATE INDEX tramline_schedule_declared ON tramline_schedule (declared_by);
