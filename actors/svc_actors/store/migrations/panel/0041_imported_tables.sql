-- Of the databases that came with a site, by their names on the other host and by table: how many rows the dump had, how
-- many were here when it was read in, and what was in them (a checksum).
ALTER TABLE import_sites ADD COLUMN tables jsonb NOT NULL DEFAULT '{}';
