-- Which items are events, and which tallies stand for an item: an item has one thing that ends it. Not unique: what was opened
-- before is left as it is, and who opens a tally for an item is alone in its parent.
ALTER TABLE tramline_tally_extent ADD COLUMN of_events INTEGER NOT NULL DEFAULT 0;
CREATE INDEX tramline_tally_parent ON tramline_tally (parent_tally, parent_item) WHERE parent_tally IS NOT NULL;
