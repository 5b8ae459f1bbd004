"""Addresses of pools: taken, given back, and never in two hands.

Invariants:
- free is the absence of a row; the primary key (pool, ip) of `allocations` is what keeps an address in one hand;
- an address is taken by one statement, which finds a free one and inserts it; takers of one pool take turns on the
  pool's row, so `PoolFull` is said exactly when nothing is free;
- a machine that goes leaves its addresses `releasing`, and only the node's word frees them (`free_removed`);
- the search begins past the address given last, so a freed address rests, and a /8 costs what a /24 does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final
from uuid import UUID

from svc_actors.store import Transaction

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

_TAKE: Final = """
    WITH candidate AS (
        SELECT coalesce(
            (SELECT $2::inet WHERE NOT EXISTS (SELECT FROM allocations WHERE pool_id = $1 AND ip = $2)),
            (SELECT held.ip + 1 FROM allocations held
             WHERE held.pool_id = $1 AND held.ip >= $2 AND held.ip < $3
               AND NOT EXISTS (SELECT FROM allocations next WHERE next.pool_id = $1 AND next.ip = held.ip + 1)
             ORDER BY held.ip LIMIT 1)
        ) AS ip
    )
    INSERT INTO allocations (pool_id, ip, state, vm_id, nic_id, is_primary)
    SELECT $1, ip, 'allocated', $4, $5, $6 FROM candidate WHERE ip IS NOT NULL
    ON CONFLICT (pool_id, ip) DO NOTHING
    RETURNING ip
"""


class PoolFull(Exception):  # noqa: N818 - named for what it says
    """No address of the pool is free."""

    def __init__(self, pool_id: UUID) -> None:
        super().__init__(f"pool {pool_id} has no free address")


async def allocate(tx: Transaction, pool_id: UUID, *, vm_id: UUID, nic_id: UUID, primary: bool) -> IPAddress:
    """Take a free address of the pool for a machine. Raises `PoolFull`."""
    pool = await tx.fetchrow(
        "SELECT range_start, range_end, next_ip FROM pools WHERE id = $1 FOR NO KEY UPDATE", pool_id
    )
    if pool is None:
        raise PoolFull(pool_id)
    first, last = pool["range_start"], pool["range_end"]
    begin = pool["next_ip"]
    if begin is None or not first <= begin <= last:
        begin = first
    spans = [(begin, last)] if begin == first else [(begin, last), (first, begin - 1)]
    for low, high in spans:
        taken = await tx.fetchval(_TAKE, pool_id, low, high, vm_id, nic_id, primary)
        if taken is not None:
            await tx.execute(
                "UPDATE pools SET next_ip = $2 WHERE id = $1", pool_id, first if taken == last else taken + 1
            )
            return _plain(taken)
    raise PoolFull(pool_id)


async def begin_release(tx: Transaction, vm_id: UUID) -> None:
    """The machine has gone: its addresses wait for the node to say that it has stopped routing them."""
    await tx.execute(
        "UPDATE allocations SET state = 'releasing', changed_at = now() WHERE vm_id = $1 AND state = 'allocated'", vm_id
    )


async def free_removed(tx: Transaction, vm_id: UUID, removed: Iterable[str]) -> list[IPAddress]:
    """Free exactly what the node named, of what this machine was releasing. Gives what is free now."""
    rows = await tx.fetch(
        """DELETE FROM allocations WHERE vm_id = $1 AND state = 'releasing' AND ip = ANY($2::inet[]) RETURNING ip""",
        vm_id,
        [address.split("/", 1)[0] for address in removed],
    )
    return [_plain(row["ip"]) for row in rows]


async def reserve_arithmetic(tx: Transaction, pool_id: UUID, network: IPNetwork, gateway: IPAddress) -> None:
    """Set aside what the pool's own arithmetic takes: the network, the broadcast address and the gateway."""
    taken: dict[IPAddress, str] = {gateway: "gateway"}
    if network.version == 4 and network.prefixlen < 31:
        taken |= {network.network_address: "network", network.broadcast_address: "broadcast"}
    await tx.executemany(
        """INSERT INTO allocations (pool_id, ip, state, arithmetic, note) VALUES ($1, $2, 'reserved', true, $3)
           ON CONFLICT (pool_id, ip) DO NOTHING""",
        [(pool_id, ip, note) for ip, note in taken.items()],
    )


async def new_nic(tx: Transaction, *, vm_id: UUID, network_id: UUID, position: int) -> UUID:
    """A network card with a MAC address that no other machine has (52:54:00 and three random bytes)."""
    while True:
        mac = "52:54:00:" + secrets.token_bytes(3).hex(":")
        nic_id: UUID | None = await tx.fetchval(
            """INSERT INTO nics (vm_id, network_id, position, mac) VALUES ($1, $2, $3, $4)
               ON CONFLICT (mac) DO NOTHING RETURNING id""",
            vm_id,
            network_id,
            position,
            mac,
        )
        if nic_id is not None:
            return nic_id


def _plain(value: object) -> IPAddress:
    if isinstance(value, IPv4Address | IPv6Address):
        ip = getattr(value, "ip", value)
        return ip if isinstance(ip, IPv4Address | IPv6Address) else value
    raise TypeError(f"{value!r} is not an address")
