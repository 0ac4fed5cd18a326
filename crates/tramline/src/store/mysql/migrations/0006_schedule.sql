-- What is emitted at certain times: the schedule as JSON, and how it stands. A tick changes the row in the transaction that emits,
-- if `next_run` is what it was: so each run is emitted once.
CREATE TABLE IF NOT EXISTS tramline_schedule (
    name        VARBINARY(255) NOT NULL PRIMARY KEY,
    body        LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    declared_by VARBINARY(255),
    paused      BOOLEAN NOT NULL,
    anchor      BIGINT NOT NULL,
    next_run    BIGINT,
    last_tick   BIGINT,
    last_run    BIGINT,
    last_event  BIGINT,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    KEY tramline_schedule_next (next_run),
    KEY tramline_schedule_declared (declared_by)
) ENGINE = InnoDB;
