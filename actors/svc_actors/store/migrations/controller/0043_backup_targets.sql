-- Targets of machines' backups that every node reaches, and who uses which.

CREATE TABLE machine_backup_targets (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name          text NOT NULL UNIQUE,
    settings      jsonb NOT NULL,
    sealed_secret bytea NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now()
);

-- Of a node, of the nodes of a location, or of all others; without a target it is what is mounted on the node.
CREATE TABLE machine_backup_target_uses (
    node_id     uuid REFERENCES nodes,
    location_id uuid REFERENCES locations,
    target_id   uuid REFERENCES machine_backup_targets,
    CHECK (node_id IS NULL OR location_id IS NULL),
    UNIQUE NULLS NOT DISTINCT (node_id, location_id)
);

-- Where the copy is; NULL: what is mounted on the node.
ALTER TABLE machine_backups ADD COLUMN target_id uuid REFERENCES machine_backup_targets ON DELETE SET NULL;
CREATE INDEX machine_backups_at_target ON machine_backups (target_id) WHERE target_id IS NOT NULL;

ALTER TABLE machine_backup_stores
    ADD COLUMN target_id uuid REFERENCES machine_backup_targets ON DELETE CASCADE,
    DROP CONSTRAINT machine_backup_stores_pkey,
    ADD UNIQUE NULLS NOT DISTINCT (vm_id, node_id, target_id);
