-- A controller that was restored from a backup: what its hosts have that the records do not, and the other way round
-- (docs/backup.md).

CREATE TABLE restorations (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- When the backup was taken, and by which release.
    taken_at    timestamptz NOT NULL,
    release     text NOT NULL,
    restored_at timestamptz NOT NULL DEFAULT now()
);

ALTER TABLE vms
    -- Since a restore: its host has not yet shown that it has the machine with just the recorded addresses. Nothing is
    -- done about it by itself meanwhile.
    ADD COLUMN unconfirmed boolean NOT NULL DEFAULT false;
CREATE INDEX vms_unconfirmed ON vms (node_id) WHERE unconfirmed AND deleted_at IS NULL;

ALTER TABLE nodes
    -- Since a restore: the node has not yet said which addresses its host carries. Its pools give out none meanwhile.
    ADD COLUMN unheard boolean NOT NULL DEFAULT false;
CREATE INDEX nodes_unheard ON nodes (location_id) WHERE unheard AND deleted_at IS NULL;

-- What a host carries for a machine that has no record, or whose record does not have it.
CREATE TABLE carried_addresses (
    node_id uuid NOT NULL REFERENCES nodes,
    vm_id   uuid NOT NULL,
    ip      inet NOT NULL,
    PRIMARY KEY (node_id, vm_id, ip)
);
CREATE INDEX carried_addresses_ip ON carried_addresses (ip);

-- Blocked because a host carries it: by itself, and set free by itself.
ALTER TABLE allocations ADD COLUMN carried boolean NOT NULL DEFAULT false CHECK (NOT carried OR state = 'blocked');
