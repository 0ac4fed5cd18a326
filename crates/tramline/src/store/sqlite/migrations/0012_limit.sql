-- Limits of subscriptions over all workers: how many events were started when, for the rate. What is under way is counted where it
-- is, in the slices, so nothing here can leak.
CREATE TABLE tramline_limit (
    subscription INTEGER PRIMARY KEY,
    starts       TEXT NOT NULL DEFAULT '[]'
);

-- The last event of every unique key. Whether it is still pending is looked up at the next emit, so nobody else pays for it;
-- until: how long it is unique even if it is not. A sweep looks at entries when look_at is over.
CREATE TABLE tramline_unique (
    topic   INTEGER NOT NULL,
    key     TEXT NOT NULL,
    event   INTEGER NOT NULL,
    until   INTEGER NOT NULL,
    look_at INTEGER NOT NULL,
    PRIMARY KEY (topic, key)
) WITHOUT ROWID;
CREATE INDEX tramline_unique_look ON tramline_unique (look_at);
