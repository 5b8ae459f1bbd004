-- A machine's network: what its host shall have, by generation, and what it has said that it has.

ALTER TABLE vms
    -- Grows with every change of what the host shall carry for the machine (svc_actors/controller/network_changes.py).
    ADD COLUMN net_wanted bigint NOT NULL DEFAULT 1,
    -- The generation that the host said it has applied last.
    ADD COLUMN net_applied bigint NOT NULL DEFAULT 0,
    ADD COLUMN net_error text,
    ADD COLUMN net_failed_at timestamptz,
    -- Set while an allowance is exceeded: a cap beside rate_mbps, or no traffic at all.
    ADD COLUMN throttle_mbps integer CHECK (throttle_mbps > 0),
    ADD COLUMN traffic_isolated boolean NOT NULL DEFAULT false;
UPDATE vms SET net_applied = 1 WHERE built_at IS NOT NULL;
CREATE INDEX vms_network_behind ON vms (node_id) WHERE net_applied < net_wanted AND deleted_at IS NULL;
