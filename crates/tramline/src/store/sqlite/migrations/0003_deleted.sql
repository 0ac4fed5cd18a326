-- What was deleted and still has rows: a topic, a subscription, or what a subscription had of a topic that it left. Zero stands
-- for none. Chunks below next have been looked at.
CREATE TABLE tramline_deleted (
    topic        INTEGER NOT NULL,
    subscription INTEGER NOT NULL,
    next         INTEGER NOT NULL,
    PRIMARY KEY (topic, subscription)
) WITHOUT ROWID;
