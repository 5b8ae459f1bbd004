"""The defaults of a new controller, so that the first machine needs no preparation: a location, a project, a network
behind NAT, three plans, and the catalogue of publishers' images.

They are created once: a default that an operator renames or removes does not come back.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final

from svc_actors.controller.images.catalogue import ensure_catalogue
from svc_actors.controller.networking.networks import NewPool, create_network, create_pool
from svc_actors.store import Database, Transaction

NAT_NETWORKS: Final = tuple(
    IPv4Network(text) for text in ("10.77.0.0/16", "10.177.0.0/16", "172.27.0.0/16", "192.168.128.0/17")
)
"""Candidates for the default network; the first one that contains no address of this host is used. Otherwise the nodes,
which answer for the addresses of the network, would answer for the address of the controller or of its neighbours."""
_LOCK: Final = 0x5356_4445
_PLANS: Final = (
    # name, slug, vcpus, memory in MiB, disk in GiB
    ("Small", "small", 1, 1024, 20),
    ("Medium", "medium", 2, 4096, 60),
    ("Large", "large", 4, 8192, 120),
)


async def seed_defaults(database: Database) -> None:
    """Called at every start: creates the defaults at the first one, and adds new entries of the image catalogue."""
    await _make_once(database)
    await ensure_catalogue(database)


async def _make_once(database: Database) -> None:

    async def work(tx: Transaction) -> None:
        await tx.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
        if await tx.fetchval("SELECT 1 FROM settings WHERE name = 'defaults_made'") is not None:
            return
        location = await tx.fetchval("INSERT INTO locations (name) VALUES ('default') RETURNING id")
        await tx.execute("INSERT INTO projects (name) VALUES ('default')")
        network = await create_network(tx, "default", default=True)
        pool = NewPool(name="nat", location_id=location, cidr=_nat_network(), nameservers=_resolvers())
        await create_pool(tx, network["id"], pool)
        await tx.executemany(
            "INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ($1, $2, $3, $4, $5)", _PLANS
        )
        await tx.execute("INSERT INTO settings (name, value) VALUES ('defaults_made', 'true')")

    await database.transact(work)


def _nat_network() -> IPv4Network:
    """The range for machines behind NAT: the first of four ranges that contains no address of this host. If the host
    has addresses in all four, the first is returned: its administrator sees that the pool is refused, and creates
    another one."""
    own = _own_addresses()
    return next((network for network in NAT_NETWORKS if not any(one in network for one in own)), NAT_NETWORKS[0])


def _own_addresses(path: Path = Path("/proc/net/fib_trie")) -> list[IPv4Address]:
    """This host's own addresses, from the kernel's routes to them. In the file, each address is followed by one or more
    lines about its routes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    found, address = [], ""
    for line in lines:
        _, leaf, text = line.partition("|-- ")
        if leaf:
            address = text.strip()
        elif line.strip() == "/32 host LOCAL":
            found.append(IPv4Address(address))
    return found


def _resolvers(path: Path = Path("/etc/resolv.conf")) -> list[IPv4Address]:
    """The name servers of this host that a guest behind NAT can reach: those not on its loopback."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        word, _, value = line.strip().partition(" ")
        if word != "nameserver":
            continue
        try:
            address = IPv4Address(value.strip())
        except ValueError:
            continue
        if not address.is_loopback:
            found.append(address)
    return found[:3]
