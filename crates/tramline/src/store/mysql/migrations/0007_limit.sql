-- Limits of subscriptions over all workers. The row is what claims of a limited subscription wait for each other at; other
-- subscriptions have none. What is under way is counted where it is, in the slices, so nothing here can leak. `starts` says
-- how many events were started when, for the rate.
CREATE TABLE IF NOT EXISTS tramline_limit (
    subscription BIGINT NOT NULL PRIMARY KEY,
    starts       VARBINARY(8192) NOT NULL DEFAULT '[]'
) ENGINE = InnoDB;

-- The last event of every unique key. Whether it is still pending is looked up at the next emit, so nobody else pays for it;
-- until: how long it is unique even if it is not. A sweep looks at entries when look_at is over.
CREATE TABLE IF NOT EXISTS tramline_unique (
    topic   BIGINT NOT NULL,
    `key`   VARBINARY(512) NOT NULL,
    event   BIGINT NOT NULL,
    until   BIGINT NOT NULL,
    look_at BIGINT NOT NULL,
    PRIMARY KEY (topic, `key`),
    KEY tramline_unique_look (look_at)
) ENGINE = InnoDB;
