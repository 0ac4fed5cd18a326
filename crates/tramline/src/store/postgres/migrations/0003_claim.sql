-- The common claim in one call, where there is no order: due slices as they are, by priority and then time, until they hold
-- what is wanted. The answer has one row per slice with its chunk, and then one with the time of the claim, when something
-- is due that is not yet, and whether something is left that is due: a slice too large to be taken whole, or one that
-- somebody else has locked. There at is NULL, and nothing was taken, when there is more to look after than that: a
-- change of the catalogue since `version`, a rule, a back-fill, a lease that has ended, a suspect.
--
-- Callers forbid the planner to think of anything but the indexes, as Session does.
CREATE FUNCTION tramline_claim_due(
    version bigint, of_subscription bigint, by_owner bigint, at_time bigint, lease_ms bigint, into_state smallint,
    wanted bigint, weight bigint, most bigint
) RETURNS TABLE (
    chunk bigint, id bigint, subscription bigint, state smallint, lane bigint, rank bigint, mask bigint, due_at bigint,
    attempts int, crashes int, alone int, epoch bigint, owner bigint, replayed boolean, bytes int, error text,
    topic bigint, emitted_at bigint, meta text, prevs bigint[], mains bigint[], body bytea,
    at bigint, next_due bigint, more boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment bigint;
    ranks bigint[] := '{5}';
    stored_version bigint;
    trouble boolean;
    priorities boolean;
    took boolean;
BEGIN
    -- What is claimed at least once need not reach the disk: if a power cut undoes it, it is simply due again.
    PERFORM pg_advisory_xact_lock_shared('tramline_subscription'::regclass::oid::int, of_subscription::int),
        CASE WHEN into_state = 1 THEN set_config('synchronous_commit', 'off', true) END;
    moment := coalesce(at_time, tramline_now());
    -- Every priority is a range of its own in the index; most queues know only one.
    SELECT m.value,
        EXISTS (SELECT FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state = 2)
        OR EXISTS (SELECT FROM tramline_rule r WHERE r.subscription = of_subscription)
        OR EXISTS (SELECT FROM tramline_subscription_topic st
            WHERE st.subscription = of_subscription AND st.backfill_next <= st.backfill_until)
        OR EXISTS (SELECT FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state = into_state
            AND s.lane = 0 AND s.rank = 5 AND s.pos <= moment),
        EXISTS (SELECT FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state IN (0, into_state)
            AND s.lane = 0 AND s.rank < 5)
        OR EXISTS (SELECT FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state IN (0, into_state)
            AND s.lane = 0 AND s.rank > 5)
    INTO stored_version, trouble, priorities
    FROM tramline_meta m WHERE m.name = 'catalog';
    IF priorities THEN
        ranks := '{0,1,2,3,4,5,6,7,8,9}';
        trouble := trouble OR EXISTS (SELECT FROM unnest(ranks) AS p(rank) CROSS JOIN LATERAL (
            SELECT FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state = into_state
                AND s.lane = 0 AND s.rank = p.rank AND s.pos <= moment LIMIT 1) f);
    END IF;
    IF trouble OR version <> stored_version THEN
        RETURN NEXT;
        RETURN;
    END IF;
    RETURN QUERY
    WITH taken AS (
        UPDATE tramline_slice s
        SET state = into_state, owner = by_owner, epoch = s.epoch + 1, due_at = moment + lease_ms, pos = moment + lease_ms
        FROM (
            SELECT d.chunk, d.id, row_number() OVER up_to AS place,
                sum(bit_count(d.mask::bit(64))) OVER up_to AS events, sum(d.bytes) OVER up_to - d.bytes AS before
            FROM (
                SELECT s.* FROM unnest(ranks) AS p(rank) CROSS JOIN LATERAL (
                    SELECT d.chunk, d.id, d.mask, d.bytes FROM tramline_slice d WHERE d.subscription = of_subscription
                        AND d.state = 0 AND d.lane = 0 AND d.rank = p.rank AND d.pos <= moment
                        ORDER BY d.pos LIMIT most FOR UPDATE SKIP LOCKED) s
                LIMIT most
            ) d WINDOW up_to AS (ROWS UNBOUNDED PRECEDING)
        ) f
        WHERE s.chunk = f.chunk AND s.id = f.id AND f.events <= wanted AND f.before < weight
        RETURNING f.place, s.*
    )
    SELECT t.chunk, t.id, t.subscription, t.state, t.lane, t.rank, t.mask, t.due_at, t.attempts, t.crashes, t.alone,
        t.epoch, t.owner, t.replayed, t.bytes, t.error,
        c.topic, c.emitted_at, c.meta, c.prevs, c.mains, c.body, NULL::bigint, NULL::bigint, NULL::boolean
    FROM taken t JOIN tramline_chunk c ON c.chunk = t.chunk
    ORDER BY t.place;
    took := FOUND;
    SELECT min(f.pos) INTO next_due FROM unnest(ranks) AS p(rank) CROSS JOIN LATERAL (
        SELECT s.pos FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state = 0
            AND s.lane = 0 AND s.rank = p.rank ORDER BY s.pos LIMIT 1) f;
    more := next_due <= moment;
    IF NOT took THEN
        -- Whoever has nothing to do also waits for leases of others to end.
        SELECT least(next_due, min(f.pos)) INTO next_due FROM unnest(ranks) AS p(rank) CROSS JOIN LATERAL (
            SELECT s.pos FROM tramline_slice s WHERE s.subscription = of_subscription AND s.state = into_state
                AND s.lane = 0 AND s.rank = p.rank ORDER BY s.pos LIMIT 1) f;
    END IF;
    at := moment;
    RETURN NEXT;
END $$;
