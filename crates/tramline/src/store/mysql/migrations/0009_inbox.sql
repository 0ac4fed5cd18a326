-- What programs in other languages want to emit: one INSERT in their own transaction, in whatever isolation. The nodes emit it in the
-- order of the numbers, one node at a time, and delete it in the same transaction. What cannot be emitted stays, with the reason.
-- Most of that is refused at once, by name: a program hears of its mistake where it makes it.
CREATE TABLE IF NOT EXISTS tramline_inbox (
    id              BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    topic           VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL,
    type            VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL DEFAULT '',
    `key`           VARCHAR(512) CHARACTER SET utf8mb4,
    payload         LONGBLOB NOT NULL,
    content_type    VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL DEFAULT 'application/json',
    headers         LONGTEXT CHARACTER SET utf8mb4,
    priority        TINYINT NOT NULL DEFAULT 5,
    delay_ms        BIGINT NOT NULL DEFAULT 0,
    idempotency_key VARCHAR(255) CHARACTER SET utf8mb4,
    refused         TINYINT NOT NULL DEFAULT 0,
    error           LONGTEXT CHARACTER SET utf8mb4,
    CONSTRAINT tramline_inbox_topic CHECK (topic REGEXP '^[A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*$'),
    CONSTRAINT tramline_inbox_type CHECK (type REGEXP '^([A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*)?$'),
    CONSTRAINT tramline_inbox_key CHECK (LENGTH(`key`) BETWEEN 1 AND 512),
    CONSTRAINT tramline_inbox_payload CHECK (LENGTH(payload) <= 1048576),
    CONSTRAINT tramline_inbox_headers CHECK (JSON_VALID(headers) AND JSON_TYPE(headers) = 'OBJECT' AND LENGTH(headers) <= 16384),
    CONSTRAINT tramline_inbox_priority CHECK (priority BETWEEN 0 AND 9),
    CONSTRAINT tramline_inbox_delay CHECK (delay_ms >= 0),
    KEY tramline_inbox_refused (refused, id)
) ENGINE = InnoDB;
INSERT IGNORE INTO tramline_meta VALUES ('inbox', 0);
