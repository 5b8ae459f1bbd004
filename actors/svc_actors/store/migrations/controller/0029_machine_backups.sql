-- Backups of machines: when a plan asks for them, and the complete copies that there are.

CREATE TABLE plan_backups (
    plan_id  uuid PRIMARY KEY REFERENCES plans ON DELETE CASCADE,
    schedule text NOT NULL CHECK (schedule IN ('daily', 'weekly')),
    hour     smallint NOT NULL CHECK (hour BETWEEN 0 AND 23),
    -- 0 is Sunday.
    weekday  smallint NOT NULL CHECK (weekday BETWEEN 0 AND 6),
    -- Complete copies; 0 keeps every one.
    keep     integer NOT NULL CHECK (keep >= 0 AND keep <> 1),
    -- No run is missed that was due before.
    since    timestamptz NOT NULL
);

-- A row is written when its node has said that the copy is complete. The id is that of the task that made it.
CREATE TABLE machine_backups (
    id           uuid PRIMARY KEY,
    vm_id        uuid NOT NULL REFERENCES vms,
    node_id      uuid NOT NULL REFERENCES nodes,
    begun_at     timestamptz NOT NULL,
    completed_at timestamptz NOT NULL,
    -- Of each disk its index, size_bytes and digest.
    disks        jsonb NOT NULL,
    stored_bytes bigint NOT NULL,
    frozen       boolean NOT NULL,
    removed_at   timestamptz
);
CREATE INDEX machine_backups_kept ON machine_backups (vm_id, completed_at) WHERE removed_at IS NULL;
