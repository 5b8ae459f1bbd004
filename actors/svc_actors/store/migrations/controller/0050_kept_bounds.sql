-- Bounds that hold for what there is already.

-- The highest rate that a machine had while it was on a node; NULL where it had none for a while. What was counted at that
-- rate stays believed when the rate is lowered. Of stays of before only the rate of now is known.
ALTER TABLE machine_stays ADD COLUMN most_mbps integer;
UPDATE machine_stays SET most_mbps = vms.rate_mbps FROM vms WHERE vms.id = vm_id AND vms.rate_mbps IS NOT NULL;

CREATE OR REPLACE FUNCTION note_first_stays() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO machine_stays (vm_id, node_id, since, most_mbps)
    SELECT id, node_id, created_at, rate_mbps FROM made WHERE node_id IS NOT NULL;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION note_stay() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE machine_stays SET until = now() WHERE vm_id = NEW.id AND until IS NULL;
    IF NEW.node_id IS NOT NULL THEN
        INSERT INTO machine_stays (vm_id, node_id, since, most_mbps) VALUES (NEW.id, NEW.node_id, now(), NEW.rate_mbps)
        ON CONFLICT (vm_id, node_id, since) DO UPDATE SET until = NULL;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION note_rate() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE machine_stays SET most_mbps = CASE WHEN NEW.rate_mbps IS NOT NULL THEN greatest(most_mbps, NEW.rate_mbps) END
    WHERE vm_id = NEW.id AND until IS NULL AND most_mbps IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER vms_stays_rated AFTER UPDATE ON vms FOR EACH ROW
    WHEN (OLD.rate_mbps IS DISTINCT FROM NEW.rate_mbps) EXECUTE FUNCTION note_rate();

-- Whose projects have more machines than the new limit orders on as before: the largest has as many again to go as the
-- limit is. A provider who has set a limit keeps it.
INSERT INTO settings (name, value)
SELECT 'most_machines', to_jsonb(most + 25) FROM (
    SELECT max(has) AS most FROM (
        SELECT count(*) AS has FROM vms WHERE deleted_at IS NULL GROUP BY project_id
    ) projects
) largest WHERE most > 25
ON CONFLICT (name) DO NOTHING;

-- Of a volume that failed since its node no longer has it.
ALTER TABLE volumes ADD COLUMN missing boolean NOT NULL DEFAULT false;
UPDATE volumes SET missing = true WHERE state = 'failed' AND error = 'Its node no longer has it.';
