-- Since when no try to fetch the package lists has succeeded.
ALTER TABLE update_looks ADD COLUMN failing_since timestamptz;

UPDATE update_looks SET failing_since = tried_at WHERE error IS NOT NULL;
