-- How the sending of push subscriptions stands, as JSON.
CREATE TABLE tramline_push (
    subscription INTEGER PRIMARY KEY,
    state        TEXT NOT NULL
);

-- The last requests of each push subscription, as JSON.
CREATE TABLE tramline_attempt (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    subscription INTEGER NOT NULL,
    entry        TEXT NOT NULL
);
CREATE INDEX tramline_attempt_subscription ON tramline_attempt (subscription, id);
