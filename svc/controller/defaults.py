"""What a new controller starts with, so that the first machine needs no preparation: a location, a project, a network
behind nat, and three plans.

Made once: what an operator renames or removes afterwards does not come back.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Final

from svc_actors.controller.networks import NewPool, create_network, create_pool
from svc_actors.store import Database

NAT_NETWORK: Final = IPv4Network("10.77.0.0/16")
_LOCK: Final = 7_700_001
_PLANS: Final = (
    # name, slug, vcpus, memory in MiB, disk in GiB
    ("Small", "small", 1, 1024, 20),
    ("Medium", "medium", 2, 4096, 60),
    ("Large", "large", 4, 8192, 120),
)


async def seed_defaults(database: Database) -> None:
    async with database.transaction() as tx:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await tx.fetchval("SELECT 1 FROM settings WHERE name = 'defaults_made'") is not None:
            return
        location = await tx.fetchval("INSERT INTO locations (name) VALUES ('default') RETURNING id")
        await tx.execute("INSERT INTO projects (name) VALUES ('default')")
        network = await create_network(tx, "default", default=True)
        await create_pool(tx, network["id"], NewPool(name="nat", location_id=location, cidr=NAT_NETWORK))
        await tx.executemany(
            "INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ($1, $2, $3, $4, $5)", _PLANS
        )
        await tx.execute("INSERT INTO settings (name, value) VALUES ('defaults_made', 'true')")
