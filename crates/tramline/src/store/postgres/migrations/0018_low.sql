-- Where the ready slices of a lane begin: none is below this chunk. Ordered claims look from here, see low.rs.
ALTER TABLE tramline_lane ADD COLUMN low bigint NOT NULL DEFAULT 0;
