-- Filters know patterns and the topic.

-- Whether a pattern means a text: the same as model::pattern. * is one segment, a final ** all that follow, or none.
CREATE FUNCTION tramline_matches(pattern text, name text) RETURNS boolean LANGUAGE sql IMMUTABLE AS
$$ SELECT pattern = '**' OR name ~ ('^' || replace(replace(regexp_replace(pattern, '/[*][*]$', ''), '.', '[.]'), '*', '[^/]*')
    || CASE WHEN right(pattern, 3) = '/**' THEN '(/.*)?$' ELSE '$' END) $$;

-- Whether the filter of a subscription lets an event pass: the same as model::filter. A payload that is not JSON has no fields;
-- nor has one with a zero character in it, which jsonb cannot hold.
DROP FUNCTION tramline_passes(jsonb, text, text, jsonb, bytea, text);
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

-- As it was, but filters are told the topic.
CREATE OR REPLACE FUNCTION tramline_emit(
    topic text, payload bytea, type text DEFAULT '', key text DEFAULT NULL,
    content_type text DEFAULT 'application/json', headers jsonb DEFAULT NULL,
    delay_ms bigint DEFAULT 0, priority int DEFAULT 5
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
        CASE WHEN delay > 0 OR event_priority <> 5 THEN json_build_array(delay, 0, event_priority) END))::text;
    weight := size + octet_length(type) + coalesce(octet_length(event_key), 0)
        + coalesce(octet_length(headers::text), 0) + 40;
    SELECT * INTO STRICT stored FROM tramline_emit_group(
        NULL, NULL, NULL, ARRAY[topic_id],
        array_fill(topic_id, ARRAY[head_count]), array_fill(event_key, ARRAY[head_count]),
        array_fill(64::bigint, ARRAY[head_count]), array_fill(NULL::bytea, ARRAY[head_count]),
        ARRAY[topic_id], ARRAY[1], ARRAY[weight], ARRAY[meta], ARRAY[payload],
        ARRAY[nullif(head_count, 0)], array_fill(-1::bigint, ARRAY[head_count]), ARRAY[NULL::int], '{}',
        array_fill(1, ARRAY[cardinality(subscriptions)]), subscriptions, lanes,
        (SELECT coalesce(array_agg(CASE WHEN l.lane = 0 THEN event_priority ELSE 0 END ORDER BY l.place), '{}')
            FROM unnest(lanes) WITH ORDINALITY AS l(lane, place)),
        array_fill(delay, ARRAY[cardinality(subscriptions)]),
        array_fill(NULL::bigint, ARRAY[cardinality(subscriptions)]),
        array_fill(1::bigint, ARRAY[cardinality(subscriptions)]));
    -- In parts, because a notification has less than 8,000 bytes.
    PERFORM pg_notify('tramline_wake', string_agg(s.id::text, ','))
    FROM unnest(subscriptions) WITH ORDINALITY AS s(id, place) GROUP BY s.place / 350;
    RETURN stored.chunks[1] * 64;
END $$;
