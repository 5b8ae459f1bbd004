-- What the watch over networks looks for, and what it found: machines whose host is behind, addresses to be released, and
-- what a node was seen to carry.

DROP INDEX vms_network_behind;
CREATE INDEX vms_network_behind ON vms (node_id, id) WHERE net_applied < net_wanted AND deleted_at IS NULL;
CREATE INDEX allocations_releasing ON allocations (vm_id) WHERE state = 'releasing';

ALTER TABLE nodes
    -- The last probe of the node, as `network_drift.Found` has it.
    ADD COLUMN network_probe jsonb,
    ADD COLUMN network_probed_at timestamptz;
