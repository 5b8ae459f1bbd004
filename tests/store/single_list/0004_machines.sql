-- Machines and what they are made of: plans, images, networks, addresses; and the tasks that change them.

CREATE TABLE plans (
    id                    uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name                  text NOT NULL,
    slug                  text NOT NULL UNIQUE,
    vcpus                 integer NOT NULL CHECK (vcpus > 0),
    memory_mib            integer NOT NULL CHECK (memory_mib >= 64),
    disk_gib              integer NOT NULL CHECK (disk_gib > 0),
    ipv4_count            integer NOT NULL DEFAULT 1 CHECK (ipv4_count >= 0),
    enabled               boolean NOT NULL DEFAULT true,
    created_at            timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE images (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    slug             text NOT NULL UNIQUE,
    name             text NOT NULL,
    os_family        text NOT NULL CHECK (os_family IN ('linux', 'windows')),
    distribution     text NOT NULL,
    release          text NOT NULL,
    login_user       text NOT NULL,
    format           text NOT NULL CHECK (format IN ('qcow2', 'raw')),
    -- url: read by the node from the publisher; file: kept by the controller under its data folder.
    source           text NOT NULL CHECK (source IN ('url', 'file')),
    url              text,
    checksum_url     text,
    digest_algorithm text NOT NULL DEFAULT 'sha256' CHECK (digest_algorithm IN ('sha256', 'sha512')),
    digest           text,
    size_bytes       bigint,
    min_disk_gib     integer NOT NULL DEFAULT 1,
    min_memory_mib   integer NOT NULL DEFAULT 64,
    custom           boolean NOT NULL,
    enabled          boolean NOT NULL DEFAULT true,
    refreshed_at     timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    CHECK ((source = 'url') = (url IS NOT NULL))
);

CREATE TABLE node_images (
    node_id    uuid NOT NULL REFERENCES nodes,
    image_id   uuid NOT NULL REFERENCES images,
    digest     text NOT NULL,
    size_bytes bigint NOT NULL,
    pulled_at  timestamptz NOT NULL,
    PRIMARY KEY (node_id, image_id)
);

CREATE TABLE networks (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL UNIQUE,
    "default"  boolean NOT NULL DEFAULT false,
    mtu        integer NOT NULL DEFAULT 1500 CHECK (mtu BETWEEN 576 AND 9216),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX networks_one_default ON networks ("default") WHERE "default";

CREATE TABLE pools (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    network_id       uuid NOT NULL REFERENCES networks,
    location_id      uuid NOT NULL REFERENCES locations,
    name             text NOT NULL,
    family           smallint NOT NULL CHECK (family IN (4, 6)),
    cidr             cidr NOT NULL,
    range_start      inet NOT NULL,
    range_end        inet NOT NULL,
    gateway          inet NOT NULL,
    gateway_mode     text NOT NULL DEFAULT 'onlink' CHECK (gateway_mode IN ('onlink', 'subnet')),
    guest_prefix_len smallint NOT NULL,
    topology         text NOT NULL CHECK (topology IN ('nat', 'bridged', 'routed')),
    nameservers      inet[] NOT NULL DEFAULT '{}',
    node_ids         uuid[] NOT NULL DEFAULT '{}',
    enabled          boolean NOT NULL DEFAULT true,
    -- Where the search for a free address begins: past the one given last, so that a freed address rests.
    next_ip          inet,
    created_at       timestamptz NOT NULL DEFAULT now(),
    CHECK (family(cidr) = family),
    CHECK (range_start <<= cidr AND range_end <<= cidr AND range_start <= range_end),
    EXCLUDE USING gist (cidr inet_ops WITH &&)
);

CREATE TABLE vms (
    id             uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name           text NOT NULL,
    hostname       text NOT NULL,
    project_id     uuid NOT NULL REFERENCES projects,
    node_id        uuid REFERENCES nodes,
    plan_id        uuid REFERENCES plans,
    image_id       uuid NOT NULL REFERENCES images,
    vcpus          integer NOT NULL CHECK (vcpus > 0),
    memory_mib     integer NOT NULL CHECK (memory_mib >= 64),
    disk_gib       integer NOT NULL CHECK (disk_gib > 0),
    -- The table of moves is svc_actors/controller/machine_states.py.
    status         text NOT NULL,
    status_reason  text,
    observed_state text,
    observed_at    timestamptz,
    access_mode    text NOT NULL CHECK (access_mode IN ('root_password', 'root_key', 'user_sudo')),
    ssh_keys       text[] NOT NULL DEFAULT '{}',
    -- SHA-512 crypt of the chosen password, sealed, only until the first boot was prepared.
    sealed_seed    bytea,
    -- When the host said that the machine was made; a machine that failed without it never was.
    built_at       timestamptz,
    rate_mbps      integer,
    -- The creator's key, as long as it counts: what finds the machine when its answer was lost in a crash.
    idempotency_owner text,
    idempotency_key   text,
    created_by     uuid REFERENCES users,
    created_at     timestamptz NOT NULL DEFAULT now(),
    deleted_at     timestamptz
);
CREATE UNIQUE INDEX vms_idempotency ON vms (idempotency_owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX vms_name ON vms (project_id, name) WHERE deleted_at IS NULL;
CREATE INDEX vms_node ON vms (node_id) WHERE deleted_at IS NULL;
CREATE INDEX vms_listed ON vms (created_at DESC NULLS LAST, id DESC) WHERE deleted_at IS NULL;

CREATE TABLE nics (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    vm_id      uuid NOT NULL REFERENCES vms,
    network_id uuid NOT NULL REFERENCES networks,
    position   smallint NOT NULL,
    mac        macaddr NOT NULL UNIQUE,
    UNIQUE (vm_id, position)
);

-- Free is the absence of a row. One holder of an address is this table's primary key.
CREATE TABLE allocations (
    pool_id    uuid NOT NULL REFERENCES pools,
    ip         inet NOT NULL,
    state      text NOT NULL CHECK (state IN ('allocated', 'releasing', 'reserved', 'blocked')),
    vm_id      uuid REFERENCES vms,
    nic_id     uuid REFERENCES nics,
    is_primary boolean NOT NULL DEFAULT false,
    arithmetic boolean NOT NULL DEFAULT false,
    note       text,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pool_id, ip),
    CHECK ((state IN ('allocated', 'releasing')) = (vm_id IS NOT NULL))
);
CREATE INDEX allocations_vm ON allocations (vm_id) WHERE vm_id IS NOT NULL;

CREATE TABLE tasks (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    op               text NOT NULL,
    status           text NOT NULL DEFAULT 'queued'
                     CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    resource_kind    text NOT NULL CHECK (resource_kind IN ('vm', 'node', 'image')),
    resource_id      uuid NOT NULL,
    resource_name    text NOT NULL,
    node_id          uuid REFERENCES nodes,
    project_id       uuid REFERENCES projects,
    -- What the task needs to go on after a restart; never a secret.
    parameters       jsonb NOT NULL DEFAULT '{}',
    caller           jsonb NOT NULL,
    progress         smallint NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 100),
    message          text NOT NULL DEFAULT '',
    error_code       text,
    error_message    text,
    cancel_requested boolean NOT NULL DEFAULT false,
    last_position    bigint NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL DEFAULT now(),
    started_at       timestamptz,
    ended_at         timestamptz,
    deadline_at      timestamptz NOT NULL,
    CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
);
CREATE INDEX tasks_resource ON tasks (resource_id, created_at DESC);
CREATE INDEX tasks_node ON tasks (node_id, created_at DESC);
CREATE INDEX tasks_open ON tasks (resource_kind, resource_id) WHERE status IN ('queued', 'running');
-- A machine does one thing at a time.
CREATE UNIQUE INDEX tasks_one_a_machine ON tasks (resource_id)
    WHERE resource_kind = 'vm' AND status IN ('queued', 'running');
CREATE INDEX tasks_listed ON tasks (created_at DESC NULLS LAST, id DESC);

-- Positions of one task are contiguous: taken from tasks.last_position under its row lock.
CREATE TABLE task_events (
    task_id  uuid NOT NULL REFERENCES tasks,
    position bigint NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    level    text NOT NULL DEFAULT 'info' CHECK (level IN ('info', 'warning', 'error')),
    progress smallint,
    message  text NOT NULL,
    PRIMARY KEY (task_id, position)
);

CREATE TABLE alerts (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- What the alert is about: an open alert with the same key is raised once.
    key             text NOT NULL,
    severity        text NOT NULL CHECK (severity IN ('warning', 'critical')),
    message         text NOT NULL,
    resource_kind   text,
    resource_id     text,
    opened_at       timestamptz NOT NULL DEFAULT now(),
    acknowledged_at timestamptz,
    acknowledged_by uuid REFERENCES users,
    closed_at       timestamptz
);
CREATE UNIQUE INDEX alerts_open ON alerts (key) WHERE closed_at IS NULL;
