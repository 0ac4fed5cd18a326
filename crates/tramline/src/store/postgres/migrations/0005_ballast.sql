-- Rows that mean nothing: a subscription, topic and chunk of these numbers never exist.
--
-- A queue is empty now and then. When the tables are vacuumed at such a moment, the statistics say "no rows" until the
-- next look, however many have come since; and where the planner believes in one row, reading the whole table for each
-- claim and settlement costs no more than finding the row by its key. A thousand rows make the key win in every plan.
INSERT INTO tramline_slice (chunk, id, subscription, state, lane, rank, pos, mask, due_at, bytes)
SELECT -n, -n, 0, 0, 0, 0, n, 0, 0, 0 FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_chunk (chunk, topic, emitted_at, count, bytes, meta, body)
SELECT -n, 0, 0, 0, 0, '', '' FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_head (topic, key, last_id) SELECT 0, n::text, 0 FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_idempotency (topic, key, hash, receipt, expires_at)
SELECT 0, n::text, '', '', 9223372036854775807 FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_lane (subscription, lane) SELECT 0, n FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_parked (subscription, lane, key, blocked_by, since)
SELECT 0, n, '', 0, 0 FROM generate_series(1, 1000) AS n;

INSERT INTO tramline_gap (subscription, lane, key, id) SELECT 0, n, '', 0 FROM generate_series(1, 1000) AS n;
