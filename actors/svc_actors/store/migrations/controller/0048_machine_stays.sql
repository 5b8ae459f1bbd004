-- Which node a machine was on, and when: what a node says of a machine (its traffic, its disks) counts for the time in
-- which it had it. Written by triggers, so that no way of placing or moving a machine forgets it; a deleted machine's
-- last stay stays open, since `vms.deleted_at` says its end.

CREATE TABLE machine_stays (
    vm_id   uuid NOT NULL REFERENCES vms ON DELETE CASCADE,
    node_id uuid NOT NULL REFERENCES nodes,
    since   timestamptz NOT NULL,
    until   timestamptz,
    PRIMARY KEY (vm_id, node_id, since)
);

CREATE FUNCTION note_first_stays() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO machine_stays (vm_id, node_id, since)
    SELECT id, node_id, created_at FROM made WHERE node_id IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER vms_stays_begun AFTER INSERT ON vms REFERENCING NEW TABLE AS made FOR EACH STATEMENT
    EXECUTE FUNCTION note_first_stays();

CREATE FUNCTION note_stay() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE machine_stays SET until = now() WHERE vm_id = NEW.id AND until IS NULL;
    IF NEW.node_id IS NOT NULL THEN
        INSERT INTO machine_stays (vm_id, node_id, since) VALUES (NEW.id, NEW.node_id, now())
        ON CONFLICT (vm_id, node_id, since) DO UPDATE SET until = NULL;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER vms_stays_changed AFTER UPDATE ON vms FOR EACH ROW
    WHEN (OLD.node_id IS DISTINCT FROM NEW.node_id) EXECUTE FUNCTION note_stay();

-- What was before: where machines are, and of where they were what their traffic says.
INSERT INTO machine_stays (vm_id, node_id, since) SELECT id, node_id, created_at FROM vms WHERE node_id IS NOT NULL;
INSERT INTO machine_stays (vm_id, node_id, since, until)
SELECT vm_id, node_id, min(since), max(until) FROM (
    SELECT vm_id, node_id, first_at AS since, last_at AS until FROM traffic_readings
    UNION ALL SELECT id, moved_from, created_at, now() FROM vms WHERE moved_from IS NOT NULL
) was WHERE NOT EXISTS (SELECT FROM vms WHERE id = was.vm_id AND node_id = was.node_id)
        AND EXISTS (SELECT FROM vms WHERE id = was.vm_id)
GROUP BY vm_id, node_id;
