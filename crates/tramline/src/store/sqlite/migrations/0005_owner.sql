-- Who is in charge of a topic; NULL: nobody has said.
ALTER TABLE tramline_topic ADD COLUMN owner TEXT;
