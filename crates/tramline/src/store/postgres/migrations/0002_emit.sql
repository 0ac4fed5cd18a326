-- CRC-32 (IEEE) of a key, half a byte at a time: the same as model::lane::hash, for ever.
CREATE FUNCTION tramline_hash(key text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    half constant bigint[] := '{0,498536548,997073096,651767980,1994146192,1802195444,1303535960,1342533948,
        3988292384,4027552580,3604390888,3412177804,2607071920,2262029012,2685067896,3183342108}';
    bytes constant bytea := convert_to(key, 'UTF8');
    crc bigint := 4294967295;
BEGIN
    FOR at IN 0 .. length(bytes) - 1 LOOP
        crc := crc # get_byte(bytes, at);
        crc := (crc >> 4) # half[(crc & 15) + 1];
        crc := (crc >> 4) # half[(crc & 15) + 1];
    END LOOP;
    RETURN crc # 4294967295;
END $$;

-- Locks topics against changes of their subscriptions, until the transaction ends. Whoever draws chunk numbers must hold
-- this lock before: readers of the log look for it to know what is still being written. Gives the version of the catalogue
-- from then on. A transaction that looks at an old snapshot would miss a new subscription without noticing: there, the
-- row lock fails if the catalogue has changed since.
CREATE FUNCTION tramline_lock_topics(topics bigint[]) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    version bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared('tramline_topic'::regclass::oid::int, topic::int)
    FROM unnest(topics) AS t(topic);
    IF current_setting('transaction_isolation') = 'read committed' THEN
        SELECT value INTO version FROM tramline_meta WHERE name = 'catalog';
    ELSE
        SELECT value INTO version FROM tramline_meta WHERE name = 'catalog' FOR SHARE;
    END IF;
    RETURN version;
END $$;

