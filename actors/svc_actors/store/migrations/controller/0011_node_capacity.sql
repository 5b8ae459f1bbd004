-- What placement reads of a node: what it has and what is promised of it, in columns, so that one index finds the
-- emptiest node that takes machines. Kept by triggers, in the transaction that changes a node or a machine: nobody can
-- forget it. Placement locks the row of the node it chooses; locks are taken in the order node, machine, node_capacity,
-- pool.

CREATE TABLE node_capacity (
    node_id             uuid PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
    node_name           text NOT NULL,
    location_id         uuid NOT NULL,
    -- Online, managed, not in maintenance, not deleted, and it has said what it has.
    takes_machines      boolean NOT NULL,
    -- What may be promised in all, overcommit included; 0 while the node has not said what it has.
    vcpus               double precision NOT NULL,
    memory_mib          double precision NOT NULL,
    disk_gib            double precision NOT NULL,
    -- The features of pools that its kernel lacks.
    lacks               text[] NOT NULL,
    -- What every machine on the node may use, running or not.
    promised_vcpus      bigint NOT NULL DEFAULT 0,
    promised_memory_mib bigint NOT NULL DEFAULT 0,
    promised_disk_gib   bigint NOT NULL DEFAULT 0,
    -- Of the resource that there is least of.
    free_share          double precision NOT NULL GENERATED ALWAYS AS (
        coalesce(least(1 - promised_vcpus / nullif(vcpus, 0), 1 - promised_memory_mib / nullif(memory_mib, 0),
                       1 - promised_disk_gib / nullif(disk_gib, 0)), 0)
    ) STORED
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX node_capacity_emptiest ON node_capacity (free_share DESC, node_name) WHERE takes_machines;

CREATE FUNCTION note_node_capacity() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    takes boolean := NEW.state = 'online' AND NEW.mode = 'managed' AND NOT NEW.maintenance AND NEW.deleted_at IS NULL
                     AND NEW.capacity IS NOT NULL;
    cpus double precision := coalesce((NEW.capacity->>'cpus')::double precision, 0) * NEW.cpu_overcommit;
    memory double precision := coalesce((NEW.capacity->>'memory_mib')::double precision, 0) * NEW.memory_overcommit;
    disk double precision := coalesce((NEW.capacity->>'disk_gib')::double precision, 0) * NEW.disk_overcommit;
    missing text[] := CASE jsonb_typeof(NEW.facts->'network_lacks')
                      WHEN 'object' THEN ARRAY(SELECT jsonb_object_keys(NEW.facts->'network_lacks')) ELSE '{}' END;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO node_capacity (node_id, node_name, location_id, takes_machines, vcpus, memory_mib, disk_gib, lacks)
        VALUES (NEW.id, NEW.name, NEW.location_id, takes, cpus, memory, disk, missing);
    ELSE
        UPDATE node_capacity SET node_name = NEW.name, location_id = NEW.location_id, takes_machines = takes,
            vcpus = cpus, memory_mib = memory, disk_gib = disk, lacks = missing
        WHERE node_id = NEW.id;
    END IF;
    RETURN NULL;
END $$;

-- What holds room: every machine but those that are gone, and those that failed before they were built.
CREATE FUNCTION promise_room() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    held boolean := TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL AND NOT (OLD.status = 'failed' AND OLD.built_at IS NULL);
    holds boolean := TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL AND NOT (NEW.status = 'failed' AND NEW.built_at IS NULL);
BEGIN
    IF held AND holds AND OLD.node_id = NEW.node_id THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib - OLD.disk_gib
        WHERE node_id = NEW.node_id;
        RETURN NULL;
    END IF;
    IF held THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib - OLD.disk_gib
        WHERE node_id = OLD.node_id;
    END IF;
    IF holds THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib
        WHERE node_id = NEW.node_id;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER nodes_capacity_made AFTER INSERT ON nodes FOR EACH ROW EXECUTE FUNCTION note_node_capacity();
-- Only when something is new: a heartbeat must not wait for a placement that holds the row.
CREATE TRIGGER nodes_capacity_changed AFTER UPDATE ON nodes FOR EACH ROW
    WHEN ((OLD.name, OLD.location_id, OLD.state, OLD.mode, OLD.maintenance, OLD.deleted_at, OLD.cpu_overcommit,
           OLD.memory_overcommit, OLD.disk_overcommit, OLD.capacity IS NULL, OLD.capacity->'cpus',
           OLD.capacity->'memory_mib', OLD.capacity->'disk_gib', OLD.facts->'network_lacks') IS DISTINCT FROM
          (NEW.name, NEW.location_id, NEW.state, NEW.mode, NEW.maintenance, NEW.deleted_at, NEW.cpu_overcommit,
           NEW.memory_overcommit, NEW.disk_overcommit, NEW.capacity IS NULL, NEW.capacity->'cpus',
           NEW.capacity->'memory_mib', NEW.capacity->'disk_gib', NEW.facts->'network_lacks'))
    EXECUTE FUNCTION note_node_capacity();
CREATE TRIGGER vms_room_taken AFTER INSERT OR DELETE ON vms FOR EACH ROW EXECUTE FUNCTION promise_room();
CREATE TRIGGER vms_room_changed AFTER UPDATE ON vms FOR EACH ROW
    WHEN ((OLD.node_id, OLD.vcpus, OLD.memory_mib, OLD.disk_gib, OLD.deleted_at IS NULL,
           OLD.status = 'failed' AND OLD.built_at IS NULL) IS DISTINCT FROM
          (NEW.node_id, NEW.vcpus, NEW.memory_mib, NEW.disk_gib, NEW.deleted_at IS NULL,
           NEW.status = 'failed' AND NEW.built_at IS NULL))
    EXECUTE FUNCTION promise_room();

INSERT INTO node_capacity (node_id, node_name, location_id, takes_machines, vcpus, memory_mib, disk_gib, lacks,
                           promised_vcpus, promised_memory_mib, promised_disk_gib)
    SELECT nodes.id, nodes.name, nodes.location_id,
           state = 'online' AND mode = 'managed' AND NOT maintenance AND deleted_at IS NULL AND capacity IS NOT NULL,
           coalesce((capacity->>'cpus')::double precision, 0) * cpu_overcommit,
           coalesce((capacity->>'memory_mib')::double precision, 0) * memory_overcommit,
           coalesce((capacity->>'disk_gib')::double precision, 0) * disk_overcommit,
           CASE jsonb_typeof(facts->'network_lacks')
               WHEN 'object' THEN ARRAY(SELECT jsonb_object_keys(facts->'network_lacks')) ELSE '{}' END,
           coalesce(promised.vcpus, 0), coalesce(promised.memory_mib, 0), coalesce(promised.disk_gib, 0)
    FROM nodes LEFT JOIN (
        SELECT node_id, sum(vcpus) AS vcpus, sum(memory_mib) AS memory_mib, sum(disk_gib) AS disk_gib
        FROM vms WHERE deleted_at IS NULL AND NOT (status = 'failed' AND built_at IS NULL) GROUP BY node_id
    ) promised ON promised.node_id = nodes.id;
