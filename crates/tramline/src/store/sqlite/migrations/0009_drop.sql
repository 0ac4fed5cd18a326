-- What subscriptions will never see, and why. Every record is for one minute; old ones go into the sums.
CREATE TABLE tramline_drop (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    first_id     INTEGER NOT NULL,
    last_id      INTEGER NOT NULL,
    events       INTEGER NOT NULL,
    at           INTEGER NOT NULL
);
CREATE INDEX tramline_drop_subscription ON tramline_drop (subscription, id);

CREATE TABLE tramline_drop_total (
    subscription INTEGER NOT NULL,
    reason       TEXT NOT NULL,
    events       INTEGER NOT NULL,
    PRIMARY KEY (subscription, reason)
) WITHOUT ROWID;

-- Events of chunks that were removed: with those that are there, all that were ever emitted to the topic.
ALTER TABLE tramline_topic ADD COLUMN removed_events INTEGER NOT NULL DEFAULT 0;

-- Sums over chunks, and the search for those that can go, read the index only: the rows carry payloads.
DROP INDEX tramline_chunk_topic;
CREATE INDEX tramline_chunk_topic ON tramline_chunk (topic, chunk, count, bytes);
