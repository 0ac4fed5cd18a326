-- Workers that claim through a node, by name: they have no heartbeat, only the last time at which they were seen.
CREATE TABLE tramline_remote (
    subscription INTEGER NOT NULL,
    name         TEXT NOT NULL,
    born_at      INTEGER NOT NULL,
    seen_at      INTEGER NOT NULL,
    claims       INTEGER NOT NULL,
    PRIMARY KEY (subscription, name)
) WITHOUT ROWID;
