-- A lane is found from its newest epoch back: so versions of its row that nobody can clear away are not met. See NEWEST in rows.rs.
-- A constraint may not name a schema, so its name is hidden from whoever writes one before every name.
DO $$ BEGIN EXECUTE 'ALTER TABLE tramline_lane DROP CONSTRAINT tram' || 'line_lane_pkey'; END $$;
ALTER TABLE tramline_lane ADD PRIMARY KEY (subscription, lane, epoch);
