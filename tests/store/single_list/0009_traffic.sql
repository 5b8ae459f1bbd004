-- Traffic: what hosts counted, what plans allow, and what was decided when a machine went past it.

-- What a plan allows from a month on: the policy of a month is the row with the latest effective_from not after it. So a
-- change that is to start next month needs nobody to carry it out, and a past month keeps the policy that it had.
CREATE TABLE plan_traffic (
    plan_id        uuid NOT NULL REFERENCES plans ON DELETE CASCADE,
    effective_from text COLLATE "C" NOT NULL CHECK (effective_from ~ '^\d{4}-(0[1-9]|1[0-2])$'),
    -- NULL: no limit.
    allowance_gib  integer CHECK (allowance_gib > 0),
    direction      text NOT NULL CHECK (direction IN ('outbound', 'both')),
    action         text NOT NULL CHECK (action IN ('report', 'throttle', 'suspend')),
    throttle_mbps  integer CHECK (throttle_mbps > 0),
    PRIMARY KEY (plan_id, effective_from),
    CHECK (action <> 'throttle' OR throttle_mbps IS NOT NULL)
);

-- Bytes of one machine in one month as one ledger of one node has counted them. No figure ever goes back: a reading that is
-- repeated, or overtaken by a later one, changes nothing. The month's figure is the sum over ledgers.
CREATE TABLE traffic_readings (
    vm_id     uuid NOT NULL REFERENCES vms,
    period    text COLLATE "C" NOT NULL CHECK (period ~ '^\d{4}-(0[1-9]|1[0-2])$'),
    node_id   uuid NOT NULL REFERENCES nodes,
    ledger_id uuid NOT NULL,
    received  bigint NOT NULL CHECK (received >= 0),
    sent      bigint NOT NULL CHECK (sent >= 0),
    resets    bigint NOT NULL CHECK (resets >= 0),
    samples   bigint NOT NULL CHECK (samples >= 0),
    first_at  timestamptz NOT NULL,
    last_at   timestamptz NOT NULL,
    PRIMARY KEY (vm_id, period, node_id, ledger_id)
);
CREATE INDEX traffic_readings_period ON traffic_readings (period);

-- What was decided, newest last. At most one decision of a machine stands: what is done about it now.
CREATE TABLE traffic_decisions (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    vm_id           uuid NOT NULL REFERENCES vms,
    period          text COLLATE "C" NOT NULL,
    action          text NOT NULL CHECK (action IN ('report', 'throttle', 'suspend', 'lift')),
    throttle_mbps   integer CHECK (throttle_mbps > 0),
    at              timestamptz NOT NULL,
    counted_bytes   bigint NOT NULL,
    allowance_bytes bigint,
    reason          text NOT NULL,
    standing        boolean NOT NULL,
    CHECK ((action = 'throttle') = (throttle_mbps IS NOT NULL)),
    CHECK (NOT (standing AND action = 'lift'))
);
CREATE UNIQUE INDEX traffic_decisions_standing ON traffic_decisions (vm_id) WHERE standing;
CREATE INDEX traffic_decisions_vm ON traffic_decisions (vm_id, id DESC);
