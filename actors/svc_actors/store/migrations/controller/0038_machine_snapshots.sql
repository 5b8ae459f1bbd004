-- Snapshots of machines, which are inside their disks: a row is there from the order on, and goes with the snapshot, or
-- with the disks that it is in.

CREATE TABLE machine_snapshots (
    id          uuid PRIMARY KEY,
    vm_id       uuid NOT NULL REFERENCES vms ON DELETE CASCADE,
    name        text NOT NULL,
    state       text NOT NULL CHECK (state IN ('taking', 'ready', 'restoring', 'deleting', 'failed')),
    error       text,
    ordered_at  timestamptz NOT NULL DEFAULT now(),
    taken_at    timestamptz,
    frozen      boolean,
    restored_at timestamptz,
    UNIQUE (vm_id, name),
    CHECK ((error IS NOT NULL) = (state = 'failed')),
    CHECK ((frozen IS NULL) = (taken_at IS NULL))
);
