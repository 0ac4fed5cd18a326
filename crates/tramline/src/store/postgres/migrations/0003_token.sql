-- Who may do what over the network. Secrets are random and long, so a plain hash of them is enough.
CREATE TABLE tramline_token (
    name          text PRIMARY KEY,
    hash          bytea NOT NULL,
    scopes        text NOT NULL,
    topics        text,
    subscriptions text,
    created_at    bigint NOT NULL,
    expires_at    bigint,
    used_at       bigint
);
