-- Tallies. The row has sums over finished parts, and changes only when items are added, a part is finished, or it is sealed or
-- ended. States above 4 are rows on their way out; they have no open_key. idle_since is never later than the last activity, and
-- raised only by those who look for idle ones, so that activity changes no index.
CREATE TABLE IF NOT EXISTS tramline_tally (
    id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    state        TINYINT NOT NULL,
    growing      BOOLEAN NOT NULL,
    estimated    BOOLEAN NOT NULL,
    tells        SMALLINT NOT NULL,
    user_key     VARBINARY(1024),
    topic        VARBINARY(255),
    parent_tally BIGINT,
    parent_item  BIGINT,
    next_part    BIGINT NOT NULL DEFAULT 0,
    total        BIGINT NOT NULL DEFAULT 0,
    parts_left   BIGINT NOT NULL DEFAULT 0,
    done         BIGINT NOT NULL DEFAULT 0,
    failed       BIGINT NOT NULL DEFAULT 0,
    created_at   BIGINT NOT NULL,
    sealed_at    BIGINT,
    ended_at     BIGINT,
    active_at    BIGINT NOT NULL,
    expires_at   BIGINT,
    ended_by     BIGINT NOT NULL DEFAULT 0,
    idle_since   BIGINT NOT NULL,
    checked_at   BIGINT NOT NULL,
    open_key     VARBINARY(1024),
    open_hash    VARBINARY(64),
    KEY tramline_tally_state (state, id),
    KEY tramline_tally_idle (state, idle_since),
    KEY tramline_tally_user_key (user_key, id),
    KEY tramline_tally_expiry (state, expires_at),
    KEY tramline_tally_unchecked (state, checked_at),
    KEY tramline_tally_parent (parent_tally, parent_item),
    UNIQUE KEY tramline_tally_open_key (open_key)
) ENGINE = InnoDB;

-- What is only read now and then: the metadata (kind -1), and the event to emit on each occasion.
CREATE TABLE IF NOT EXISTS tramline_tally_note (
    tally BIGINT NOT NULL,
    kind  SMALLINT NOT NULL,
    body  LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    PRIMARY KEY (tally, kind)
) ENGINE = InnoDB;

-- Items that were added together, and whether they are events. They begin with a part of their own.
CREATE TABLE IF NOT EXISTS tramline_tally_extent (
    tally     BIGINT NOT NULL,
    part      BIGINT NOT NULL,
    count     BIGINT NOT NULL,
    token     BIGINT,
    of_events BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (tally, part),
    UNIQUE KEY tramline_tally_extent_token (tally, token)
) ENGINE = InnoDB;

-- Up to 4,096 items, written when the first of them ends. pending and failures are masks of 64 items each, lowest byte first;
-- pending is NULL where all or none are. The index has the parts that are under way.
CREATE TABLE IF NOT EXISTS tramline_tally_part (
    tally     BIGINT NOT NULL,
    part      BIGINT NOT NULL,
    items     INT NOT NULL,
    remaining INT NOT NULL,
    done      INT NOT NULL DEFAULT 0,
    failed    INT NOT NULL DEFAULT 0,
    active_at BIGINT NOT NULL,
    is_open   BOOLEAN NOT NULL DEFAULT TRUE,
    pending   VARBINARY(512),
    failures  VARBINARY(512),
    PRIMARY KEY (tally, part),
    KEY tramline_tally_part_open (tally, is_open)
) ENGINE = InnoDB;

-- News on their way: written with what they tell, removed with their emission.
CREATE TABLE IF NOT EXISTS tramline_tally_outbox (
    id     BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tally  BIGINT NOT NULL,
    news   SMALLINT NOT NULL,
    total  BIGINT NOT NULL,
    done   BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    item   BIGINT,
    KEY tramline_tally_outbox_tally (tally)
) ENGINE = InnoDB;
