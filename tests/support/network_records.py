"""Machines that are there already: straight into the records and onto a simulated host, as if built long ago."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

from svc_actors.controller.machines.spec import network_spec
from svc_actors.controller.networking.addresses import allocate
from svc_actors.store import Database
from svc_nodeagent.simulated import SimulatedHost
from tests.support.machine_service import DIGEST


@dataclass(frozen=True)
class Records:
    """What machines refer to."""

    database: Database
    project_id: UUID
    image_id: UUID
    network_id: UUID
    pool_id: UUID

    @classmethod
    async def of(cls, database: Database) -> Records:
        """Of a database whose default network has a pool; project and image are made where there are none."""
        project_id = await database.fetchval("SELECT id FROM projects LIMIT 1") or await database.fetchval(
            "INSERT INTO projects (name) VALUES ('default') RETURNING id"
        )
        image_id = await database.fetchval(
            """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, digest,
                                   custom)
               VALUES ('records', 'Demo', 'linux', 'demo', '1', 'debian', 'qcow2', 'file', $1, true)
               ON CONFLICT (slug) DO UPDATE SET digest = excluded.digest RETURNING id""",
            DIGEST,
        )
        pool = await database.fetchrow(
            """SELECT pools.id, pools.network_id FROM pools JOIN networks ON networks.id = pools.network_id
               WHERE networks."default" AND pools.family = 4 ORDER BY pools.created_at LIMIT 1"""
        )
        assert pool is not None
        return cls(database, project_id, image_id, pool["network_id"], pool["id"])

    async def machines(self, node_id: UUID, host: SimulatedHost, count: int) -> list[UUID]:
        """Machines of this node that run, and whose networks the host has."""
        host.populate(count)
        vm_ids = list(host.machines)[-count:]
        for vm_id in vm_ids:
            async with self.database.transaction() as tx:
                await tx.execute(
                    """INSERT INTO vms (id, name, hostname, project_id, node_id, image_id, vcpus, memory_mib, disk_gib,
                                        status, access_mode, built_at, net_applied)
                       VALUES ($1, $2, 'a', $3, $4, $5, 1, 64, 1, 'running', 'user_sudo', now(), 1)""",
                    vm_id,
                    f"m-{vm_id}",
                    self.project_id,
                    node_id,
                    self.image_id,
                )
                nic_id = await tx.fetchval(
                    """INSERT INTO nics (vm_id, network_id, position, mac) VALUES ($1, $2, 0, $3::text::macaddr)
                       RETURNING id""",
                    vm_id,
                    self.network_id,
                    f"52:54:00:{uuid4().bytes[:3].hex(':')}",
                )
                await allocate(tx, self.pool_id, vm_id=vm_id, nic_id=nic_id, primary=True)
                host.networks.apply(vm_id, await network_spec(tx, vm_id))
        return vm_ids
