-- A machine that moves to another node has a part of it on two. While its task is under way `moving_to` names the node
-- that takes it in, and afterwards, where the move has failed, the one that may still have to remove something. Once it
-- has moved, `moved_from` names the node that has to let go of it. Room is held on every node that a row names.

ALTER TABLE vms
    ADD COLUMN moving_to uuid REFERENCES nodes CHECK (moving_to <> node_id),
    ADD COLUMN moved_from uuid REFERENCES nodes CHECK (moved_from <> node_id);
CREATE INDEX vms_moves ON vms (id) WHERE moving_to IS NOT NULL OR moved_from IS NOT NULL;

-- As in 0011, on all of a machine's nodes. A machine that moves has the rows of its nodes locked already.
CREATE OR REPLACE FUNCTION promise_room() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    held boolean := TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL AND NOT (OLD.status = 'failed' AND OLD.built_at IS NULL);
    holds boolean := TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL AND NOT (NEW.status = 'failed' AND NEW.built_at IS NULL);
BEGIN
    IF held AND holds AND (OLD.node_id, OLD.moving_to, OLD.moved_from)
                          IS NOT DISTINCT FROM (NEW.node_id, NEW.moving_to, NEW.moved_from) THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib - OLD.disk_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
        RETURN NULL;
    END IF;
    IF held THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib - OLD.disk_gib
        WHERE node_id IN (OLD.node_id, OLD.moving_to, OLD.moved_from);
    END IF;
    IF holds THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
    END IF;
    RETURN NULL;
END $$;

DROP TRIGGER vms_room_changed ON vms;
CREATE TRIGGER vms_room_changed AFTER UPDATE ON vms FOR EACH ROW
    WHEN ((OLD.node_id, OLD.moving_to, OLD.moved_from, OLD.vcpus, OLD.memory_mib, OLD.disk_gib, OLD.deleted_at IS NULL,
           OLD.status = 'failed' AND OLD.built_at IS NULL) IS DISTINCT FROM
          (NEW.node_id, NEW.moving_to, NEW.moved_from, NEW.vcpus, NEW.memory_mib, NEW.disk_gib, NEW.deleted_at IS NULL,
           NEW.status = 'failed' AND NEW.built_at IS NULL))
    EXECUTE FUNCTION promise_room();
