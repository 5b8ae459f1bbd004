"""A database as large as a provider's, made by SQL: so that the planner chooses as it does at scale.

Machines are spread over nodes and projects and carry an address each; every machine has tasks, audit entries and
traffic behind it. One node in fifty is offline, one machine in fifty stopped, one task in a hundred failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from svc_actors.store import Database
from svc_actors.store.counts import fold


@dataclass(frozen=True)
class Size:
    """How many rows: of nodes, projects (with a user each) and machines; of tasks and audit entries for each
    machine."""

    machines: int
    nodes: int
    projects: int
    tasks: int = 3
    audited: int = 5

    @classmethod
    def of(cls, machines: int) -> Size:
        """A hundred machines a node, and twenty a project."""
        return cls(machines, nodes=max(1, machines // 100), projects=max(2, machines // 20))


_TIMEOUT: Final = 600.0
_STATEMENTS = (
    "INSERT INTO locations (name) VALUES ('large')",
    """INSERT INTO users (email, name, role, company, suspended_at, suspension_reason)
       SELECT 'user-' || n || '@example.org', 'User ' || n, CASE WHEN n = 0 THEN 'administrator' ELSE 'customer' END,
              'Company ' || n, CASE WHEN n % 50 = 7 THEN now() END, CASE WHEN n % 50 = 7 THEN 'unpaid' END
       FROM generate_series(0, {projects}) n""",
    "INSERT INTO projects (name) SELECT 'project-' || n FROM generate_series(1, {projects}) n",
    """INSERT INTO project_members (project_id, user_id)
       SELECT projects.id, users.id FROM projects JOIN users ON users.name = 'User ' || substr(projects.name, 9)""",
    """INSERT INTO nodes (name, location_id, state, host_uuid, connected_at, seen_at)
       SELECT 'node-' || n, locations.id, CASE WHEN n % 50 = 2 THEN 'offline' ELSE 'online' END, gen_random_uuid(),
              now(), now()
       FROM generate_series(1, {nodes}) n, locations WHERE locations.name = 'large'""",
    """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
       VALUES ('large', 'Large', 'linux', 'debian', '12', 'debian', 'qcow2', 'file', true)""",
    """INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib)
       SELECT 'Plan ' || n, 'plan-' || n, n, n * 1024, n * 10 FROM generate_series(1, 5) n""",
    """INSERT INTO plan_traffic (plan_id, effective_from, allowance_gib, direction, action)
       SELECT id, '2020-01', vcpus * 100, CASE WHEN vcpus % 2 = 0 THEN 'both' ELSE 'outbound' END, 'report' FROM
       plans""",
    "INSERT INTO networks (name) VALUES ('large')",
    """INSERT INTO pools (network_id, location_id, name, family, cidr, range_start, range_end, gateway,
    guest_prefix_len,
                          topology, prefix_len, first_slot, last_slot, next_slot)
       SELECT networks.id, locations.id, 'large', 4, '10.0.0.0/8', '10.0.0.2', '10.255.255.254', '10.0.0.1', 32,
       'routed',
              32, 2, 16777214, 2
       FROM networks, locations WHERE networks.name = 'large' AND locations.name = 'large'""",
    """WITH ids AS MATERIALIZED (
           SELECT ARRAY(SELECT id FROM projects WHERE name LIKE 'project-%' ORDER BY created_at, name) AS projects,
                  ARRAY(SELECT id FROM nodes WHERE name LIKE 'node-%' ORDER BY name) AS nodes,
                  ARRAY(SELECT id FROM plans WHERE slug LIKE 'plan-%' ORDER BY slug) AS plans,
                  (SELECT id FROM images WHERE slug = 'large') AS image)
       INSERT INTO vms (name, hostname, project_id, node_id, plan_id, image_id, vcpus, memory_mib, disk_gib, status,
                        access_mode, built_at, created_at)
       SELECT 'vm-' || n, 'vm-' || n || '.example.org', projects[1 + n % {projects}], nodes[1 + n % {nodes}],
              plans[1 + n % 5], image, 1 + n % 5, 1024 * (1 + n % 5), 10 * (1 + n % 5),
              CASE WHEN n % 50 = 1 THEN 'stopped' WHEN n % 1000 = 3 THEN 'failed' ELSE 'running' END, 'user_sudo',
              now(),
              now() - n * interval '1 minute'
       FROM generate_series(1, {machines}) n, ids""",
    """INSERT INTO nics (vm_id, network_id, position, mac)
       SELECT vms.id, networks.id, 0, ('52:54:00:' || regexp_replace(lpad(to_hex(substr(vms.name, 4)::integer), 6, '0'),
              '(..)(..)(..)', '\\1:\\2:\\3'))::macaddr
       FROM vms, networks WHERE networks.name = 'large' AND vms.name LIKE 'vm-%'""",
    """INSERT INTO allocations (pool_id, ip, slot, state, vm_id, nic_id, is_primary)
       SELECT pools.id, '10.0.0.0'::inet + (1 + substr(vms.name, 4)::bigint), 1 + substr(vms.name, 4)::bigint,
              'allocated', vms.id, nics.id, true
       FROM vms JOIN nics ON nics.vm_id = vms.id, pools WHERE pools.name = 'large'""",
    """INSERT INTO tasks (op, status, resource_kind, resource_id, resource_name, node_id, project_id, caller, progress,
                          created_at, ended_at, deadline_at)
       SELECT (ARRAY['vm.create', 'vm.start', 'vm.shutdown'])[1 + n % 3], CASE n % 100 WHEN 3 THEN 'failed' ELSE
       'succeeded' END,
              'vm', vms.id, vms.name, vms.node_id, vms.project_id,
              '{{"actor": "user-0@example.org", "role": "administrator", "via": "session", "request_id": "x",
                 "operation": "vm.start"}}',
              100, vms.created_at + n * interval '1 second', vms.created_at + n * interval '2 seconds', now()
       FROM vms, generate_series(1, {tasks}) n""",
    """INSERT INTO audit (at, actor_id, actor, role, via, request_id, operation, target_kind, target_id, target_name,
                          project_id, outcome)
       SELECT now() - interval '1 day' + vms.ordinal * interval '1 millisecond', users.id, users.email, users.role,
              'session', 'x', (ARRAY['vm.create', 'vm.start', 'vm.shutdown', 'vm.show'])[1 + n % 4], 'vm', vms.id::text,
              vms.name, vms.project_id, 'ok'
       FROM generate_series(1, {audited}) n,
            (SELECT *, row_number() OVER () AS ordinal FROM vms) vms
            JOIN project_members members ON members.project_id = vms.project_id JOIN users ON users.id =
            members.user_id""",
    """INSERT INTO traffic_readings (vm_id, period, node_id, ledger_id, received, sent, resets, samples, first_at,
    last_at)
       SELECT id, to_char(now() - month * interval '1 month', 'YYYY-MM'), node_id, node_id, vcpus * 1000000 + month,
              substr(name, 4)::bigint * 1000003 % 1000000007, 0, 100, now(), now()
       FROM vms, generate_series(0, 2) month""",
    """INSERT INTO traffic_decisions (vm_id, period, action, at, counted_bytes, reason, standing)
       SELECT id, to_char(now(), 'YYYY-MM'), 'report', now(), 1, 'beyond', false FROM vms WHERE status = 'stopped'""",
    """INSERT INTO alerts (key, severity, message, closed_at)
       SELECT 'large-' || n, 'warning', 'large', CASE WHEN n > 20 THEN now() END FROM generate_series(1, {machines} /
       10) n""",
    """INSERT INTO event (position, at, kind, subject, administrators_only, payload)
       SELECT coalesce((SELECT max(position) FROM event), 0) + n, now(), 'vm', 'x', false, '{{}}'
       FROM generate_series(1, {machines}) n""",
)


# Those that keep something unique stay: what is inserted refers to it.
_INDEXES = """
SELECT format('%I', class.relname) AS name, pg_get_indexdef(class.oid) AS definition
FROM pg_index JOIN pg_class class ON class.oid = pg_index.indexrelid
WHERE class.relnamespace = 'public'::regnamespace AND NOT indisunique AND NOT indisexclusion
  AND ($1::text[] IS NULL OR indrelid = ANY($1::text[]::regclass[]))
ORDER BY class.relname"""


async def fill(database: Database, size: Size) -> None:
    """Add so many rows to a migrated database, and have the planner know of them."""
    for statement in _STATEMENTS:
        await database.execute(statement.format(**vars(size)), timeout=_TIMEOUT)
    await fold(database)
    await database.execute("VACUUM ANALYZE", timeout=_TIMEOUT)


@asynccontextmanager
async def indexes_later(owner: Database, *, of: Sequence[str] | None = None) -> AsyncIterator[None]:
    """A block without the indexes `of` some tables, or of all. They are built at its end: those of texts take some
    fifty entries a row, which take ten times as long one by one. `owner` is of the role that owns the tables."""
    indexes = await owner.fetch(_INDEXES, None if of is None else list(of))
    for index in indexes:
        await owner.execute(f"DROP INDEX {index['name']}")
    yield
    async with owner.transaction() as tx:
        await tx.execute("SET LOCAL maintenance_work_mem = '256MB'")
        for index in indexes:
            await tx.execute(index["definition"], timeout=_TIMEOUT)
