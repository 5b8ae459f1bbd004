-- What machines have beneath their system: their firmware, and whether they have a TPM. An image says it of the machines
-- that are made from it; a machine and a copy of it keep what they were made with. A node takes a machine only where its
-- agent has told that it has what that needs.

ALTER TABLE images
    ADD COLUMN firmware text NOT NULL DEFAULT 'bios' CHECK (firmware IN ('bios', 'uefi', 'uefi_secure')),
    ADD COLUMN tpm      text NOT NULL DEFAULT 'none' CHECK (tpm IN ('none', '2.0')),
    ADD CONSTRAINT images_tpm_firmware CHECK (tpm = 'none' OR firmware <> 'bios');
ALTER TABLE vms
    ADD COLUMN firmware text NOT NULL DEFAULT 'bios' CHECK (firmware IN ('bios', 'uefi', 'uefi_secure')),
    ADD COLUMN tpm      text NOT NULL DEFAULT 'none' CHECK (tpm IN ('none', '2.0'));
ALTER TABLE machine_backups
    ADD COLUMN firmware text NOT NULL DEFAULT 'bios' CHECK (firmware IN ('bios', 'uefi', 'uefi_secure')),
    ADD COLUMN tpm      text NOT NULL DEFAULT 'none' CHECK (tpm IN ('none', '2.0'));

ALTER TABLE node_capacity ADD COLUMN platforms text[] NOT NULL DEFAULT '{}';

-- As in 0018, with what machines can have there.
CREATE OR REPLACE FUNCTION note_node_capacity() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    takes boolean := NEW.state = 'online' AND NEW.mode = 'managed' AND NOT NEW.maintenance AND NEW.deleted_at IS NULL
                     AND NEW.capacity IS NOT NULL AND NEW.disk_level <> 'critical';
    cpus double precision := coalesce((NEW.capacity->>'cpus')::double precision, 0) * NEW.cpu_overcommit;
    memory double precision := coalesce((NEW.capacity->>'memory_mib')::double precision, 0) * NEW.memory_overcommit;
    disk double precision := coalesce((NEW.capacity->>'disk_gib')::double precision, 0) * NEW.disk_overcommit;
    missing text[] := CASE jsonb_typeof(NEW.facts->'network_lacks')
                      WHEN 'object' THEN ARRAY(SELECT jsonb_object_keys(NEW.facts->'network_lacks')) ELSE '{}' END;
    offered text[] := CASE jsonb_typeof(NEW.facts->'platform_features')
                      WHEN 'array' THEN ARRAY(SELECT jsonb_array_elements_text(NEW.facts->'platform_features'))
                      ELSE '{}' END;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO node_capacity (node_id, node_name, location_id, takes_machines, vcpus, memory_mib, disk_gib, lacks,
                                   platforms)
        VALUES (NEW.id, NEW.name, NEW.location_id, takes, cpus, memory, disk, missing, offered);
    ELSE
        UPDATE node_capacity SET node_name = NEW.name, location_id = NEW.location_id, takes_machines = takes,
            vcpus = cpus, memory_mib = memory, disk_gib = disk, lacks = missing, platforms = offered
        WHERE node_id = NEW.id;
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER nodes_capacity_changed ON nodes;
CREATE TRIGGER nodes_capacity_changed AFTER UPDATE ON nodes FOR EACH ROW
    WHEN ((OLD.name, OLD.location_id, OLD.state, OLD.mode, OLD.maintenance, OLD.deleted_at, OLD.cpu_overcommit,
           OLD.memory_overcommit, OLD.disk_overcommit, OLD.capacity IS NULL, OLD.capacity->'cpus',
           OLD.capacity->'memory_mib', OLD.capacity->'disk_gib', OLD.facts->'network_lacks',
           OLD.facts->'platform_features', OLD.disk_level) IS DISTINCT FROM
          (NEW.name, NEW.location_id, NEW.state, NEW.mode, NEW.maintenance, NEW.deleted_at, NEW.cpu_overcommit,
           NEW.memory_overcommit, NEW.disk_overcommit, NEW.capacity IS NULL, NEW.capacity->'cpus',
           NEW.capacity->'memory_mib', NEW.capacity->'disk_gib', NEW.facts->'network_lacks',
           NEW.facts->'platform_features', NEW.disk_level))
    EXECUTE FUNCTION note_node_capacity();
