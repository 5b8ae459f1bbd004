-- The tables of the controller, as of release 0.1.0. Stands for the migrations 0001 to 0037 (svc_actors/store/migrate.py).

------------------------------------------------------------------------------------------------------------------------
-- Projects, which own machines, and the keys that people put onto them

CREATE TABLE projects (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX projects_name ON projects (name);
CREATE INDEX projects_pieces ON projects USING gin (text_pieces(ARRAY[name])) WITH (fastupdate = off);
CREATE INDEX projects_created ON projects (created_at, id);

CREATE TABLE project_members (
    project_id uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_members_user ON project_members (user_id);

CREATE TABLE ssh_keys (
    id          uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    name        text NOT NULL,
    public_key  text NOT NULL,
    fingerprint text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (user_id, fingerprint)
);

------------------------------------------------------------------------------------------------------------------------
-- Nodes: how they join, what they report, and what was seen on them

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
    -- pending: enrolled, never seen; online and offline: as the gateway sees it. Maintenance is a flag of its own.
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
    deleted_at        timestamptz,

    -- The last probe of the node, as `NetworkDrift` writes it (svc_actors/controller/networking/drift.py).
    network_probe     jsonb,
    network_probed_at timestamptz,

    -- How full the disk is that holds images and machines. Machines' disks are thin, so what is promised of it says nothing
    -- of what is left: a node whose disk is as good as full takes no new machines, whatever it could promise.
    disk_level        text NOT NULL DEFAULT 'ok' CHECK (disk_level IN ('ok', 'warning', 'critical')),

    -- Its agent, as the last connection said; why the node cannot be online, if that is known; what the agent runs from.
    agent_version     text,
    agent_protocol    integer,
    state_reason      text,
    agent_release     text,

    -- Since a restore: the node has not yet said which addresses its host carries. Its pools give out none meanwhile.
    unheard           boolean NOT NULL DEFAULT false,
    -- When an administrator said that the node will not come back. Its state stays `offline`: what its host does is not
    -- known.
    lost_at           timestamptz
);
CREATE UNIQUE INDEX nodes_name ON nodes (name) WHERE deleted_at IS NULL;
-- One host is one node.
CREATE UNIQUE INDEX nodes_host ON nodes (host_uuid) WHERE deleted_at IS NULL;
CREATE INDEX nodes_unheard ON nodes (location_id) WHERE unheard AND deleted_at IS NULL;

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

------------------------------------------------------------------------------------------------------------------------
-- Plans and images

CREATE TABLE plans (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL,
    slug       text NOT NULL UNIQUE,
    vcpus      integer NOT NULL CHECK (vcpus > 0),
    memory_mib integer NOT NULL CHECK (memory_mib >= 64),
    disk_gib   integer NOT NULL CHECK (disk_gib > 0),
    ipv4_count integer NOT NULL DEFAULT 1 CHECK (ipv4_count >= 0),
    enabled    boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now()
);

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

-- When a plan asks for backups of its machines.
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

------------------------------------------------------------------------------------------------------------------------
-- Networks and pools of addresses

CREATE TABLE networks (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text NOT NULL UNIQUE,
    "default"  boolean NOT NULL DEFAULT false,
    mtu        integer NOT NULL DEFAULT 1500 CHECK (mtu BETWEEN 576 AND 9216),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX networks_one_default ON networks ("default") WHERE "default";

-- Pools of both families, counted in slots: the place of an address in its pool, which is an IPv4 address's distance from
-- the first, or an IPv6 sub-prefix's number.
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
    created_at       timestamptz NOT NULL DEFAULT now(),
    vlan             smallint CHECK (vlan BETWEEN 1 AND 4094),
    -- What one machine receives: an address of IPv4, a sub-prefix of IPv6.
    prefix_len       smallint NOT NULL,
    first_slot       bigint NOT NULL,
    last_slot        bigint NOT NULL,
    -- Where the search for a free slot begins: past the one given last, so that a freed address rests.
    next_slot        bigint NOT NULL,
    CHECK (family(cidr) = family),
    CHECK (range_start <<= cidr AND range_end <<= cidr AND range_start <= range_end),
    CHECK (0 <= first_slot AND first_slot <= last_slot),
    CHECK (family = 6 OR prefix_len = 32),
    CHECK (prefix_len - masklen(cidr) BETWEEN 0 AND 62),
    CHECK (vlan IS NULL OR topology = 'bridged'),
    CHECK (family = 4 OR topology <> 'nat'),
    EXCLUDE USING gist (cidr inet_ops WITH &&)
);
CREATE UNIQUE INDEX pools_name ON pools (network_id, name);

-- What is held at a slot; IPv6 with the sub-prefix's length. The offset is built bit by bit: it may exceed a bigint.
CREATE FUNCTION pool_address(pool cidr, prefix_len integer, slot bigint) RETURNS inet
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE family(pool)
        WHEN 4 THEN set_masklen(pool::inet, 32) + slot
        ELSE set_masklen(set_masklen(pool::inet, 128) | (
            SELECT string_agg(to_hex(substring(bits FROM 16 * part + 1 FOR 16)::bit(16)::integer), ':' ORDER BY part)
            FROM (SELECT (repeat('0', 64)::bit(64) || slot::bit(64)) << (128 - prefix_len) AS bits) shifted,
                 generate_series(0, 7) part
        )::inet, prefix_len)
    END
$$;

-- As it stands on the wire and in the API: 192.0.2.5, 2001:db8:0:5::/64. In PL/pgSQL for the same reason as text_words.
CREATE FUNCTION address_text(address inet) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF family(address) = 4 THEN
        RETURN host(address);
    END IF;
    RETURN host(address) || '/' || masklen(address);
END
$$;

-- Why addresses are set aside: by an operator, or (arithmetic) by what the pool and its hosts are.
CREATE TABLE reservations (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    pool_id    uuid NOT NULL REFERENCES pools,
    first_slot bigint NOT NULL,
    last_slot  bigint NOT NULL,
    kind       text NOT NULL,
    note       text NOT NULL,
    arithmetic boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK (first_slot <= last_slot)
);
CREATE INDEX reservations_pool ON reservations (pool_id, first_slot);

------------------------------------------------------------------------------------------------------------------------
-- Machines

-- Room on each page for the next version of its rows: a change that touches no index is then written to none. A machine is
-- observed and its network applied soon after it was made; a task's log grows by its row as well.
CREATE TABLE vms (
    id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name              text NOT NULL,
    hostname          text NOT NULL,
    project_id        uuid NOT NULL REFERENCES projects,
    node_id           uuid REFERENCES nodes,
    plan_id           uuid REFERENCES plans,
    image_id          uuid NOT NULL REFERENCES images,
    vcpus             integer NOT NULL CHECK (vcpus > 0),
    memory_mib        integer NOT NULL CHECK (memory_mib >= 64),
    disk_gib          integer NOT NULL CHECK (disk_gib > 0),
    -- The table of moves is svc_actors/controller/machines/states.py.
    status            text NOT NULL,
    status_reason     text,
    observed_state    text,
    observed_at       timestamptz,
    access_mode       text NOT NULL CHECK (access_mode IN ('root_password', 'root_key', 'user_sudo')),
    ssh_keys          text[] NOT NULL DEFAULT '{}',
    -- SHA-512 crypt of the chosen password, sealed, only until the first boot was prepared.
    sealed_seed       bytea,
    -- When the host said that the machine was made; a machine that failed without it never was.
    built_at          timestamptz,
    rate_mbps         integer,
    -- The creator's key, as long as it counts: what finds the machine when its answer was lost in a crash.
    idempotency_owner text,
    idempotency_key   text,
    created_by        uuid REFERENCES users,
    created_at        timestamptz NOT NULL DEFAULT now(),
    deleted_at        timestamptz,

    -- Its network. net_wanted grows with every change of what the host must carry for the machine
    -- (svc_actors/controller/networking/changes.py); net_applied is the generation that the host said it has applied last.
    net_wanted        bigint NOT NULL DEFAULT 1,
    net_applied       bigint NOT NULL DEFAULT 0,
    net_error         text,
    net_failed_at     timestamptz,
    -- Set while an allowance is exceeded: a cap in addition to rate_mbps, or no traffic at all.
    throttle_mbps     integer CHECK (throttle_mbps > 0),
    traffic_isolated  boolean NOT NULL DEFAULT false,

    -- Whether it is to run, next to what its host says that it does (docs/power.md).
    desired_power     text NOT NULL DEFAULT 'stopped' CHECK (desired_power IN ('running', 'stopped')),
    restart_policy    text NOT NULL DEFAULT 'on_failure' CHECK (restart_policy IN ('always', 'on_failure', 'never')),
    -- Failures in a row, of the guest and of attempts to start it again.
    restart_failures  integer NOT NULL DEFAULT 0,
    -- Not started again by itself before then; infinity: not before somebody orders it.
    restart_after     timestamptz,
    -- Since when it runs, if it does.
    running_since     timestamptz,
    -- Why it is off or paused, if its host knew.
    observed_cause    text,

    -- Since a restore: its host has not yet shown that it has the machine with just the recorded addresses. Nothing is
    -- done about it by itself meanwhile.
    unconfirmed       boolean NOT NULL DEFAULT false,

    -- What its owner sorts it by: {"env": "production"}. The service does not use it.
    labels            jsonb NOT NULL DEFAULT '{}',
    -- Whether it is kept from being deleted or reinstalled.
    protected         boolean NOT NULL DEFAULT false,

    -- The processor that its guest was started with, and the one that waits in its definition for the next start.
    cpu_mode          text NOT NULL DEFAULT 'default',
    cpu_next_mode     text,

    -- When its last complete backup was started, less the machine's own seconds within the hour of its plan: a time before
    -- the last hour of the plan is overdue, and all of these are neighbours in the index.
    backed_up         timestamptz NOT NULL DEFAULT '-infinity',
    -- Until when the copies of a deleted machine are kept: they exist, and are to be removed at their target after it.
    copies_until      timestamptz,

    -- A machine that moves to another node has a part of it on two. While its task is under way `moving_to` names the node
    -- that takes it in, and after a failed move the one that may still have to remove something. Once it has moved,
    -- `moved_from` names the node that has to let go of it. Room is held on every node that a row names.
    moving_to         uuid REFERENCES nodes CHECK (moving_to <> node_id),
    moved_from        uuid REFERENCES nodes CHECK (moved_from <> node_id)
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX vms_idempotency ON vms (idempotency_owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- A machine whose creation failed, which can only be deleted, holds its name no longer.
CREATE UNIQUE INDEX vms_name ON vms (project_id, name)
    WHERE deleted_at IS NULL AND (built_at IS NOT NULL OR status = 'creating');

-- Lists of machines, tasks and addresses cost the same however many there are: an index for every order and filter that is
-- offered, and numbers that are kept instead of counted (list_counts).
CREATE INDEX vms_created ON vms (created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_named ON vms (name, id) WHERE deleted_at IS NULL;
-- The shown status is found without the machine's row: it depends on the node as well.
CREATE INDEX vms_status ON vms (status, id) INCLUDE (node_id) WHERE deleted_at IS NULL;
CREATE INDEX vms_vcpus ON vms (vcpus, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_memory ON vms (memory_mib, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_project ON vms (project_id, created_at, id) WHERE deleted_at IS NULL;
CREATE INDEX vms_node ON vms (node_id) WHERE deleted_at IS NULL;
CREATE INDEX vms_plan ON vms (plan_id) WHERE deleted_at IS NULL;
-- Most machines have no labels, and cost nothing here.
CREATE INDEX vms_labels ON vms USING gin (labels) WHERE deleted_at IS NULL AND labels <> '{}';

-- What the service's loops look for.
CREATE INDEX vms_network_behind ON vms (node_id, id) WHERE net_applied < net_wanted AND deleted_at IS NULL;
-- Machines that are not as they are to be: few, except after a power cut.
CREATE INDEX vms_awaiting_power ON vms (node_id, created_at) WHERE deleted_at IS NULL AND built_at IS NOT NULL
    AND (desired_power = 'running' AND status = 'stopped' OR status = 'failed');
CREATE INDEX vms_with_failures ON vms (id) WHERE deleted_at IS NULL AND restart_failures > 0;
CREATE INDEX vms_unconfirmed ON vms (node_id) WHERE unconfirmed AND deleted_at IS NULL;
CREATE INDEX vms_backed_up ON vms (plan_id, backed_up) WHERE deleted_at IS NULL AND built_at IS NOT NULL;
CREATE INDEX vms_copies_until ON vms (copies_until, id) WHERE copies_until IS NOT NULL;
CREATE INDEX vms_moves ON vms (id) WHERE moving_to IS NOT NULL OR moved_from IS NOT NULL;
CREATE INDEX vms_deleted ON vms (deleted_at) WHERE deleted_at IS NOT NULL;

-- Every update of a machine that touches an index writes to all of its indexes; with some ninety pieces of its texts among
-- them a change of status cost 1.2 ms instead of 0.2. In a table of their own they are written when a name changes.
CREATE TABLE vm_texts (
    vm_id    uuid PRIMARY KEY REFERENCES vms ON DELETE CASCADE,
    name     text NOT NULL,
    hostname text NOT NULL
);
CREATE INDEX vm_texts_pieces ON vm_texts USING gin (text_pieces(ARRAY[name, hostname])) WITH (fastupdate = off);

CREATE FUNCTION keep_vm_texts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO vm_texts (vm_id, name, hostname) VALUES (NEW.id, NEW.name, NEW.hostname)
    ON CONFLICT (vm_id) DO UPDATE SET name = excluded.name, hostname = excluded.hostname;
    RETURN NULL;
END
$$;
CREATE TRIGGER vms_texts AFTER INSERT OR UPDATE OF name, hostname ON vms
    FOR EACH ROW EXECUTE FUNCTION keep_vm_texts();

-- A Windows machine's first boot, and the password of its administrator's account. A row exists from the order of the
-- system on, and a reinstallation makes it anew. No password is in it: a chosen one is in the memory of the service until
-- the first boot has ended, and one that a machine has set for itself stays in the machine.
CREATE TABLE windows_setups (
    vm_id               uuid PRIMARY KEY REFERENCES vms ON DELETE CASCADE,
    ordered_at          timestamptz NOT NULL DEFAULT now(),
    password_ordered    boolean NOT NULL,
    booted_at           timestamptz,
    password_set_at     timestamptz,
    password_error      text,
    credential_taken_at timestamptz,
    CHECK (booted_at IS NOT NULL OR (password_set_at IS NULL AND password_error IS NULL AND credential_taken_at IS NULL)),
    CHECK (password_set_at IS NULL OR password_error IS NULL)
);
CREATE INDEX windows_setups_awaited ON windows_setups (vm_id) WHERE booted_at IS NULL;

-- Console tickets: only the SHA-256 of one is stored. Redeeming deletes the row, so a ticket is used once; the end of the
-- session or the token it was issued to takes its tickets along.
CREATE TABLE console_tickets (
    ticket_hash bytea PRIMARY KEY,
    vm_id       uuid NOT NULL REFERENCES vms ON DELETE CASCADE,
    kind        text NOT NULL CHECK (kind IN ('vnc', 'serial')),
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    session_id  uuid REFERENCES sessions ON DELETE CASCADE,
    token_id    uuid REFERENCES api_tokens ON DELETE CASCADE,
    expires_at  timestamptz NOT NULL,
    CHECK ((session_id IS NULL) <> (token_id IS NULL))
);
CREATE INDEX console_tickets_expiry ON console_tickets (expires_at);

------------------------------------------------------------------------------------------------------------------------
-- Addresses of machines

CREATE TABLE nics (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    vm_id      uuid NOT NULL REFERENCES vms,
    network_id uuid NOT NULL REFERENCES networks,
    position   smallint NOT NULL,
    mac        macaddr NOT NULL UNIQUE,
    UNIQUE (vm_id, position)
);
CREATE INDEX nics_network ON nics (network_id);

-- Distinguishes each release of an address from an earlier one, so that a late answer frees nothing.
CREATE SEQUENCE releases;

-- Free is the absence of a row. One holder of an address is this table's primary key.
CREATE TABLE allocations (
    pool_id        uuid NOT NULL REFERENCES pools,
    ip             inet NOT NULL,
    state          text NOT NULL CHECK (state IN ('allocated', 'releasing', 'reserved', 'blocked')),
    vm_id          uuid REFERENCES vms,
    nic_id         uuid REFERENCES nics,
    is_primary     boolean NOT NULL DEFAULT false,
    note           text,
    changed_at     timestamptz NOT NULL DEFAULT now(),
    slot           bigint NOT NULL,
    reservation_id uuid REFERENCES reservations ON DELETE CASCADE,
    release_id     bigint,
    -- Blocked because a host carries it: by itself, and set free by itself.
    carried        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pool_id, ip),
    -- With the state, since what a pool holds outside of its range is counted by it: from the index alone, however many
    -- the planner expects.
    UNIQUE (pool_id, slot) INCLUDE (state),
    CHECK ((state IN ('allocated', 'releasing')) = (vm_id IS NOT NULL)),
    CHECK ((state = 'reserved') = (reservation_id IS NOT NULL)),
    CHECK ((state = 'releasing') = (release_id IS NOT NULL)),
    CHECK (NOT carried OR state = 'blocked')
);
CREATE UNIQUE INDEX allocations_one_primary ON allocations (vm_id) WHERE is_primary AND state = 'allocated';
CREATE INDEX allocations_vm ON allocations (vm_id) WHERE vm_id IS NOT NULL;
CREATE INDEX allocations_nic ON allocations (nic_id) WHERE nic_id IS NOT NULL;
CREATE INDEX allocations_reservation ON allocations (reservation_id) WHERE reservation_id IS NOT NULL;
CREATE INDEX allocations_releasing ON allocations (vm_id) WHERE state = 'releasing';
-- An address is searched by its first characters.
CREATE INDEX allocations_text ON allocations (address_text(ip) text_pattern_ops);
CREATE INDEX allocations_ip ON allocations (ip);
CREATE INDEX allocations_state ON allocations (pool_id, state, ip);
CREATE INDEX allocations_changed ON allocations (pool_id, changed_at, ip);
CREATE INDEX allocations_noted ON allocations (pool_id) WHERE note IS NOT NULL;

-- What a host carries for a machine that has no record, or whose record does not have it.
CREATE TABLE carried_addresses (
    node_id uuid NOT NULL REFERENCES nodes,
    vm_id   uuid NOT NULL,
    ip      inet NOT NULL,
    PRIMARY KEY (node_id, vm_id, ip)
);
CREATE INDEX carried_addresses_ip ON carried_addresses (ip);

------------------------------------------------------------------------------------------------------------------------
-- Security groups: what traffic of a machine is let through, beyond the rules against spoofing that every machine has

CREATE TABLE security_groups (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- NULL: the provider's own, for machines of every project.
    project_id      uuid REFERENCES projects,
    name            text NOT NULL,
    description     text NOT NULL DEFAULT '',
    default_ingress text NOT NULL DEFAULT 'drop' CHECK (default_ingress IN ('accept', 'drop')),
    default_egress  text NOT NULL DEFAULT 'accept' CHECK (default_egress IN ('accept', 'drop')),
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT security_groups_name UNIQUE NULLS NOT DISTINCT (project_id, name)
);

-- NULL means both families, every port, any address, every ICMP type.
CREATE TABLE security_group_rules (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    group_id   uuid NOT NULL REFERENCES security_groups ON DELETE CASCADE,
    direction  text NOT NULL CHECK (direction IN ('ingress', 'egress')),
    action     text NOT NULL CHECK (action IN ('accept', 'drop')),
    protocol   text NOT NULL CHECK (protocol IN ('any', 'tcp', 'udp', 'icmp')),
    family     smallint CHECK (family IN (4, 6)),
    port_from  integer CHECK (port_from BETWEEN 0 AND 65535),
    port_to    integer CHECK (port_to BETWEEN 0 AND 65535),
    cidr       cidr,
    icmp_type  smallint CHECK (icmp_type BETWEEN 0 AND 255),
    note       text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT security_group_rules_once UNIQUE NULLS NOT DISTINCT
        (group_id, direction, action, protocol, family, port_from, port_to, cidr, icmp_type),
    CHECK ((port_from IS NULL) = (port_to IS NULL) AND port_from <= port_to),
    CHECK (port_from IS NULL OR protocol IN ('tcp', 'udp')),
    CHECK (icmp_type IS NULL OR (protocol = 'icmp' AND family IS NOT NULL)),
    CHECK (cidr IS NULL OR family(cidr) = family)
);

-- Which groups a machine is in. A group that a machine is in is not deleted: this reference keeps it.
CREATE TABLE security_group_machines (
    vm_id    uuid NOT NULL REFERENCES vms,
    group_id uuid NOT NULL REFERENCES security_groups,
    PRIMARY KEY (vm_id, group_id)
);
CREATE INDEX security_group_machines_group ON security_group_machines (group_id);

------------------------------------------------------------------------------------------------------------------------
-- Room on nodes: what placement reads

-- What a node has and what is promised of it, in columns, so that one index finds the emptiest node that takes machines.
-- Kept by triggers, in the transaction that changes a node or a machine: no code can forget it. Placement locks the row of
-- the node it chooses; locks are taken in the order node, machine, node_capacity, pool.
CREATE TABLE node_capacity (
    node_id             uuid PRIMARY KEY REFERENCES nodes ON DELETE CASCADE,
    node_name           text NOT NULL,
    location_id         uuid NOT NULL,
    -- Online, managed, not in maintenance, not deleted, its disk not critical, and it has said what it has.
    takes_machines      boolean NOT NULL,
    -- What may be promised in all, overcommit included; 0 while the node has not said what it has.
    vcpus               double precision NOT NULL,
    memory_mib          double precision NOT NULL,
    disk_gib            double precision NOT NULL,
    -- The features of pools that its kernel lacks.
    lacks               text[] NOT NULL,
    -- What every machine on the node may use, running or not.
    promised_vcpus      bigint NOT NULL DEFAULT 0,
    promised_memory_mib bigint NOT NULL DEFAULT 0,
    promised_disk_gib   bigint NOT NULL DEFAULT 0,
    -- Of the scarcest resource.
    free_share          double precision NOT NULL GENERATED ALWAYS AS (
        coalesce(least(1 - promised_vcpus / nullif(vcpus, 0), 1 - promised_memory_mib / nullif(memory_mib, 0),
                       1 - promised_disk_gib / nullif(disk_gib, 0)), 0)
    ) STORED
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX node_capacity_emptiest ON node_capacity (free_share DESC, node_name) WHERE takes_machines;

CREATE FUNCTION note_node_capacity() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    takes boolean := NEW.state = 'online' AND NEW.mode = 'managed' AND NOT NEW.maintenance AND NEW.deleted_at IS NULL
                     AND NEW.capacity IS NOT NULL AND NEW.disk_level <> 'critical';
    cpus double precision := coalesce((NEW.capacity->>'cpus')::double precision, 0) * NEW.cpu_overcommit;
    memory double precision := coalesce((NEW.capacity->>'memory_mib')::double precision, 0) * NEW.memory_overcommit;
    disk double precision := coalesce((NEW.capacity->>'disk_gib')::double precision, 0) * NEW.disk_overcommit;
    missing text[] := CASE jsonb_typeof(NEW.facts->'network_lacks')
                      WHEN 'object' THEN ARRAY(SELECT jsonb_object_keys(NEW.facts->'network_lacks')) ELSE '{}' END;
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO node_capacity (node_id, node_name, location_id, takes_machines, vcpus, memory_mib, disk_gib, lacks)
        VALUES (NEW.id, NEW.name, NEW.location_id, takes, cpus, memory, disk, missing);
    ELSE
        UPDATE node_capacity SET node_name = NEW.name, location_id = NEW.location_id, takes_machines = takes,
            vcpus = cpus, memory_mib = memory, disk_gib = disk, lacks = missing
        WHERE node_id = NEW.id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER nodes_capacity_made AFTER INSERT ON nodes FOR EACH ROW EXECUTE FUNCTION note_node_capacity();
-- Only when something is new: a heartbeat must not wait for a placement that holds the row.
CREATE TRIGGER nodes_capacity_changed AFTER UPDATE ON nodes FOR EACH ROW
    WHEN ((OLD.name, OLD.location_id, OLD.state, OLD.mode, OLD.maintenance, OLD.deleted_at, OLD.cpu_overcommit,
           OLD.memory_overcommit, OLD.disk_overcommit, OLD.capacity IS NULL, OLD.capacity->'cpus',
           OLD.capacity->'memory_mib', OLD.capacity->'disk_gib', OLD.facts->'network_lacks', OLD.disk_level) IS DISTINCT FROM
          (NEW.name, NEW.location_id, NEW.state, NEW.mode, NEW.maintenance, NEW.deleted_at, NEW.cpu_overcommit,
           NEW.memory_overcommit, NEW.disk_overcommit, NEW.capacity IS NULL, NEW.capacity->'cpus',
           NEW.capacity->'memory_mib', NEW.capacity->'disk_gib', NEW.facts->'network_lacks', NEW.disk_level))
    EXECUTE FUNCTION note_node_capacity();

-- What holds room, on all of a machine's nodes: every machine but those that are gone, and those that failed before they
-- were built. A machine that moves has the rows of its nodes locked already.
CREATE FUNCTION promise_room() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    held boolean := TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL AND NOT (OLD.status = 'failed' AND OLD.built_at IS NULL);
    holds boolean := TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL AND NOT (NEW.status = 'failed' AND NEW.built_at IS NULL);
BEGIN
    IF held AND holds AND (OLD.node_id, OLD.moving_to, OLD.moved_from)
                          IS NOT DISTINCT FROM (NEW.node_id, NEW.moving_to, NEW.moved_from) THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib - OLD.disk_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
        RETURN NULL;
    END IF;
    IF held THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus - OLD.vcpus,
            promised_memory_mib = promised_memory_mib - OLD.memory_mib,
            promised_disk_gib = promised_disk_gib - OLD.disk_gib
        WHERE node_id IN (OLD.node_id, OLD.moving_to, OLD.moved_from);
    END IF;
    IF holds THEN
        UPDATE node_capacity SET
            promised_vcpus = promised_vcpus + NEW.vcpus,
            promised_memory_mib = promised_memory_mib + NEW.memory_mib,
            promised_disk_gib = promised_disk_gib + NEW.disk_gib
        WHERE node_id IN (NEW.node_id, NEW.moving_to, NEW.moved_from);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER vms_room_changed AFTER UPDATE ON vms FOR EACH ROW
    WHEN ((OLD.node_id, OLD.moving_to, OLD.moved_from, OLD.vcpus, OLD.memory_mib, OLD.disk_gib, OLD.deleted_at IS NULL,
           OLD.status = 'failed' AND OLD.built_at IS NULL) IS DISTINCT FROM
          (NEW.node_id, NEW.moving_to, NEW.moved_from, NEW.vcpus, NEW.memory_mib, NEW.disk_gib, NEW.deleted_at IS NULL,
           NEW.status = 'failed' AND NEW.built_at IS NULL))
    EXECUTE FUNCTION promise_room();
-- What is gone already held no room, and its removal costs nothing.
CREATE TRIGGER vms_room_left AFTER DELETE ON vms FOR EACH ROW WHEN (OLD.deleted_at IS NULL)
    EXECUTE FUNCTION promise_room();

-- Machines that one statement inserts take their room in one update a node, not in one each: a hundred thousand rows would
-- leave as many dead versions of a thousand rows behind, every one of which the next update passes.
CREATE FUNCTION promise_room_to_new() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE node_capacity SET
        promised_vcpus = promised_vcpus + wanted.vcpus,
        promised_memory_mib = promised_memory_mib + wanted.memory_mib,
        promised_disk_gib = promised_disk_gib + wanted.disk_gib
    FROM (SELECT made.node_id, sum(made.vcpus) AS vcpus, sum(made.memory_mib) AS memory_mib, sum(made.disk_gib) AS disk_gib
          FROM made WHERE made.deleted_at IS NULL AND NOT (made.status = 'failed' AND made.built_at IS NULL)
          GROUP BY made.node_id) wanted
    WHERE node_capacity.node_id = wanted.node_id;
    RETURN NULL;
END $$;
CREATE TRIGGER vms_room_taken AFTER INSERT ON vms REFERENCING NEW TABLE AS made FOR EACH STATEMENT
    EXECUTE FUNCTION promise_room_to_new();

------------------------------------------------------------------------------------------------------------------------
-- Tasks, which change machines, nodes and images

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
    -- The request that it was made for, by which logs are searched, and the span (W3C traceparent) under which its own
    -- spans go, also when another process takes it up again.
    request_id       text,
    traceparent      text,
    CHECK ((status IN ('succeeded', 'failed', 'cancelled')) = (ended_at IS NOT NULL))
) WITH (fillfactor = 70);
-- A machine does one thing at a time.
CREATE UNIQUE INDEX tasks_one_a_machine ON tasks (resource_id)
    WHERE resource_kind = 'vm' AND status IN ('queued', 'running');
CREATE INDEX tasks_open ON tasks (resource_kind, resource_id) WHERE status IN ('queued', 'running');
CREATE INDEX tasks_resource ON tasks (resource_id, created_at DESC);
CREATE INDEX tasks_node ON tasks (node_id, created_at DESC);
CREATE INDEX tasks_created ON tasks (created_at, id);
CREATE INDEX tasks_ended ON tasks (ended_at, id);
CREATE INDEX tasks_status ON tasks (status, created_at, id);
CREATE INDEX tasks_op ON tasks (op, created_at, id);
CREATE INDEX tasks_kind ON tasks (resource_kind, created_at, id);
CREATE INDEX tasks_project ON tasks (project_id, created_at, id);
CREATE INDEX tasks_words ON tasks USING gin (text_words(ARRAY[resource_name, op])) WITH (fastupdate = off);
-- The last upgrade of each node's agent.
CREATE INDEX tasks_upgrades ON tasks (node_id, created_at DESC) WHERE op = 'node.upgrade';

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

------------------------------------------------------------------------------------------------------------------------
-- Numbers of machines, tasks and addresses (list_counts)

CREATE VIEW vm_numbers AS
    SELECT 'vms by node' AS list, node_id AS scope, ARRAY[status] AS words, count(*) AS number
    FROM vms WHERE deleted_at IS NULL GROUP BY node_id, status
    UNION ALL
    SELECT 'vms by project', project_id, ARRAY[status], count(*)
    FROM vms WHERE deleted_at IS NULL GROUP BY project_id, status;

CREATE FUNCTION count_vm() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by node', OLD.node_id, ARRAY[OLD.status], -1),
                                        ('vms by project', OLD.project_id, ARRAY[OLD.status], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by node', NEW.node_id, ARRAY[NEW.status], 1),
                                        ('vms by project', NEW.project_id, ARRAY[NEW.status], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER vms_counted AFTER INSERT OR DELETE ON vms FOR EACH ROW EXECUTE FUNCTION count_vm();
CREATE TRIGGER vms_recounted AFTER UPDATE OF status, node_id, project_id, deleted_at ON vms FOR EACH ROW
    WHEN ((OLD.status, OLD.node_id, OLD.project_id, OLD.deleted_at)
          IS DISTINCT FROM (NEW.status, NEW.node_id, NEW.project_id, NEW.deleted_at))
    EXECUTE FUNCTION count_vm();

-- Of tasks only those that have ended are counted: each once, instead of at each of its moves. The open ones are few and
-- have an index of their own.
CREATE VIEW task_numbers AS
    SELECT 'tasks' AS list, NULL::uuid AS scope, ARRAY[status, op, resource_kind] AS words, count(*) AS number
    FROM tasks WHERE ended_at IS NOT NULL GROUP BY status, op, resource_kind
    UNION ALL
    SELECT 'tasks by project', project_id, '{}', count(*)
    FROM tasks WHERE ended_at IS NOT NULL GROUP BY project_id;

CREATE FUNCTION count_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks', NULL, ARRAY[OLD.status, OLD.op, OLD.resource_kind], -1),
                                        ('tasks by project', OLD.project_id, '{}', -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks', NULL, ARRAY[NEW.status, NEW.op, NEW.resource_kind], 1),
                                        ('tasks by project', NEW.project_id, '{}', 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_counted AFTER INSERT OR DELETE ON tasks FOR EACH ROW EXECUTE FUNCTION count_task();
CREATE TRIGGER tasks_recounted AFTER UPDATE OF status, ended_at, project_id ON tasks FOR EACH ROW
    WHEN ((OLD.status, OLD.ended_at IS NULL, OLD.project_id) IS DISTINCT FROM (NEW.status, NEW.ended_at IS NULL, NEW.project_id)
          AND (OLD.ended_at IS NOT NULL OR NEW.ended_at IS NOT NULL))
    EXECUTE FUNCTION count_task();

CREATE VIEW address_numbers AS
    SELECT 'addresses by pool' AS list, pool_id AS scope, ARRAY[state] AS words, count(*) AS number
    FROM allocations GROUP BY pool_id, state;

CREATE FUNCTION count_address() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO list_changes VALUES ('addresses by pool', OLD.pool_id, ARRAY[OLD.state], -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO list_changes VALUES ('addresses by pool', NEW.pool_id, ARRAY[NEW.state], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER allocations_counted AFTER INSERT OR DELETE ON allocations FOR EACH ROW EXECUTE FUNCTION count_address();
CREATE TRIGGER allocations_recounted AFTER UPDATE OF state, pool_id ON allocations FOR EACH ROW
    WHEN ((OLD.state, OLD.pool_id) IS DISTINCT FROM (NEW.state, NEW.pool_id)) EXECUTE FUNCTION count_address();

-- Machines and ended tasks are counted by the day of UTC on which they were made, so that a page in the middle is searched
-- from the beginning of its day (svc/registry/paging.py).
CREATE FUNCTION utc_day(at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ((at AT TIME ZONE 'UTC')::date - date '2000-01-01')::text
$$;
CREATE FUNCTION utc_day_begins(day text) RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (date '2000-01-01' + day::integer)::timestamp AT TIME ZONE 'UTC'
$$;

CREATE VIEW day_numbers AS
    SELECT 'vms by day' AS list, NULL::uuid AS scope, ARRAY[utc_day(created_at)] AS words, count(*) AS number
    FROM vms WHERE deleted_at IS NULL GROUP BY utc_day(created_at)
    UNION ALL
    SELECT 'tasks by day', NULL, ARRAY[utc_day(created_at)], count(*)
    FROM tasks WHERE ended_at IS NOT NULL GROUP BY utc_day(created_at);

CREATE FUNCTION count_vm_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by day', NULL, ARRAY[utc_day(OLD.created_at)], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.deleted_at IS NULL THEN
        INSERT INTO list_changes VALUES ('vms by day', NULL, ARRAY[utc_day(NEW.created_at)], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER vms_counted_by_day AFTER INSERT OR DELETE ON vms FOR EACH ROW EXECUTE FUNCTION count_vm_day();
CREATE TRIGGER vms_recounted_by_day AFTER UPDATE OF deleted_at, created_at ON vms FOR EACH ROW
    WHEN ((OLD.deleted_at IS NULL, OLD.created_at) IS DISTINCT FROM (NEW.deleted_at IS NULL, NEW.created_at))
    EXECUTE FUNCTION count_vm_day();

CREATE FUNCTION count_task_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' AND OLD.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks by day', NULL, ARRAY[utc_day(OLD.created_at)], -1);
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.ended_at IS NOT NULL THEN
        INSERT INTO list_changes VALUES ('tasks by day', NULL, ARRAY[utc_day(NEW.created_at)], 1);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER tasks_counted_by_day AFTER INSERT OR DELETE ON tasks FOR EACH ROW
    EXECUTE FUNCTION count_task_day();
CREATE TRIGGER tasks_recounted_by_day AFTER UPDATE OF ended_at, created_at ON tasks FOR EACH ROW
    WHEN ((OLD.ended_at IS NULL, OLD.created_at) IS DISTINCT FROM (NEW.ended_at IS NULL, NEW.created_at))
    EXECUTE FUNCTION count_task_day();

------------------------------------------------------------------------------------------------------------------------
-- Traffic: what hosts counted, and what was decided when a machine exceeded its plan's allowance

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

-- A machine's month over all ledgers, so that a list of machines adds up nothing. Kept by what is added to the readings, of
-- which none ever goes back.
CREATE TABLE traffic_months (
    period   text COLLATE "C" NOT NULL,
    vm_id    uuid NOT NULL REFERENCES vms ON DELETE CASCADE,
    received bigint NOT NULL,
    sent     bigint NOT NULL,
    -- Where one ledger follows another, counting started again.
    ledgers  bigint NOT NULL,
    resets   bigint NOT NULL,
    samples  bigint NOT NULL,
    first_at timestamptz NOT NULL,
    PRIMARY KEY (period, vm_id)
);
CREATE INDEX traffic_months_vm ON traffic_months (vm_id);

CREATE FUNCTION add_to_month() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO traffic_months AS month (period, vm_id, received, sent, ledgers, resets, samples, first_at)
    VALUES (NEW.period, NEW.vm_id, NEW.received - coalesce(OLD.received, 0), NEW.sent - coalesce(OLD.sent, 0),
            CASE WHEN TG_OP = 'INSERT' THEN 1 ELSE 0 END, NEW.resets - coalesce(OLD.resets, 0),
            NEW.samples - coalesce(OLD.samples, 0), NEW.first_at)
    ON CONFLICT (period, vm_id) DO UPDATE SET
        received = month.received + excluded.received, sent = month.sent + excluded.sent,
        ledgers = month.ledgers + excluded.ledgers, resets = month.resets + excluded.resets,
        samples = month.samples + excluded.samples, first_at = least(month.first_at, excluded.first_at);
    RETURN NULL;
END
$$;
CREATE TRIGGER traffic_readings_added AFTER INSERT OR UPDATE ON traffic_readings
    FOR EACH ROW EXECUTE FUNCTION add_to_month();

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

------------------------------------------------------------------------------------------------------------------------
-- Backups of machines

-- Complete copies: a row is written when its node has said that the copy is complete. The id is that of the task that made
-- it.
CREATE TABLE machine_backups (
    id            uuid PRIMARY KEY,
    vm_id         uuid NOT NULL REFERENCES vms,
    node_id       uuid NOT NULL REFERENCES nodes,
    begun_at      timestamptz NOT NULL,
    completed_at  timestamptz NOT NULL,
    -- Of each disk its index, size_bytes and digest.
    disks         jsonb NOT NULL,
    stored_bytes  bigint NOT NULL,
    frozen        boolean NOT NULL,
    removed_at    timestamptz,
    -- Copies that are no longer kept and are at another node's target than the machine's: that node is to remove them.
    superseded_at timestamptz
);
CREATE INDEX machine_backups_kept ON machine_backups (vm_id, completed_at) WHERE removed_at IS NULL;
CREATE INDEX machine_backups_superseded ON machine_backups (vm_id, node_id)
    WHERE superseded_at IS NOT NULL AND removed_at IS NULL;
-- All of a machine that has been deleted, removed copies as well: each of these nodes has something at its target.
CREATE INDEX machine_backups_of_machine ON machine_backups (vm_id, node_id);

-- The nodes that were asked to back a machine up: each may have something of it at its target, complete copies or what
-- attempts that were cut short have left.
CREATE TABLE machine_backup_stores (
    vm_id   uuid NOT NULL REFERENCES vms,
    node_id uuid NOT NULL REFERENCES nodes,
    PRIMARY KEY (vm_id, node_id)
);

------------------------------------------------------------------------------------------------------------------------
-- Services, which billing systems order

-- A service is sold once and keeps its row and its id, whatever becomes of its machine.
CREATE TABLE services (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),

    -- Whose service it is in the billing system's own words.
    integration     text NOT NULL,
    external_ref    text NOT NULL,

    state           text NOT NULL CHECK (state IN ('provisioning', 'active', 'provisioning_failed', 'suspended', 'terminated')),
    state_reason    text,
    -- Whether the machine is what the state says it must be. Few are not: the watch looks at these alone.
    settled         boolean NOT NULL DEFAULT false,
    -- When it was tried last, and to no effect, to make the machine so.
    tried_at        timestamptz,

    customer_id     uuid REFERENCES users ON DELETE SET NULL,
    project_id      uuid NOT NULL REFERENCES projects,
    -- The machine that it has, or had last: deleted machines are removed after their time.
    vm_id           uuid REFERENCES vms ON DELETE SET NULL,
    -- The machine as it was ordered, without any secret: what a retry orders again.
    machine_order   jsonb NOT NULL,
    -- Nothing reads it: a repeated order is found by its reference, and by the key in its machine's own row.
    ordered_by      text,

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
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    service_id uuid NOT NULL REFERENCES services,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind       text NOT NULL,
    state      text NOT NULL,
    actor      text NOT NULL,
    message    text NOT NULL
);
CREATE INDEX service_events_service ON service_events (service_id, id DESC);

-- Single sign-on: links that sign a browser in as the customer of a service. A row is there until it is used or too old.
CREATE TABLE service_sign_in_links (
    token_hash bytea PRIMARY KEY,
    service_id uuid NOT NULL REFERENCES services,
    made_by    text NOT NULL,
    expires_at timestamptz NOT NULL
);

-- What a migration from another system has staged: which machine of this controller a billing system has sold so far as a
-- server of that other system.
CREATE TABLE staged_machines (
    integration      text NOT NULL,
    external_ref     text NOT NULL,
    legacy_server_id text NOT NULL,
    -- Not a reference: the machine may come later, or never.
    vm_id            uuid,
    staged_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (integration, external_ref)
);

------------------------------------------------------------------------------------------------------------------------
-- Backups of the controller itself

-- As `svc controller backup` ended them: the alert about them goes by these rows.
CREATE TABLE controller_backups (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ended_at    timestamptz NOT NULL DEFAULT now(),
    -- How often there is to be one; past twice that there is an alert.
    every_hours double precision NOT NULL CHECK (every_hours > 0),
    place       text NOT NULL,
    archive     text,
    size_bytes  bigint,
    error       text,
    CHECK ((error IS NULL) = (archive IS NOT NULL))
);

-- A controller that was restored from a backup (docs/backup.md).
CREATE TABLE restorations (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- When the backup was taken, and by which release.
    taken_at    timestamptz NOT NULL,
    release     text NOT NULL,
    restored_at timestamptz NOT NULL DEFAULT now()
);
