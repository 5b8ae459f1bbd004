"""N3: what an address costs, of a /8 beside a /24, of IPv6 beside IPv4, and as a /8 fills.

Run as `python -m tools.benchmarks.addresses`. At the front of each range stand 254 addresses that are held, so a search
from the front meets a /24's worth of them in either; the /16's worth is the same with 65,536. Turns alternate, and the
median of one allocation, without the commit, which waits for the disk, counts. It is given back after it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from statistics import median
from time import perf_counter
from uuid import UUID, uuid4

import trio

from svc_actors.controller.networking.addresses import allocate, new_nic
from svc_actors.controller.networking.networks import NewPool, create_network, create_pool
from svc_actors.store import Database, embedded, migrate
from tools.benchmarks import Ratio

ALLOCATIONS = 400
HELD_OF_A_24 = 254
HELD_OF_A_16 = 65_536
POOLS = {
    "/24": ("10.1.0.0/23", HELD_OF_A_24),
    "/8": ("11.0.0.0/8", HELD_OF_A_24),
    "/8 with a /16 held": ("12.0.0.0/8", HELD_OF_A_16),
    "IPv6 /32": ("2001:db8::/32", HELD_OF_A_24),
}


@dataclass(frozen=True)
class Bench:
    database: Database
    pools: dict[str, UUID]
    vm_id: UUID
    nic_id: UUID

    async def allocation(self, pool: str, *, from_the_front: bool) -> float:
        """Seconds for one; afterwards the address is free again. From the front, the search passes all that is held."""
        pool_id = self.pools[pool]
        if from_the_front:
            await self.database.execute("UPDATE pools SET next_slot = first_slot WHERE id = $1", pool_id)
        async with self.database.transaction() as tx:
            began = perf_counter()
            await allocate(tx, pool_id, vm_id=self.vm_id, nic_id=self.nic_id, primary=True)
            took = perf_counter() - began
        await self.database.execute("DELETE FROM allocations WHERE vm_id = $1", self.vm_id)
        return took


async def prepared(database: Database) -> Bench:
    vm_id = uuid4()
    pools = {}
    async with database.transaction() as tx:
        location = await tx.fetchval("INSERT INTO locations (name) VALUES ('default') RETURNING id")
        network = (await create_network(tx, "n", default=True))["id"]
        project = await tx.fetchval("INSERT INTO projects (name) VALUES ('p') RETURNING id")
        image = await tx.fetchval(
            """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, custom)
               VALUES ('i', 'i', 'linux', 'd', '1', 'u', 'qcow2', 'file', true) RETURNING id"""
        )
        await tx.execute(
            """INSERT INTO vms (id, name, hostname, project_id, image_id, vcpus, memory_mib, disk_gib, status,
                                access_mode)
               VALUES ($1, 'm', 'm', $2, $3, 1, 64, 1, 'running', 'user_sudo')""",
            vm_id,
            project,
            image,
        )
        nic_id = await new_nic(tx, vm_id=vm_id, network_id=network, position=0)
        for name, (cidr, held) in POOLS.items():
            new = NewPool(name=name, location_id=location, cidr=ip_network(cidr), topology="routed")
            pool_id = pools[name] = (await create_pool(tx, network, new))["id"]
            await tx.execute(
                """INSERT INTO allocations (pool_id, slot, ip, state)
                   SELECT id, slot, pool_address(cidr, prefix_len, slot), 'blocked'
                   FROM pools, generate_series(first_slot + 1, first_slot + $2) slot WHERE id = $1""",
                pool_id,
                held,
            )
    await database.execute("ANALYZE allocations")
    return Bench(database, pools, vm_id, nic_id)


async def medians(pools: Iterable[str], *, from_the_front: bool) -> dict[str, float]:
    """Milliseconds of one allocation, by pool."""
    with tempfile.TemporaryDirectory(prefix="svc-bench-") as folder:
        Path(folder).chmod(0o711)
        async with embedded(Path(folder) / "postgresql") as url, Database.open(url) as database:
            await migrate(database)
            bench = await prepared(database)
            took: dict[str, list[float]] = {pool: [] for pool in pools}
            for _ in range(ALLOCATIONS):
                for pool in took:
                    took[pool].append(await bench.allocation(pool, from_the_front=from_the_front))
            return {pool: 1000 * median(seconds) for pool, seconds in took.items()}


def measure() -> list[Ratio]:
    usual, front = trio.run(_usual), trio.run(_front)

    def ratio(name: str, ours: float, peer: float, goal: float = 1.1) -> Ratio:
        return Ratio(f"N3 {name}", ours, peer, "ms", goal=goal, higher_is_better=False)

    return [
        ratio("an address of a /8 : of a /24", usual["/8"], usual["/24"]),
        ratio("searched from the front, of a /8 : of a /24", front["/8"], front["/24"]),
        ratio("of a /8 with 65,536 held : of a /24", usual["/8 with a /16 held"], usual["/24"]),
        ratio("a sub-prefix of an IPv6 /32 : an address of a /24", usual["IPv6 /32"], usual["/24"], goal=1.5),
    ]


async def _usual() -> dict[str, float]:
    return await medians(POOLS, from_the_front=False)


async def _front() -> dict[str, float]:
    return await medians(("/24", "/8"), from_the_front=True)


def main() -> None:
    for row in measure():
        print(f"{row.name}: {row.ours:,.2f} : {row.peer:,.2f} {row.unit} = {row.ratio:.2f} (goal {row.goal})")


if __name__ == "__main__":
    main()
