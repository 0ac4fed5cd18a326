-- What was deleted and still has rows: a topic, a subscription, or what a subscription had of a topic that it left. Zero stands
-- for none. Chunks below next have been looked at.
CREATE TABLE tramline_deleted (
    topic        bigint NOT NULL,
    subscription bigint NOT NULL,
    next         bigint NOT NULL,
    PRIMARY KEY (topic, subscription)
);
