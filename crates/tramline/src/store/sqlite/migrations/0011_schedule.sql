-- What is emitted at certain times: the schedule as JSON, and how it stands. A tick changes the row in the transaction that emits,
-- if `next_run` is what it was: so each run is emitted once.
CREATE TABLE tramline_schedule (
    name        TEXT PRIMARY KEY,
    body        TEXT NOT NULL,
    declared_by TEXT,
    paused      INTEGER NOT NULL,
    anchor      INTEGER NOT NULL,
    next_run    INTEGER,
    last_tick   INTEGER,
    last_run    INTEGER,
    last_event  INTEGER,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX tramline_schedule_next ON tramline_schedule (next_run);
CREATE INDEX tramline_schedule_declared ON tramline_schedule (declared_by);
