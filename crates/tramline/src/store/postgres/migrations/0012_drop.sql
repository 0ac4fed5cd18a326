-- What subscriptions will never see, and why. Every record is for one minute; old ones go into the sums.
CREATE TABLE tramline_drop (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription bigint NOT NULL,
    reason       text COLLATE "C" NOT NULL,
    first_id     bigint NOT NULL,
    last_id      bigint NOT NULL,
    events       bigint NOT NULL,
    at           bigint NOT NULL
);
CREATE INDEX tramline_drop_subscription ON tramline_drop (subscription, id);

CREATE TABLE tramline_drop_total (
    subscription bigint NOT NULL,
    reason       text COLLATE "C" NOT NULL,
    events       bigint NOT NULL,
    PRIMARY KEY (subscription, reason)
);

-- Events of chunks that were removed: with those that are there, all that were ever emitted to the topic.
ALTER TABLE tramline_topic ADD COLUMN removed_events bigint NOT NULL DEFAULT 0;

-- Sums over chunks, and the search for those that can go, read the index only: the rows carry payloads.
DROP INDEX IF EXISTS tramline_chunk_topic;
CREATE INDEX tramline_chunk_topic ON tramline_chunk (topic, chunk) INCLUDE (count, bytes);
