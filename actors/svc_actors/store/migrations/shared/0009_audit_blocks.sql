-- Audit entries are counted by blocks of 16,384 numbers, so that a page far from both ends of the list is looked for from the
-- beginning of its block (svc/registry/paging.py). Their sum is the number of all, as before.

CREATE OR REPLACE VIEW audit_numbers AS
    SELECT 'audit' AS list, NULL::uuid AS scope, ARRAY[(id >> 14)::text] AS words, count(*) AS number
    FROM audit GROUP BY id >> 14;

CREATE OR REPLACE FUNCTION count_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_changes
        SELECT 'audit', NULL, ARRAY[(id >> 14)::text], CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
        FROM changed GROUP BY id >> 14;
    RETURN NULL;
END
$$;

DELETE FROM list_changes WHERE list = 'audit';
DELETE FROM list_counts WHERE list = 'audit';
INSERT INTO list_counts SELECT list, scope, words, number FROM audit_numbers;
