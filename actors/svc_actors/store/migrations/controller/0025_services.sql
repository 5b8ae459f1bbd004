-- What billing systems order: a service is sold once and keeps its row and its id, whatever becomes of its machine.
CREATE TABLE services (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),

    -- Whose service it is in the billing system's own words.
    integration     text NOT NULL,
    external_ref    text NOT NULL,

    state           text NOT NULL CHECK (state IN ('provisioning', 'active', 'provisioning_failed', 'suspended', 'terminated')),
    state_reason    text,
    -- Whether the machine is what the state says it shall be. Few are not: the watch looks at these alone.
    settled         boolean NOT NULL DEFAULT false,
    -- When it was tried last, and to no effect, to make the machine so.
    tried_at        timestamptz,

    customer_id     uuid REFERENCES users ON DELETE SET NULL,
    project_id      uuid NOT NULL REFERENCES projects,
    -- The machine that it has, or had last: deleted machines are removed after their time.
    vm_id           uuid REFERENCES vms ON DELETE SET NULL,
    -- The machine as it was ordered, without any secret: what a retry orders again.
    machine_order   jsonb NOT NULL,
    -- Whose call made it: the owner of the idempotency key, and the key.
    ordered_by      text NOT NULL,

    -- What the suspension in force did, so that its end reverses just that.
    suspend_mode    text CHECK (suspend_mode IN ('power_off', 'network_isolate')),
    suspended_at    timestamptz,
    -- The machine ran when it was switched off, and is to be started again.
    resume          boolean NOT NULL DEFAULT false,

    -- Of the termination.
    destroy_disks   boolean NOT NULL DEFAULT false,
    terminated_at   timestamptz,

    created_at      timestamptz NOT NULL DEFAULT now(),
    changed_at      timestamptz NOT NULL DEFAULT now(),

    UNIQUE (integration, external_ref),
    CHECK ((state = 'suspended') = (suspend_mode IS NOT NULL)),
    CHECK ((state = 'suspended') = (suspended_at IS NOT NULL)),
    CHECK ((state = 'terminated') = (terminated_at IS NOT NULL))
);
CREATE UNIQUE INDEX services_vm ON services (vm_id);
CREATE INDEX services_unsettled ON services (id) WHERE NOT settled;
CREATE INDEX services_customer ON services (customer_id);
CREATE INDEX services_created ON services (created_at, id);

-- What became of a service, for the billing system; the audit has who asked for it.
CREATE TABLE service_events (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service_id      uuid NOT NULL REFERENCES services,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind            text NOT NULL,
    state           text NOT NULL,
    actor           text NOT NULL,
    message         text NOT NULL
);
CREATE INDEX service_events_service ON service_events (service_id, id DESC);

-- Single sign-on: links that sign a browser in as the customer of a service. A row is there until it is used or too old.
CREATE TABLE service_sign_in_links (
    token_hash      bytea PRIMARY KEY,
    service_id      uuid NOT NULL REFERENCES services,
    made_by         text NOT NULL,
    expires_at      timestamptz NOT NULL
);
