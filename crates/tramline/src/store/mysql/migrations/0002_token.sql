-- Who may do what over the network. Secrets are random and long, so a plain hash of them is enough.
CREATE TABLE IF NOT EXISTS tramline_token (
    name          VARBINARY(255) NOT NULL PRIMARY KEY,
    hash          VARBINARY(64) NOT NULL,
    scopes        LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    topics        LONGTEXT CHARACTER SET utf8mb4,
    subscriptions LONGTEXT CHARACTER SET utf8mb4,
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT,
    used_at       BIGINT
) ENGINE = InnoDB;
