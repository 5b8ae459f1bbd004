-- Volumes: disks beside a machine's first, and the disks that were kept when their machines were deleted. A row stays,
-- as deleted, for as long as deleted machines do: an inventory that was asked for before must not bring it back.

CREATE TABLE volumes (
    id                  uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name                text NOT NULL,
    -- None of what was found on a node and is nobody's yet: administrators give it to a project, or delete it.
    project_id          uuid REFERENCES projects,
    node_id             uuid NOT NULL REFERENCES nodes,
    size_gib            integer NOT NULL CHECK (size_gib > 0),
    -- The table of moves is svc_actors/controller/volumes/states.py.
    state               text NOT NULL CHECK (state IN ('creating', 'available', 'attaching', 'in_use', 'detaching',
                                                       'growing', 'deleting', 'failed', 'deleted')),
    error               text,
    -- The machine that has it, and which of its disks it is.
    vm_id               uuid REFERENCES vms,
    disk_index          smallint CHECK (disk_index BETWEEN 1 AND 15),
    delete_with_machine boolean NOT NULL DEFAULT false,
    protected           boolean NOT NULL DEFAULT false,
    labels              jsonb NOT NULL DEFAULT '{}',
    -- Of a disk that was kept: its name on the node, and the machine that it was of.
    kept_name           text,
    kept_of             uuid,
    -- As of the machine that has it: kept by a trigger.
    moving_to           uuid REFERENCES nodes,
    moved_from          uuid REFERENCES nodes,
    -- When its node said that it is there.
    made_at             timestamptz,
    -- When its state, place or size was last decided: what a node was asked before that is older.
    changed_at          timestamptz NOT NULL DEFAULT now(),
    created_by          uuid REFERENCES users,
    created_at          timestamptz NOT NULL DEFAULT now(),
    deleted_at          timestamptz,
    CHECK ((vm_id IS NULL) = (disk_index IS NULL)),
    CHECK (state NOT IN ('attaching', 'in_use', 'detaching') OR vm_id IS NOT NULL),
    CHECK (state NOT IN ('available', 'deleting', 'deleted') OR vm_id IS NULL),
    CHECK ((state = 'deleted') = (deleted_at IS NOT NULL))
);
CREATE UNIQUE INDEX volumes_name ON volumes (project_id, name) WHERE deleted_at IS NULL;
CREATE UNIQUE INDEX volumes_place ON volumes (vm_id, disk_index) WHERE vm_id IS NOT NULL;
CREATE UNIQUE INDEX volumes_kept ON volumes (node_id, kept_name) WHERE kept_name IS NOT NULL;
CREATE INDEX volumes_node ON volumes (node_id) WHERE deleted_at IS NULL;
CREATE INDEX volumes_listed ON volumes (created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX volumes_deleted ON volumes (deleted_at) WHERE deleted_at IS NOT NULL;

-- What is promised of a node's disk: every volume but those that are gone, and those that failed before they were made.
CREATE FUNCTION promise_volume_room() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    held boolean := TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL AND NOT (OLD.state = 'failed' AND OLD.made_at IS NULL);
    holds boolean := TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL AND NOT (NEW.state = 'failed' AND NEW.made_at IS NULL);
BEGIN
    IF held AND holds AND (OLD.node_id, OLD.moving_to, OLD.moved_from) IS NOT DISTINCT FROM
                          (NEW.node_id, NEW.moving_to, NEW.moved_from) THEN
        UPDATE node_capacity SET promised_disk_gib = promised_disk_gib + NEW.size_gib - OLD.size_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
        RETURN NULL;
    END IF;
    IF held THEN
        UPDATE node_capacity SET promised_disk_gib = promised_disk_gib - OLD.size_gib
        WHERE node_id IN (OLD.node_id, OLD.moving_to, OLD.moved_from);
    END IF;
    IF holds THEN
        UPDATE node_capacity SET promised_disk_gib = promised_disk_gib + NEW.size_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER volumes_room_taken AFTER INSERT OR DELETE ON volumes FOR EACH ROW
    EXECUTE FUNCTION promise_volume_room();
CREATE TRIGGER volumes_room_changed AFTER UPDATE ON volumes FOR EACH ROW
    WHEN ((OLD.node_id, OLD.moving_to, OLD.moved_from, OLD.size_gib, OLD.deleted_at IS NULL,
           OLD.state = 'failed' AND OLD.made_at IS NULL) IS DISTINCT FROM
          (NEW.node_id, NEW.moving_to, NEW.moved_from, NEW.size_gib, NEW.deleted_at IS NULL,
           NEW.state = 'failed' AND NEW.made_at IS NULL))
    EXECUTE FUNCTION promise_volume_room();

-- Volumes go where their machine goes, in the transaction that says where that is.
CREATE FUNCTION volumes_follow() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE volumes SET node_id = NEW.node_id, moving_to = NEW.moving_to, moved_from = NEW.moved_from, changed_at = now()
    WHERE vm_id = NEW.id;
    RETURN NULL;
END $$;
CREATE TRIGGER vms_take_volumes_along AFTER UPDATE ON vms FOR EACH ROW
    WHEN ((OLD.node_id, OLD.moving_to, OLD.moved_from) IS DISTINCT FROM (NEW.node_id, NEW.moving_to, NEW.moved_from)
          AND NEW.node_id IS NOT NULL)
    EXECUTE FUNCTION volumes_follow();

ALTER TABLE tasks DROP CONSTRAINT tasks_resource_kind_check;
ALTER TABLE tasks ADD CONSTRAINT tasks_resource_kind_check
    CHECK (resource_kind IN ('vm', 'node', 'image', 'volume')) NOT VALID;
-- A volume does one thing at a time. While it is attached its tasks are its machine's.
CREATE UNIQUE INDEX tasks_one_a_volume ON tasks (resource_id)
    WHERE resource_kind = 'volume' AND status IN ('queued', 'running');
