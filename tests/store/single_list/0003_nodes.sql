-- Nodes: how they join, what they report, and what was seen on them.

-- The controller's own certificate authority; the private key is sealed.
CREATE TABLE authority (
    singleton   boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    certificate text NOT NULL,
    sealed_key  bytea NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE locations (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE nodes (
    id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name              text NOT NULL,
    location_id       uuid NOT NULL REFERENCES locations,
    -- pending: enrolled, never seen; online and offline: as the gateway sees it. Maintenance is a flag beside it.
    state             text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'online', 'offline')),
    mode              text NOT NULL DEFAULT 'managed' CHECK (mode IN ('observe', 'managed')),
    maintenance       boolean NOT NULL DEFAULT false,
    cpu_overcommit    double precision NOT NULL DEFAULT 4 CHECK (cpu_overcommit > 0),
    memory_overcommit double precision NOT NULL DEFAULT 1 CHECK (memory_overcommit > 0),
    disk_overcommit   double precision NOT NULL DEFAULT 1 CHECK (disk_overcommit > 0),
    host_uuid         uuid NOT NULL,
    boot_id           text,
    facts             jsonb,
    capacity          jsonb,
    preflight         jsonb,
    preflight_at      timestamptz,
    inventory_at      timestamptz,
    connected_at      timestamptz,
    seen_at           timestamptz,
    created_at        timestamptz NOT NULL DEFAULT now(),
    deleted_at        timestamptz
);
CREATE UNIQUE INDEX nodes_name ON nodes (name) WHERE deleted_at IS NULL;
-- One host is one node.
CREATE UNIQUE INDEX nodes_host ON nodes (host_uuid) WHERE deleted_at IS NULL;

-- One live certificate a node, two while a renewal is being proven; deleting the node revokes them.
CREATE TABLE node_certificates (
    serial     text PRIMARY KEY,
    node_id    uuid NOT NULL REFERENCES nodes,
    issued_at  timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);
CREATE INDEX node_certificates_node ON node_certificates (node_id);

CREATE TABLE node_bootstraps (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    token_hash  bytea NOT NULL UNIQUE,
    name        text NOT NULL,
    location_id uuid NOT NULL REFERENCES locations,
    mode        text NOT NULL CHECK (mode IN ('observe', 'managed')),
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    used_at     timestamptz,
    node_id     uuid REFERENCES nodes,
    -- SHA-256 of the key it was used with: the same host may ask again when the answer was lost.
    public_key  bytea,
    CHECK ((used_at IS NULL) = (node_id IS NULL) AND (used_at IS NULL) = (public_key IS NULL))
);

CREATE TABLE node_samples (
    node_id         uuid NOT NULL REFERENCES nodes,
    hour            timestamptz NOT NULL,
    samples         integer NOT NULL,
    load_1m         double precision NOT NULL,
    memory_free_mib double precision NOT NULL,
    disk_free_gib   double precision NOT NULL,
    PRIMARY KEY (node_id, hour)
);

CREATE TABLE observed_domains (
    node_id    uuid NOT NULL REFERENCES nodes,
    uuid       uuid NOT NULL,
    name       text NOT NULL,
    vm_id      uuid,
    state      text NOT NULL,
    vcpus      integer NOT NULL,
    memory_mib integer NOT NULL,
    seen_at    timestamptz NOT NULL,
    PRIMARY KEY (node_id, uuid)
);