-- Writes planned chunks: locks the heads, then draws the numbers, then writes. One statement would not do: its snapshot
-- is older than the locks it waits for. Events of the plan are named by (chunk of the plan, from 1) * 64 + index; a
-- negative link names a head of the plan. The links of a chunk begin at first_prevs and first_mains, NULL for none.
-- stored_at is NULL, and nothing is written, when the plan was made from another version of the catalogue.
--
-- Rows are found by their keys. Plans that were made when the tables were empty must not think of another way, and one
-- plan serves arrays of any length, because planning anew takes longer than running. The caller sees to that: a SET here
-- would cost as much as one of the statements.
CREATE FUNCTION tramline_emit_group(
    plan_version bigint, at_time bigint, wait_ms bigint, topics bigint[],
    head_topics bigint[], head_keys text[], head_lasts bigint[], head_states bytea[],
    chunk_topics bigint[], chunk_counts int[], chunk_bytes int[], chunk_metas text[], chunk_bodies bytea[],
    first_prevs int[], prevs bigint[], first_mains int[], mains bigint[],
    slice_chunks int[], slice_subscriptions bigint[], slice_lanes bigint[], slice_ranks bigint[],
    slice_afters bigint[], slice_ats bigint[], slice_masks bigint[],
    OUT stored_at bigint, OUT chunks bigint[], OUT heads bigint[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    version bigint;
BEGIN
    IF wait_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', wait_ms::text, true);
    END IF;
    version := tramline_lock_topics(topics);
    IF version <> plan_version THEN
        RETURN;
    END IF;
    heads := '{}';
    IF cardinality(head_keys) > 0 THEN
        -- Both in the order of the keys: two emits that share keys wait for each other and never in a circle.
        INSERT INTO tramline_head (topic, key, last_id)
        SELECT k.topic, k.key, 0 FROM unnest(head_topics, head_keys) WITH ORDINALITY AS k(topic, key, place)
        ORDER BY k.place
        ON CONFLICT DO NOTHING;
        SELECT array_agg(l.last_id ORDER BY l.place) INTO heads FROM (
            SELECT h.last_id, k.place
            FROM unnest(head_topics, head_keys) WITH ORDINALITY AS k(topic, key, place)
            JOIN tramline_head h ON h.topic = k.topic AND h.key = k.key
            ORDER BY k.place
            FOR UPDATE OF h
        ) l;
    END IF;
    stored_at := coalesce(at_time, tramline_now());
    SELECT array_agg(nextval('tramline_chunk_number')) INTO chunks
    FROM generate_series(1, cardinality(chunk_topics));

    INSERT INTO tramline_chunk (chunk, topic, emitted_at, count, bytes, meta, prevs, mains, body)
    SELECT chunks[c.place], c.topic, stored_at, c.count, c.bytes, c.meta,
        CASE WHEN c.prev IS NOT NULL THEN ARRAY(
            SELECT CASE WHEN l.link < 0 THEN heads[-l.link] WHEN l.link = 0 THEN 0
                ELSE chunks[l.link >> 6] * 64 + (l.link & 63) END
            FROM generate_series(c.prev, c.prev + c.count - 1) AS p(place)
            CROSS JOIN LATERAL (SELECT prevs[p.place] AS link) l) END,
        CASE WHEN c.main IS NOT NULL THEN ARRAY(
            SELECT CASE WHEN l.link = 0 THEN 0 ELSE chunks[l.link >> 6] * 64 + (l.link & 63) END
            FROM generate_series(c.main, c.main + c.count - 1) AS p(place)
            CROSS JOIN LATERAL (SELECT mains[p.place] AS link) l) END,
        c.body
    FROM unnest(chunk_topics, chunk_counts, chunk_bytes, chunk_metas, chunk_bodies, first_prevs, first_mains)
        WITH ORDINALITY AS c(topic, count, bytes, meta, body, prev, main, place);

    INSERT INTO tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes)
    SELECT chunks[s.chunk], s.subscription, 0, s.lane, s.rank,
        CASE WHEN s.lane = 0 THEN d.due_at ELSE chunks[s.chunk] END, s.mask, d.due_at, chunk_bytes[s.chunk]
    FROM unnest(slice_chunks, slice_subscriptions, slice_lanes, slice_ranks, slice_afters, slice_ats, slice_masks)
        AS s(chunk, subscription, lane, rank, after, at, mask)
    CROSS JOIN LATERAL (SELECT coalesce(greatest(s.at, stored_at), 0) AS at) a
    CROSS JOIN LATERAL (SELECT CASE WHEN s.after IS NULL THEN a.at ELSE stored_at + s.after END AS due_at) d;

    IF cardinality(head_keys) > 0 THEN
        UPDATE tramline_head h
        SET last_id = chunks[k.last >> 6] * 64 + (k.last & 63), state = coalesce(k.state, h.state)
        FROM unnest(head_topics, head_keys, head_lasts, head_states) AS k(topic, key, last, state)
        WHERE h.topic = k.topic AND h.key = k.key;
    END IF;
END $$;

-- The same for a plan of one chunk that has one event, or several without keys, all due at the same time: what most emits come to, and in
-- half the time.
CREATE FUNCTION tramline_emit_chunk(
    plan_version bigint, at_time bigint, wait_ms bigint, topic_id bigint, event_key text, event_state bytea,
    events int, weight int, chunk_meta text, chunk_body bytea, after_ms bigint, due bigint,
    slice_subscriptions bigint[], slice_lanes bigint[], slice_ranks bigint[], slice_masks bigint[],
    OUT stored_at bigint, OUT new_chunk bigint, OUT prev bigint
) LANGUAGE plpgsql AS $$
DECLARE
    version bigint;
    due_time bigint;
BEGIN
    -- As tramline_lock_topics does it: a call and two statements less are felt here.
    PERFORM CASE WHEN wait_ms IS NOT NULL THEN set_config('lock_timeout', wait_ms::text, true) END,
        pg_advisory_xact_lock_shared('tramline_topic'::regclass::oid::int, topic_id::int);
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        version := tramline_lock_topics(ARRAY[topic_id]);
    ELSE
        SELECT m.value INTO version FROM tramline_meta m WHERE m.name = 'catalog';
    END IF;
    IF version <> plan_version THEN
        RETURN;
    END IF;
    IF event_key IS NOT NULL THEN
        SELECT h.last_id INTO prev FROM tramline_head h WHERE h.topic = topic_id AND h.key = event_key FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO tramline_head (topic, key, last_id) VALUES (topic_id, event_key, 0) ON CONFLICT DO NOTHING;
            SELECT h.last_id INTO prev FROM tramline_head h WHERE h.topic = topic_id AND h.key = event_key FOR UPDATE;
        END IF;
    END IF;
    stored_at := coalesce(at_time, tramline_now());
    new_chunk := nextval('tramline_chunk_number');
    due_time := coalesce(stored_at + after_ms, greatest(due, stored_at));
    INSERT INTO tramline_chunk (chunk, topic, emitted_at, count, bytes, meta, prevs, body)
    VALUES (new_chunk, topic_id, stored_at, events, weight, chunk_meta,
        CASE WHEN event_key IS NOT NULL THEN ARRAY[prev] END, chunk_body);
    INSERT INTO tramline_slice (chunk, subscription, state, lane, rank, pos, mask, due_at, bytes)
    SELECT new_chunk, s.subscription, 0, s.lane, s.rank, CASE WHEN s.lane = 0 THEN due_time ELSE new_chunk END,
        s.mask, due_time, weight
    FROM unnest(slice_subscriptions, slice_lanes, slice_ranks, slice_masks) AS s(subscription, lane, rank, mask);
    IF event_key IS NOT NULL THEN
        UPDATE tramline_head h SET last_id = new_chunk * 64, state = coalesce(event_state, h.state)
        WHERE h.topic = topic_id AND h.key = event_key;
    END IF;
END $$;

-- The same in a transaction of its own, and then the hint for whoever waits: it is on its way before the emitter is answered. In a second
-- transaction, because one that notifies has a lock that all of them share, and must not have it while its commit waits for the disk.
CREATE PROCEDURE tramline_emit_and_tell(
    plan_version bigint, at_time bigint, wait_ms bigint, topic_id bigint, event_key text, event_state bytea,
    events int, weight int, chunk_meta text, chunk_body bytea, after_ms bigint, due bigint,
    slice_subscriptions bigint[], slice_lanes bigint[], slice_ranks bigint[], slice_masks bigint[], channel text, hint text,
    mark text, INOUT stored_at bigint, INOUT new_chunk bigint, INOUT prev bigint
) LANGUAGE plpgsql AS $$
DECLARE
    marked text;
BEGIN
    SELECT e.stored_at, e.new_chunk, e.prev INTO stored_at, new_chunk, prev
    FROM tramline_emit_chunk(plan_version, at_time, wait_ms, topic_id, event_key, event_state, events, weight, chunk_meta,
        chunk_body, after_ms, due, slice_subscriptions, slice_lanes, slice_ranks, slice_masks) e;
    -- If the telling is ended, the connection still knows whose event is stored. Undone with the event.
    marked := set_config('tramline.stored', mark || ':' || new_chunk, false);
    COMMIT;
    -- A queue without room would turn what is stored into an error.
    IF new_chunk IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM set_config('synchronous_commit', 'off', true), pg_notify(channel, hint);
    END IF;
END $$;

-- Whether a pattern means a text: the same as model::pattern. * is one segment, a final ** all that follow, or none.
CREATE FUNCTION tramline_matches(pattern text, name text) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT pattern = '**' OR name ~ ('^' || replace(replace(regexp_replace(pattern, '/[*][*]$', ''), '.', '[.]'), '*', '[^/]*')
    || CASE WHEN right(pattern, 3) = '/**' THEN '(/.*)?$' ELSE '$' END) $$;

-- Whether the filter of a subscription lets an event pass: the same as model::filter. A payload that is not JSON has no fields;
-- nor has one with a zero character in it, which jsonb cannot hold.
CREATE FUNCTION tramline_passes(
    filter jsonb, topic text, type text, key text, headers jsonb, payload bytea, content_type text
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    condition jsonb;
    field text;
    found jsonb;
    body jsonb;
    step text;
BEGIN
    FOR condition IN SELECT c.value FROM jsonb_array_elements(coalesce(filter, '[]')) c LOOP
        field := condition ->> 'field';
        IF field LIKE 'payload.%' AND body IS NULL AND content_type = 'application/json' THEN
            BEGIN
                body := convert_from(payload, 'UTF8')::jsonb;
            EXCEPTION WHEN data_exception THEN
                RETURN false;
            END;
        END IF;
        found := CASE
            WHEN field = 'topic' THEN to_jsonb(topic)
            WHEN field = 'type' THEN to_jsonb(type)
            WHEN field = 'key' THEN to_jsonb(key)
            WHEN field LIKE 'header.%' THEN headers -> substr(field, 8)
            ELSE body END;
        IF field LIKE 'payload.%' THEN
            -- Step by step: #> would count negative numbers from the end.
            FOREACH step IN ARRAY string_to_array(substr(field, 9), '.') LOOP
                found := CASE
                    WHEN jsonb_typeof(found) = 'object' THEN found -> step
                    WHEN jsonb_typeof(found) = 'array' AND step ~ '^[+]?[0-9]{1,9}$' THEN found -> step::int END;
            END LOOP;
        END IF;
        IF NOT coalesce(found = condition -> 'equals', false)
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(condition -> 'in') v WHERE v.value = found)
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(condition -> 'prefix') p
                WHERE jsonb_typeof(found) = 'string' AND starts_with(found #>> '{}', p.value))
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements_text(condition -> 'matches') p
                WHERE jsonb_typeof(found) = 'string' AND tramline_matches(p.value, found #>> '{}'))
        THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- A number, lowest byte first.
CREATE FUNCTION tramline_little(number bigint) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT string_agg(substr(int8send(number), 9 - n, 1), '' ORDER BY n) FROM generate_series(1, 8) n $$;

-- A field of tramline_event_hash: its length and itself.
CREATE FUNCTION tramline_field(bytes bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS
$$ SELECT tramline_little(octet_length(bytes)) || bytes $$;

-- What an event is, so that another one under the same idempotency key is noticed: the same as store::idempotency, so that an emit can be
-- repeated by either.
CREATE FUNCTION tramline_event_hash(
    topic text, type text, key text, content_type text, payload bytea, state bytea, headers jsonb, delay bigint, due bigint, priority int
) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT sha256(
        tramline_field(convert_to(topic, 'UTF8')) || tramline_field(convert_to(type, 'UTF8'))
        || tramline_field(set_byte(set_byte(set_byte('\x00000000', 0, (key IS NOT NULL)::int), 1, (state IS NOT NULL)::int), 2, priority))
        || tramline_field(convert_to(coalesce(key, ''), 'UTF8')) || tramline_field(convert_to(content_type, 'UTF8'))
        || tramline_field(payload) || tramline_field(coalesce(state, ''))
        || tramline_field(CASE WHEN due IS NULL THEN tramline_little(delay) ELSE convert_to('at ' || due, 'UTF8') END)
        || tramline_field(tramline_little(count(h.name))) || coalesce(string_agg(
            tramline_field(convert_to(h.name, 'UTF8')) || tramline_field(convert_to(h.value, 'UTF8')), '' ORDER BY h.name COLLATE "C"), ''))
    FROM jsonb_each_text(coalesce(headers, '{}')) AS h(name, value) WHERE h.name NOT IN ('traceparent', 'tracestate')
$$;

-- Emits one event from any language, in the caller's own transaction, and gives its id. Everything that an emit does is
-- done: the key is locked until the transaction ends, the event names its predecessor, and it is in all subscriptions of
-- its topic or nowhere. An idempotency key that is known gives the id of the first event, and stores nothing. Workers are woken when the
-- transaction commits; PostgreSQL commits transactions that notify one
-- after the other, so where many thousand emits per second are wanted, emit through the library or over HTTP.
CREATE FUNCTION tramline_emit(
    topic text, payload bytea, type text DEFAULT '', key text DEFAULT NULL,
    content_type text DEFAULT 'application/json', headers jsonb DEFAULT NULL,
    delay_ms bigint DEFAULT 0, priority int DEFAULT 5,
    idempotency_key text DEFAULT NULL, state bytea DEFAULT NULL, due_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    topic_name constant text := topic;
    event_key constant text := key;
    event_priority constant bigint := priority;
    delay constant bigint := greatest(coalesce(delay_ms, 0), 0);
    due constant bigint := floor(extract(epoch FROM due_at) * 1000)::bigint;
    repeated_key constant text := idempotency_key;
    event_state constant bytea := state;
    head_count constant int := (event_key IS NOT NULL)::int;
    named constant text := '^[A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*$';
    size constant int := octet_length(payload);
    weight int;
    meta text;
    topic_id bigint;
    topic_lanes int;
    subscriptions bigint[];
    lanes bigint[];
    stored record;
    event_hash bytea;
    known record;
BEGIN
    IF topic_name IS NULL OR topic_name !~ named OR length(topic_name) > 200 THEN
        RAISE EXCEPTION 'tramline: % is not a valid topic name', quote_nullable(topic_name) USING ERRCODE = '22023',
            HINT = 'use 1 to 200 letters, digits or . _ : - in segments joined by /';
    END IF;
    IF type IS NULL OR (type <> '' AND (type !~ named OR length(type) > 200)) THEN
        RAISE EXCEPTION 'tramline: % is not a valid type', quote_nullable(type) USING ERRCODE = '22023',
            HINT = 'use letters, digits or . _ : - in segments joined by /, or an empty text';
    END IF;
    IF event_key = '' OR octet_length(event_key) > 512 THEN
        RAISE EXCEPTION 'tramline: the key is empty or too long' USING ERRCODE = '22023',
            HINT = 'use 1 to 512 bytes, or NULL for an event without a key';
    END IF;
    IF size IS NULL OR size > 1048576 THEN
        RAISE EXCEPTION 'tramline: the payload is NULL or has more than 1048576 bytes' USING ERRCODE = '22023',
            HINT = 'send less, or store it elsewhere and emit a reference';
    END IF;
    IF event_priority IS NULL OR event_priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'tramline: the priority is out of range' USING ERRCODE = '22023',
            HINT = 'use 0 (first) to 9 (last)';
    END IF;
    IF headers IS NOT NULL AND (jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 16384
        OR EXISTS (SELECT 1 FROM jsonb_each(headers) AS h(name, value) WHERE jsonb_typeof(h.value) <> 'string')) THEN
        RAISE EXCEPTION 'tramline: headers are not an object of short texts' USING ERRCODE = '22023',
            HINT = 'pass something like {"trace": "abc"}';
    END IF;
    IF repeated_key = '' OR octet_length(repeated_key) > 255 THEN
        RAISE EXCEPTION 'tramline: the idempotency key is empty or too long' USING ERRCODE = '22023',
            HINT = 'use 1 to 255 bytes, or NULL for an event that is never repeated';
    END IF;
    IF event_state IS NOT NULL AND (event_key IS NULL OR octet_length(event_state) > 65536) THEN
        RAISE EXCEPTION 'tramline: a state without a key, or with more than 65536 bytes' USING ERRCODE = '22023',
            HINT = 'set the key of the object whose state it is, and keep the state short';
    END IF;
    IF due IS NOT NULL AND delay > 0 THEN
        RAISE EXCEPTION 'tramline: a delay and a due time' USING ERRCODE = '22023', HINT = 'use delay_ms or due_at';
    END IF;

    LOOP
        SELECT t.id, t.lanes INTO topic_id, topic_lanes FROM tramline_topic t WHERE t.name = topic_name;
        IF topic_id IS NULL THEN
            -- First the version, as the library does: of two that create topics, one waits and has nothing yet that the other
            -- could wait for.
            PERFORM m.value FROM tramline_meta m WHERE m.name = 'catalog' FOR UPDATE;
            INSERT INTO tramline_topic (name, lanes, retention_ms, created_at)
            VALUES (topic_name, 32, 86400000, tramline_now()) ON CONFLICT DO NOTHING;
            IF FOUND THEN
                UPDATE tramline_meta m SET value = m.value + 1 WHERE m.name = 'catalog';
            END IF;
            CONTINUE;
        END IF;
        PERFORM tramline_lock_topics(ARRAY[topic_id]);
        -- It may have been deleted before it was locked. Then nobody would ever find what is written for it.
        EXIT WHEN EXISTS (SELECT FROM tramline_topic t WHERE t.id = topic_id);
    END LOOP;

    -- After the topic and before the head, as the library does.
    IF repeated_key IS NOT NULL THEN
        event_hash := tramline_event_hash(topic_name, type, event_key, coalesce(nullif(content_type, ''), 'application/json'), payload,
            event_state, headers, delay, due, priority);
        INSERT INTO tramline_idempotency AS i (topic, key, hash, receipt, expires_at)
        VALUES (topic_id, repeated_key, event_hash, '', tramline_now() + 86400000)
        ON CONFLICT (topic, key) DO UPDATE SET hash = excluded.hash, receipt = '', expires_at = excluded.expires_at
        WHERE i.expires_at <= tramline_now();
        IF NOT FOUND THEN
            SELECT i.hash, i.receipt INTO known FROM tramline_idempotency i WHERE i.topic = topic_id AND i.key = repeated_key;
            IF known.hash <> event_hash THEN
                RAISE EXCEPTION 'tramline: the idempotency key % was used for another event', quote_literal(repeated_key)
                    USING ERRCODE = '23505', HINT = 'use a new key for a new event';
            END IF;
            RETURN (known.receipt::jsonb -> 0 ->> 0)::bigint;
        END IF;
    END IF;

    -- Read after the topic is locked: from here on, no subscription is added.
    SELECT coalesce(array_agg(s.id), '{}'), coalesce(array_agg(CASE s.policy::jsonb ->> 'ordering'
        WHEN 'key' THEN topic_id * 4096
            + coalesce(tramline_hash(event_key), floor(random() * topic_lanes)::bigint) % topic_lanes
        WHEN 'subscriber' THEN 1
        ELSE 0 END), '{}')
    INTO subscriptions, lanes
    FROM tramline_subscription_topic st JOIN tramline_subscription s ON s.id = st.subscription
    WHERE st.topic = topic_id
    AND NOT coalesce(s.policy::jsonb -> 'draining' @> to_jsonb(topic_name), false)
    AND tramline_passes(s.policy::jsonb -> 'filter', topic_name, type, event_key, headers, payload, content_type);

    meta := json_build_array(json_build_array(type, event_key,
        CASE WHEN content_type = 'application/json' THEN '' ELSE coalesce(content_type, '') END,
        CASE WHEN headers = '{}' THEN NULL ELSE headers END, size,
        CASE WHEN delay > 0 OR coalesce(due, 0) <> 0 OR event_priority <> 5
            THEN json_build_array(delay, coalesce(due, 0), event_priority) END))::text;
    weight := size + octet_length(type) + coalesce(octet_length(event_key), 0)
        + coalesce(octet_length(headers::text), 0) + 40;
    SELECT * INTO STRICT stored FROM tramline_emit_group(
        NULL, NULL, NULL, ARRAY[topic_id],
        array_fill(topic_id, ARRAY[head_count]), array_fill(event_key, ARRAY[head_count]),
        array_fill(64::bigint, ARRAY[head_count]), array_fill(event_state, ARRAY[head_count]),
        ARRAY[topic_id], ARRAY[1], ARRAY[weight], ARRAY[meta], ARRAY[payload],
        ARRAY[nullif(head_count, 0)], array_fill(-1::bigint, ARRAY[head_count]), ARRAY[NULL::int], '{}',
        array_fill(1, ARRAY[cardinality(subscriptions)]), subscriptions, lanes,
        (SELECT coalesce(array_agg(CASE WHEN l.lane = 0 THEN event_priority ELSE 0 END ORDER BY l.place), '{}')
            FROM unnest(lanes) WITH ORDINALITY AS l(lane, place)),
        array_fill(CASE WHEN due IS NULL THEN delay END, ARRAY[cardinality(subscriptions)]),
        array_fill(due, ARRAY[cardinality(subscriptions)]),
        array_fill(1::bigint, ARRAY[cardinality(subscriptions)]));
    -- In parts, because a notification has less than 8,000 bytes.
    PERFORM pg_notify('tramline_wake', string_agg(s.id::text, ','))
    FROM unnest(subscriptions) WITH ORDINALITY AS s(id, place) GROUP BY s.place / 350;
    IF repeated_key IS NOT NULL THEN
        UPDATE tramline_idempotency i
        SET receipt = format('[[%s,%s]]', stored.chunks[1] * 64, coalesce(stored.heads[1], 0))
        WHERE i.topic = topic_id AND i.key = repeated_key;
    END IF;
    RETURN stored.chunks[1] * 64;
END $$;

-- The same with a JSON payload, and state.
CREATE FUNCTION tramline_emit(
    topic text, payload jsonb, type text DEFAULT '', key text DEFAULT NULL,
    content_type text DEFAULT 'application/json', headers jsonb DEFAULT NULL,
    delay_ms bigint DEFAULT 0, priority int DEFAULT 5,
    idempotency_key text DEFAULT NULL, state jsonb DEFAULT NULL, due_at timestamptz DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS
$$ SELECT tramline_emit(topic, convert_to(payload::text, 'UTF8'), type, key, content_type, headers, delay_ms, priority,
    idempotency_key, convert_to(state::text, 'UTF8'), due_at) $$;
