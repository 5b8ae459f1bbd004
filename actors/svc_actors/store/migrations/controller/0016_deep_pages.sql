-- Pages far from both ends of a list, the order by status, and searches, at a hundred thousand machines.

-- Every update of a machine that no index may miss writes to all of its indexes; with its texts' some ninety pieces among them
-- a change of status cost 1.2 ms instead of 0.2. In a table of their own they are written when a name changes.
DROP INDEX vms_pieces;
CREATE TABLE vm_texts (
    vm_id    uuid PRIMARY KEY REFERENCES vms ON DELETE CASCADE,
    name     text NOT NULL,
    hostname text NOT NULL
);
INSERT INTO vm_texts SELECT id, name, hostname FROM vms;
CREATE INDEX vm_texts_pieces ON vm_texts USING gin (text_pieces(ARRAY[name, hostname])) WITH (fastupdate = off);

CREATE FUNCTION keep_vm_texts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO vm_texts (vm_id, name, hostname) VALUES (NEW.id, NEW.name, NEW.hostname)
    ON CONFLICT (vm_id) DO UPDATE SET name = excluded.name, hostname = excluded.hostname;
    RETURN NULL;
END
$$;
CREATE TRIGGER vms_texts AFTER INSERT OR UPDATE OF name, hostname ON vms
    FOR EACH ROW EXECUTE FUNCTION keep_vm_texts();

-- The status that is shown is found without a look at the machine: it depends on the node as well.
DROP INDEX vms_status;
CREATE INDEX vms_status ON vms (status, id) INCLUDE (node_id) WHERE deleted_at IS NULL;

-- What a pool holds outside of its range is counted by state: from the index alone, however many the planner expects.
ALTER TABLE allocations
    DROP CONSTRAINT allocations_pool_id_slot_key,
    ADD UNIQUE (pool_id, slot) INCLUDE (state);

-- Machines and tasks are counted by the day of UTC on which they were made, so that a page in the middle is looked for from the
-- beginning of its day (svc/registry/paging.py).
CREATE FUNCTION utc_day(at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ((at AT TIME ZONE 'UTC')::date - date '2000-01-01')::text
$$;
CREATE FUNCTION utc_day_begins(day text) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (date '2000-01-01' + day::integer)::timestamp AT TIME ZONE 'UTC'
$$;

CREATE VIEW day_numbers AS
    SELECT 'vms by day' AS list, NULL::uuid AS scope, ARRAY[utc_day(created_at)] AS words, count(*) AS number
    FROM vms WHERE deleted_at IS NULL GROUP BY utc_day(created_at)
    UNION ALL
    SELECT 'tasks by day', NULL, ARRAY[utc_day(created_at)], count(*)
    FROM tasks WHERE ended_at IS NOT NULL GROUP BY utc_day(created_at);

CREATE FUNCTION count_vm_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by day', NULL, ARRAY[utc_day(OLD.created_at)], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by day', NULL, ARRAY[utc_day(NEW.created_at)], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER vms_counted_by_day AFTER INSERT OR DELETE ON vms FOR EACH ROW EXECUTE FUNCTION count_vm_day();
CREATE TRIGGER vms_recounted_by_day AFTER UPDATE OF deleted_at, created_at ON vms FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL, OLD.created_at) IS DISTINCT FROM (NEW.deleted_at IS NULL, NEW.created_at))
    EXECUTE FUNCTION count_vm_day();

-- Of tasks those that have ended, as in the other numbers of them.
CREATE FUNCTION count_task_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks by day', NULL, ARRAY[utc_day(OLD.created_at)], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks by day', NULL, ARRAY[utc_day(NEW.created_at)], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_counted_by_day AFTER INSERT OR DELETE ON tasks FOR EACH ROW
    EXECUTE FUNCTION count_task_day();
CREATE TRIGGER tasks_recounted_by_day AFTER UPDATE OF ended_at, created_at ON tasks FOR EACH ROW
    WHEN ((OLD.ended_at IS NULL, OLD.created_at) IS DISTINCT FROM (NEW.ended_at IS NULL, NEW.created_at))
    EXECUTE FUNCTION count_task_day();

INSERT INTO list_counts SELECT list, scope, words, number FROM day_numbers;
