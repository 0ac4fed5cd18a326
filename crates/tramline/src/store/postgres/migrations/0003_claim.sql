-- The lowest bits of a mask, as many as are wanted: the same as model::mask::Mask::split_lowest.
CREATE FUNCTION tramline_lowest(mask bigint, wanted bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    below int := 0;
    step int;
BEGIN
    IF bit_count(mask::bit(64)) <= wanted THEN
        RETURN mask;
    END IF;
    -- The greatest place below which there are no more than that.
    FOREACH step IN ARRAY '{32,16,8,4,2,1}'::int[] LOOP
        IF bit_count((mask & ~(-1::bigint << (below + step)))::bit(64)) <= wanted THEN
            below := below + step;
        END IF;
    END LOOP;
    RETURN mask & ~(-1::bigint << below);
END $$;

-- The common claims in one call, where there is no order: due slices by priority and then time, until they hold what is
-- wanted, for one owner after the other; the last one of each is split if it holds more. The answer has one row per slice with its
-- chunk (of parts of one slice only the first), and then one with the time of the claim, when something is due that is not yet, whether something is left that is due (because enough was taken, or somebody
-- else has it locked), and whether all events have the usual priority. There at is NULL, and nothing was taken, when there is
-- more to look after than that: a change of the catalogue since `version`, a rule, a back-fill, a lease that has ended, a suspect.
--
-- Callers forbid the planner to think of anything but the indexes, as Session does.
CREATE FUNCTION tramline_claim_due(
    version bigint, of_subscription bigint, by_owners bigint[], at_time bigint, lease_ms bigint, into_state smallint,
    wanted bigint[], weight bigint
) RETURNS TABLE (
    chunk bigint, id bigint, subscription bigint, state smallint, lane bigint, rank bigint, mask bigint, due_at bigint,
    attempts int, crashes int, alone int, epoch bigint, owner bigint, replayed boolean, bytes int, error text,
    topic bigint, emitted_at bigint, meta text, prevs bigint[], mains bigint[], body bytea,
    at bigint, next_due bigint, more boolean, simple boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment bigint;
    ranks bigint[] := '{5}';
    place bigint;
    first bigint;
    found record;
    turn int := 1;
    room bigint := wanted[1];
    heavy bigint := 0;
    hopes bigint := 0;
    events bigint;
    sent bigint := 0;
    rows bigint;
    batch bigint;
    mine bigint;
    stored_version bigint;
    trouble boolean;
    priorities boolean;
BEGIN
    -- What is claimed at least once need not reach the disk: if a power cut undoes it, it is simply due again.
    -- Whoever sets a rule waits for the claims that may not have seen it: they share the second lock before they look.
    PERFORM pg_advisory_xact_lock_shared('tramline_subscription'::regclass::oid::int, of_subscription::int),
        pg_advisory_xact_lock_shared('tramline_rule'::regclass::oid::int, of_subscription::int),
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
    FOREACH mine IN ARRAY wanted LOOP
        hopes := hopes + mine;
    END LOOP;
    -- Row by row, each found by its key, so that no plan can go wrong. One statement for all took 22 microseconds for each of many
    -- rows and 24 to find none; this takes 27 and 9. As many rows are locked as are wanted if they are full, and more of them only
    -- where that was too little: what is locked and not taken is written all the same, and is passed over by others.
    FOREACH place IN ARRAY ranks LOOP
        batch := (hopes + 63) / 64;
        LOOP
            EXIT WHEN batch <= 0;
            rows := 0;
            FOR found IN
                SELECT s.chunk, s.id, s.mask, bit_count(s.mask::bit(64)) AS count, s.bytes, s.pos, s.due_at, s.epoch, s.owner
                FROM tramline_slice s
                WHERE s.subscription = of_subscription AND s.state = 0 AND s.lane = 0 AND s.rank = place AND s.pos <= moment
                ORDER BY s.pos LIMIT batch FOR UPDATE SKIP LOCKED
            LOOP
                EXIT WHEN hopes = 0 OR sent >= greatest(weight, 8388608);
                rows := rows + 1;
                -- The row keeps what is taken first, so that the lease names a row that exists; the rest gets new ones.
                mine := CASE WHEN found.count > room THEN tramline_lowest(found.mask, room) ELSE found.mask END;
                UPDATE tramline_slice s
                SET state = into_state, owner = by_owners[turn], epoch = s.epoch + 1, mask = mine,
                    due_at = moment + lease_ms, pos = moment + lease_ms
                FROM tramline_chunk c
                WHERE s.chunk = found.chunk AND s.id = found.id AND c.chunk = found.chunk
                RETURNING s.chunk, s.id, s.subscription, s.state, s.lane, s.rank, s.mask, s.due_at, s.attempts, s.crashes,
                    s.alone, s.epoch, s.owner, s.replayed, s.bytes, s.error,
                    c.topic, c.emitted_at, c.meta, c.prevs, c.mains, c.body
                INTO chunk, id, subscription, state, lane, rank, mask, due_at, attempts, crashes,
                    alone, epoch, owner, replayed, bytes, error,
                    topic, emitted_at, meta, prevs, mains, body;
                sent := sent + octet_length(body);
                LOOP
                    RETURN NEXT;
                    events := least(found.count, room);
                    found.mask := found.mask # mine;
                    found.count := found.count - events;
                    room := room - events;
                    hopes := hopes - events;
                    heavy := heavy + found.bytes;
                    IF room = 0 OR heavy >= weight THEN
                        hopes := hopes - room;
                        turn := turn + 1;
                        room := wanted[turn];
                        heavy := 0;
                    END IF;
                    EXIT WHEN found.count = 0;
                    IF hopes = 0 THEN
                        INSERT INTO tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, attempts, crashes,
                            alone, epoch, owner, replayed, bytes, error, tallied)
                        SELECT s.chunk, s.subscription, 0, s.lane, s.rank, found.pos, found.mask, found.due_at, s.attempts,
                            s.crashes, s.alone, found.epoch, found.owner, s.replayed, s.bytes, s.error, s.tallied
                        FROM tramline_slice s WHERE s.chunk = found.chunk AND s.id = found.id;
                        EXIT;
                    END IF;
                    mine := tramline_lowest(found.mask, room);
                    INSERT INTO tramline_slice AS n (chunk, subscription, state, lane, rank, pos, mask, due_at, attempts, crashes,
                        alone, epoch, owner, replayed, bytes, error, tallied)
                    SELECT s.chunk, s.subscription, s.state, s.lane, s.rank, s.pos, mine, s.due_at, s.attempts,
                        s.crashes, s.alone, s.epoch, by_owners[turn], s.replayed, s.bytes, s.error, s.tallied
                    FROM tramline_slice s WHERE s.chunk = found.chunk AND s.id = found.id
                    RETURNING n.id, n.mask, n.owner INTO id, mask, owner;
                    meta := NULL;
                    body := NULL;
                END LOOP;
            END LOOP;
            EXIT WHEN rows < batch OR sent >= greatest(weight, 8388608);
            batch := least(batch * 4, hopes);
        END LOOP;
    END LOOP;
    FOREACH place IN ARRAY ranks LOOP
        SELECT s.pos INTO first FROM tramline_slice s
        WHERE s.subscription = of_subscription AND s.state = 0 AND s.lane = 0 AND s.rank = place ORDER BY s.pos LIMIT 1;
        next_due := least(next_due, first);
    END LOOP;
    more := next_due <= moment;
    IF room = wanted[turn] OR turn < cardinality(wanted) THEN
        -- Whoever has nothing to do also waits for leases of others to end.
        FOREACH place IN ARRAY ranks LOOP
            SELECT s.pos INTO first FROM tramline_slice s WHERE s.subscription = of_subscription
                AND s.state = into_state AND s.lane = 0 AND s.rank = place ORDER BY s.pos LIMIT 1;
            next_due := least(next_due, first);
        END LOOP;
    END IF;
    at := moment;
    simple := NOT priorities;
    -- What was taken last is in the answer already, and may be a megabyte.
    meta := NULL;
    body := NULL;
    RETURN NEXT;
END $$;

-- The shortest claim, right after one that found the queue empty and nothing to look after: what came since, a few small slices with
-- the usual priority. Nothing is taken when the catalogue has another version or there is a rule. Whoever sets a rule waits for
-- this as for every claim. The statement that takes begins after the lock was given, so it sees every rule whose setter is not waiting.
--
-- It writes no slice that is not there, so the subscription need not be locked against deletion.
CREATE FUNCTION tramline_glance(
    version bigint, of_subscription bigint, by_owner bigint, lease_ms bigint, most bigint, count bigint, weight bigint
) RETURNS TABLE (
    chunk bigint, id bigint, subscription bigint, state smallint, lane bigint, rank bigint, mask bigint, due_at bigint,
    attempts int, crashes int, alone int, epoch bigint, owner bigint, replayed boolean, bytes int, error text,
    topic bigint, emitted_at bigint, meta text, prevs bigint[], mains bigint[], body bytea, at bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    moment constant bigint := tramline_now();
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true),
        pg_advisory_xact_lock_shared('tramline_rule'::regclass::oid::int, of_subscription::int);
    RETURN QUERY WITH due AS MATERIALIZED (
        SELECT d.chunk, d.id FROM tramline_slice d
        WHERE d.subscription = of_subscription AND d.state = 0 AND d.lane = 0 AND d.rank = 5 AND d.pos <= moment
        AND (SELECT m.value FROM tramline_meta m WHERE m.name = 'catalog') = version
        AND NOT EXISTS (SELECT FROM tramline_rule r WHERE r.subscription = of_subscription)
        ORDER BY d.pos LIMIT most FOR UPDATE OF d SKIP LOCKED)
    UPDATE tramline_slice s
    SET state = 1, owner = by_owner, epoch = s.epoch + 1, due_at = moment + lease_ms, pos = moment + lease_ms
    FROM due f JOIN tramline_chunk c ON c.chunk = f.chunk
    WHERE s.chunk = f.chunk AND s.id = f.id AND bit_count(s.mask::bit(64)) <= count AND s.bytes <= weight
    RETURNING s.chunk, s.id, s.subscription, s.state, s.lane, s.rank, s.mask, s.due_at, s.attempts, s.crashes, s.alone,
        s.epoch, s.owner, s.replayed, s.bytes, s.error, c.topic, c.emitted_at, c.meta, c.prevs, c.mains, c.body, moment;
END $$;
