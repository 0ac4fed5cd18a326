-- The secrets of tokens that an admin may list, encrypted; NULL: only the hash is kept.
ALTER TABLE tramline_token ADD COLUMN sealed TEXT;
