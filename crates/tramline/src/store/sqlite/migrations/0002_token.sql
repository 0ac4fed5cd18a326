-- Who may do what over the network. Secrets are random and long, so a plain hash of them is enough.
CREATE TABLE tramline_token (
    name          TEXT PRIMARY KEY,
    hash          BLOB NOT NULL,
    scopes        TEXT NOT NULL,
    topics        TEXT,
    subscriptions TEXT,
    created_at    INTEGER NOT NULL,
    expires_at    INTEGER,
    used_at       INTEGER
) WITHOUT ROWID;
