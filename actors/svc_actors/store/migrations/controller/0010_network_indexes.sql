-- What is read of one card or one network costs the same however many machines there are.

CREATE INDEX allocations_nic ON allocations (nic_id) WHERE nic_id IS NOT NULL;
CREATE INDEX nics_network ON nics (network_id);
