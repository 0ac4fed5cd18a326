-- Why attempts failed, and (in the last slot, attempt 0) why events went without being done. Written by failures only. A row is for events
-- of one chunk that failed alike; attempts go round in a ring of slots, so that an event has at most one bit in each. It goes with
-- its chunk. Its number is made like that of a slice.
CREATE TABLE IF NOT EXISTS tramline_failure (
    chunk        BIGINT NOT NULL,
    id           BIGINT NOT NULL,
    subscription BIGINT NOT NULL,
    slot         SMALLINT NOT NULL,
    mask         BIGINT NOT NULL,
    attempt      INT NOT NULL,
    at           BIGINT NOT NULL,
    worker       LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    error        LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    PRIMARY KEY (chunk, subscription, slot, id)
) ENGINE = InnoDB;

-- Rules for all subscriptions whose names match, and of which all topics match one of `topics` (JSON; NULL: any). Each is also written into the rules of those that there are, and of those that come:
-- what a claim reads is what stops its subscription, however many rules there are.
CREATE TABLE IF NOT EXISTS tramline_pattern_rule (
    id      BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    pattern VARBINARY(255) NOT NULL,
    kind    VARBINARY(16) NOT NULL,
    topics  LONGTEXT CHARACTER SET utf8mb4,
    `by`    LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    reason  LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    since   BIGINT NOT NULL,
    until   BIGINT
) ENGINE = InnoDB;

-- source: the rule by pattern that a rule comes from; zero for one that names the subscription. Only MariaDB can add a column if it
-- is not there; this way both can.
SET @tramline_ddl = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'tramline_rule' AND column_name = 'source') > 0, 'DO 0',
    'ALTER TABLE tramline_rule ADD COLUMN source BIGINT NOT NULL DEFAULT 0, DROP PRIMARY KEY, ADD PRIMARY KEY (subscription, kind, source), ADD KEY tramline_rule_source (source)');
PREPARE tramline_step FROM @tramline_ddl;
EXECUTE tramline_step;
DEALLOCATE PREPARE tramline_step;

-- What was done by pattern: subscription is zero there.
SET @tramline_ddl = IF((SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE()
    AND table_name = 'tramline_audit' AND column_name = 'pattern') > 0, 'DO 0',
    'ALTER TABLE tramline_audit ADD COLUMN pattern VARBINARY(255)');
PREPARE tramline_step FROM @tramline_ddl;
EXECUTE tramline_step;
DEALLOCATE PREPARE tramline_step;
