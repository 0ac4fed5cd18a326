-- How the sending of push subscriptions stands, as JSON.
CREATE TABLE IF NOT EXISTS tramline_push (
    subscription BIGINT NOT NULL PRIMARY KEY,
    state        LONGTEXT CHARACTER SET utf8mb4 NOT NULL
) ENGINE = InnoDB;

-- The last requests of each push subscription, as JSON.
CREATE TABLE IF NOT EXISTS tramline_attempt (
    id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription BIGINT NOT NULL,
    entry        LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    KEY tramline_attempt_subscription (subscription, id)
) ENGINE = InnoDB;
