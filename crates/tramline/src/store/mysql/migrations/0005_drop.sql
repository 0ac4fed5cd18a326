-- What subscriptions will never see, and why. Every record is for one minute; old ones go into the sums.
CREATE TABLE IF NOT EXISTS tramline_drop (
    id           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    subscription BIGINT NOT NULL,
    reason       VARBINARY(64) NOT NULL,
    first_id     BIGINT NOT NULL,
    last_id      BIGINT NOT NULL,
    events       BIGINT NOT NULL,
    at           BIGINT NOT NULL,
    KEY tramline_drop_subscription (subscription, id)
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tramline_drop_total (
    subscription BIGINT NOT NULL,
    reason       VARBINARY(64) NOT NULL,
    events       BIGINT NOT NULL,
    PRIMARY KEY (subscription, reason)
) ENGINE = InnoDB;
