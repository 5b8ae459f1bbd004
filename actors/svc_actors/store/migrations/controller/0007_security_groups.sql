-- Security groups: what traffic of a machine is let through, beyond the rules against spoofing that every machine has.

CREATE TABLE security_groups (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- Null: the provider's own, for machines of every project.
    project_id      uuid REFERENCES projects,
    name            text NOT NULL,
    description     text NOT NULL DEFAULT '',
    default_ingress text NOT NULL DEFAULT 'drop' CHECK (default_ingress IN ('accept', 'drop')),
    default_egress  text NOT NULL DEFAULT 'accept' CHECK (default_egress IN ('accept', 'drop')),
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT security_groups_name UNIQUE NULLS NOT DISTINCT (project_id, name)
);

-- Null: of family both, of the ports every one, of cidr anybody, of icmp_type every type.
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
