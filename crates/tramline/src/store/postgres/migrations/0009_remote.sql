-- Workers that claim through a node, by name: they have no heartbeat, only the last time at which they were seen.
CREATE TABLE tramline_remote (
    subscription bigint NOT NULL,
    name         text COLLATE "C" NOT NULL,
    born_at      bigint NOT NULL,
    seen_at      bigint NOT NULL,
    claims       bigint NOT NULL,
    PRIMARY KEY (subscription, name)
);
