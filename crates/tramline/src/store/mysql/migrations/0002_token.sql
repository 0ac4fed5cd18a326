-- Who may do what over the network. Secrets are random and long, so a plain hash of them is enough.
-- sealed: the secret of a token that an admin may list, encrypted; NULL: only the hash is kept.
CREATE TABLE IF NOT EXISTS tramline_token (
    name          VARBINARY(255) NOT NULL PRIMARY KEY,
    hash          VARBINARY(64) NOT NULL,
    scopes        LONGTEXT CHARACTER SET utf8mb4 NOT NULL,
    topics        LONGTEXT CHARACTER SET utf8mb4,
    subscriptions LONGTEXT CHARACTER SET utf8mb4,
    created_at    BIGINT NOT NULL,
    expires_at    BIGINT,
    used_at       BIGINT,
    sealed        LONGTEXT CHARACTER SET utf8mb4
) ENGINE = InnoDB;
