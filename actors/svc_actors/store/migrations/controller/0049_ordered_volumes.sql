-- What of a volume its project has ordered, and its limits count. None of it where only its node says that it is there;
-- and a node that calls an ordered one larger uses up nobody's limit.

ALTER TABLE volumes ADD COLUMN ordered_gib integer CHECK (ordered_gib > 0);
UPDATE volumes SET ordered_gib = size_gib WHERE NOT (name LIKE 'found-%' AND created_by IS NULL);
