"""Addresses of pools: allocated, released, and never held by two machines.

A pool is counted in slots (`pool_arithmetic`): a slot is an address of IPv4 or a sub-prefix of IPv6.

    (free)     --allocate-->              allocated
    allocated  --start_release-->         releasing   detached, or its machine is going
    releasing  --keep_addresses-->        allocated   its machine was to be deleted, and the host refused
    releasing  --free_removed-->          (free)      the node confirmed that it neither routes nor filters it
    releasing  --force_free-->            (free)      an administrator answers for it, with a note
    (free)     --reserve, block-->        reserved, blocked                        (`reservations`)

Invariants:
- a free slot has no row; the primary key of `allocations` (pool, slot) keeps an address with one holder;
- an address is taken by one statement, which finds a free one and inserts it. Transactions that take or release
  addresses of one pool take turns on the pool's row, so `PoolFull` is raised exactly when nothing is free;
- each release has a number, so that a node's late answer frees neither the next holder's address nor a later release;
- the search starts after the address given last, so a freed address rests, and a /8 costs what a /24 does.

Why a free address has no row: a /8 has 16 million of them, and an IPv6 pool up to 2^62 sub-prefixes.

Why: docs/decisions/0034-addresses-and-pools.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Final
from uuid import UUID

from svc_actors.controller.networking.carried import HEARD, block_carried, require_heard
from svc_actors.controller.networking.pool_arithmetic import IPAddress, IPNetwork, address_text, guest_address
from svc_actors.controller.networking.pool_records import Pool, lock_pool, lock_pools_of, wiring
from svc_actors.controller.networking.reservations import host_address_alert, refresh_host_reservations
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found

__all__ = [
    "AllocatedAddress",
    "IPAddress",
    "IPNetwork",
    "PoolFull",
    "ReleasingAddresses",
    "address_text",
    "allocate",
    "allocate_first",
    "force_free",
    "free_removed",
    "guest_address",
    "keep_addresses",
    "new_mac",
    "new_nic",
    "releasing_of",
    "start_release",
]

_TAKE: Final = """
    WITH candidate AS (
        SELECT coalesce(
            (SELECT $2::bigint WHERE NOT EXISTS (SELECT FROM allocations WHERE pool_id = $1 AND slot = $2)),
            (SELECT slot + 1 FROM (
                 SELECT slot, lead(slot) OVER (ORDER BY slot) AS next FROM allocations
                 WHERE pool_id = $1 AND slot BETWEEN $2 AND $4
             ) held WHERE slot < $4 AND next IS DISTINCT FROM slot + 1 ORDER BY slot LIMIT 1),
            (SELECT $3::bigint WHERE NOT EXISTS (SELECT FROM allocations WHERE pool_id = $1 AND slot = $3)),
            (SELECT slot + 1 FROM (
                 SELECT slot, lead(slot) OVER (ORDER BY slot) AS next FROM allocations
                 WHERE pool_id = $1 AND slot BETWEEN $3 AND $2 - 1
             ) held WHERE slot < $2 - 1 AND next IS DISTINCT FROM slot + 1 ORDER BY slot LIMIT 1)
        ) AS slot
    ), taken AS (
        INSERT INTO allocations (pool_id, slot, ip, state, vm_id, nic_id, is_primary)
        SELECT $1, slot, pool_address($8, $9, slot), 'allocated', $5, $6, $7 FROM candidate WHERE slot IS NOT NULL
        RETURNING slot
    )
    UPDATE pools SET next_slot = CASE WHEN taken.slot = $4 THEN $3 ELSE taken.slot + 1 END
    FROM taken WHERE pools.id = $1 RETURNING taken.slot
"""
"""The first free slot from the hint on ($2, the slot after the one given last), else the first free one before it; $3
and $4 are the ends of the range. A free slot has no row, so the arms of the query look for gaps between rows:

1. the hint itself;
2. past the hint: the slot after a held one whose neighbour is not held;
3. the first slot of the range;
4. before the hint: as 2.

Example: a range from 1 to 6, the slots 1, 4 and 5 held, and the hint at 4. 4 is held and the slot after 5 is not, so 6
is taken. If 6 is held as well, there is no gap past the hint; 1 is held and 2 is not, so 2 is taken. If none of the
four finds a slot, the pool is full.

Cost: `allocations` is read by its primary key (pool, slot) and only as far as the first gap, so the cost depends on the
length of the run of held slots at the hint and not on the number of slots held. The caller has locked the pool's row,
so nothing changes between the search and the insertion. The hint wraps around at the end of the range."""

_TAKE_HINTED: Final = f"""
    WITH pool AS (
        SELECT id, cidr, prefix_len, next_slot FROM pools
        WHERE id = $1 AND enabled AND next_slot BETWEEN first_slot AND last_slot
          AND (cardinality(node_ids) = 0 OR $5 = ANY(node_ids))
          AND location_id = (SELECT location_id FROM nodes WHERE id = $5) AND {HEARD}
        FOR NO KEY UPDATE
    ), taken AS (
        INSERT INTO allocations (pool_id, slot, ip, state, vm_id, nic_id, is_primary)
        SELECT id, next_slot, pool_address(cidr, prefix_len, next_slot), 'allocated', $2, $3, $4 FROM pool
        ON CONFLICT (pool_id, slot) DO NOTHING RETURNING slot, ip
    )
    UPDATE pools SET next_slot = CASE WHEN taken.slot = last_slot THEN first_slot ELSE taken.slot + 1 END
    FROM taken WHERE pools.id = $1 RETURNING taken.ip, pools.topology
"""
"""Takes the slot after the one given last, which is nearly always free, in the same statement that locks the pool: so
the pool stays locked only for this statement and the commit. The locked row is read as it is when the lock is obtained,
even if it has changed since the statement started. Allocations are not read before the insertion, and the insertion
meets those that were committed meanwhile. No row is returned if the slot is held or if the pool can no longer be used;
`_TAKE`, under a lock taken before it, finds out which."""


class PoolFull(Exception):  # noqa: N818 - named for what it says
    """No address of the pool is free."""

    def __init__(self, pool_id: UUID) -> None:
        super().__init__(f"pool {pool_id} has no free address")


@dataclass(frozen=True)
class AllocatedAddress:
    """The address or sub-prefix that a machine has received. `network`: what its host routes to it. `address`: what the
    guest configures. `text`: its form on the wire and in the API. `topology`: the pool's."""

    pool_id: UUID
    topology: str
    network: IPNetwork
    address: IPAddress
    text: str


@dataclass(frozen=True)
class ReleasingAddresses:
    """The addresses that a node will be asked to release. `through`: the last release that its answer covers."""

    addresses: tuple[str, ...]
    through: int


async def allocate(
    tx: Transaction,
    pool_id: UUID,
    *,
    vm_id: UUID,
    nic_id: UUID,
    primary: bool,
    ip: IPAddress | None = None,
    node_id: UUID | None = None,
) -> AllocatedAddress:
    """Take a free address of the pool for a machine on this node, or the address `ip` (for a sub-prefix, any address in
    it).

    Raises `PoolFull`; conflict for an `ip` that is held, set aside or outside the range, and for a pool that is not
    enabled, does not serve the node or whose topology cannot be mixed with that of the NIC's other addresses;
    not_found.
    """
    # Locked before the pool is judged, so that an edit of the pool, or a node's report about it, comes either before
    # all of this or after all of it.
    pool = await lock_pool(tx, pool_id)
    await require_heard(tx, pool)
    if not pool.enabled:
        raise conflict(f"The pool {pool.name} gives out no addresses: it is not enabled.")
    if node_id is not None:
        await _require_served(tx, pool, node_id)
    if not primary:
        await _require_mix(tx, pool, nic_id)
    if ip is not None:
        slot = await _take_this(tx, pool, ip, vm_id, nic_id, primary)
    else:
        slot = await _take_next(tx, pool, vm_id, nic_id, primary)
    network = pool.network_at(slot)
    return AllocatedAddress(pool_id, pool.topology, network, guest_address(network), address_text(network))


async def allocate_first(
    tx: Transaction, pool_ids: Sequence[UUID], *, vm_id: UUID, nic_id: UUID, primary: bool, node_id: UUID | None = None
) -> AllocatedAddress | None:
    """Take an address from the first of these pools that has a free one; None if all are full. A pool that was removed
    since it was chosen, or changed so that it no longer fits, is skipped."""
    for pool_id in pool_ids:
        # In a creation the NIC has no other address yet, so two kinds of pools cannot be mixed on it, and the short
        # statement suffices.
        if primary and node_id is not None:
            taken = await tx.fetchrow(_TAKE_HINTED, pool_id, vm_id, nic_id, primary, node_id)
            if taken is not None:
                network = ip_interface(str(taken["ip"])).network
                return AllocatedAddress(
                    pool_id, taken["topology"], network, guest_address(network), address_text(network)
                )
        try:
            return await allocate(tx, pool_id, vm_id=vm_id, nic_id=nic_id, primary=primary, node_id=node_id)
        except PoolFull:
            continue
        except ServiceError as unfit:
            if unfit.code not in (ErrorCode.CONFLICT, ErrorCode.NOT_FOUND):
                raise
    return None


async def start_release(tx: Transaction, vm_id: UUID, ip: IPAddress | None = None) -> tuple[str, ...]:
    """Start the release of all addresses of a machine that is deleted, or of `ip`, which is detached: from now on they
    wait for the node's confirmation. Returns them as text. With `ip` (for a sub-prefix, any address in it) raises
    not_found if the machine has no such address, and conflict for its primary address and for one that is already being
    released.
    """
    # Pools are locked before the rows of addresses, the order in which addresses are taken, too.
    await lock_pools_of(tx, vm_id)
    if ip is not None:
        held = await tx.fetchrow(
            """SELECT state, is_primary, address_text(ip) AS text FROM allocations
               WHERE vm_id = $1 AND ip >>= $2 FOR UPDATE""",
            vm_id,
            ip,
        )
        if held is None:
            raise not_found(f"The machine has no address {ip}.")
        if held["state"] == "releasing":
            raise conflict(f"{held['text']} is already being released.")
        if held["is_primary"]:
            raise conflict(
                f"{held['text']} is the machine's primary address, which cannot be detached.",
                hint="The primary address is released when the machine is deleted.",
            )
    rows = await tx.fetch(
        """UPDATE allocations SET state = 'releasing', release_id = nextval('releases'), changed_at = now()
           WHERE vm_id = $1 AND state = 'allocated' AND ($2::inet IS NULL OR ip >>= $2)
           RETURNING address_text(ip) AS text""",
        vm_id,
        ip,
    )
    return tuple(row["text"] for row in rows)


async def keep_addresses(tx: Transaction, vm_id: UUID, addresses: Iterable[str]) -> None:
    """The machine stays: undo the start of a release for these addresses, as `start_release` returned them. An address
    that was freed by force meanwhile is skipped; it may be another machine's by now."""
    await lock_pools_of(tx, vm_id)
    await tx.execute(
        """UPDATE allocations SET state = 'allocated', release_id = NULL, changed_at = now()
           WHERE vm_id = $1 AND state = 'releasing' AND address_text(ip) = ANY($2)""",
        vm_id,
        list(addresses),
    )


async def releasing_of(queryable: Queryable, vm_id: UUID) -> ReleasingAddresses | None:
    """The addresses that the machine's node will be asked to release; None if none wait. Read this before the node is
    asked, and pass `through` to `free_removed` together with the answer."""
    row = await queryable.fetchrow(
        """SELECT array_agg(address_text(ip) ORDER BY ip) AS addresses, max(release_id) AS through FROM allocations
           WHERE vm_id = $1 AND state = 'releasing' HAVING count(*) > 0""",
        vm_id,
    )
    return None if row is None else ReleasingAddresses(tuple(row["addresses"]), row["through"])


async def free_removed(
    tx: Transaction, vm_id: UUID, removed: Iterable[str], *, through: int | None = None
) -> list[str]:
    """Free the addresses that the node named, as far as this machine was already releasing them when the node was
    asked. Returns those that are free now.

    `through` is the value that `releasing_of` returned before the node was asked. Without it every release counts,
    which is right only if the release starts in the same transaction. A repeated or late call frees nothing.
    """
    await lock_pools_of(tx, vm_id)
    # The race against which `through` protects: the address is released, the node is asked, an administrator frees the
    # address by force, this machine gets it again and releases it again; only then the answer to the first question
    # arrives.
    # The netmask is set to /32 because a node may name an IPv4 address with its guest's prefix.
    rows = await tx.fetch(
        """DELETE FROM allocations
           WHERE vm_id = $1 AND state = 'releasing' AND ip = ANY (
               SELECT CASE WHEN family(named) = 4 THEN set_masklen(named, 32) ELSE named END
               FROM unnest($2::inet[]) named
           ) AND ($3::bigint IS NULL OR release_id <= $3)
           RETURNING pool_id, slot, address_text(ip) AS text""",
        vm_id,
        [ip_interface(address) for address in removed],
        through,
    )
    await _kept_by_hosts(tx, rows)
    return [row["text"] for row in rows]


async def force_free(tx: Transaction, pool_id: UUID, ip: IPAddress) -> Record:
    """Free an address without its node's confirmation: the caller takes responsibility for that, and audits it. Returns
    `text`, and `vm_id` and `vm_name` of the machine that was releasing it.

    Raises conflict unless it is being released, not_found for another pool's address. A confirmation that the node
    sends later finds nothing to free.
    """
    pool = await lock_pool(tx, pool_id)
    slot = pool.slot_of(ip)
    if slot is None:
        raise not_found(f"The pool {pool.name} has no address {ip}.")
    freed = await tx.fetchrow(
        """DELETE FROM allocations held USING vms
           WHERE held.pool_id = $1 AND held.slot = $2 AND held.state = 'releasing' AND vms.id = held.vm_id
           RETURNING held.pool_id, held.slot, address_text(held.ip) AS text, held.vm_id, vms.name AS vm_name""",
        pool_id,
        slot,
    )
    if freed is None:
        state = await tx.fetchval("SELECT state FROM allocations WHERE pool_id = $1 AND slot = $2", pool_id, slot)
        raise conflict(
            f"{pool.text_at(slot)} is {state or 'free'}; only an address that is being released is freed by force.",
            hint="Detach it, or delete its machine, first." if state == "allocated" else None,
        )
    await _kept_by_hosts(tx, [freed])
    return freed


def new_mac() -> str:
    """A MAC address: 52:54:00, the prefix that QEMU and libvirt use, and three random bytes."""
    return "52:54:00:" + secrets.token_bytes(3).hex(":")


async def new_nic(tx: Transaction, *, vm_id: UUID, network_id: UUID, position: int) -> UUID:
    """A NIC with a MAC address that no other machine has."""
    # A MAC address is tried without looking first whether it is in use: among 16 million a collision is rare, and the
    # unique index detects it.
    while True:
        nic_id: UUID | None = await tx.fetchval(
            """INSERT INTO nics (vm_id, network_id, position, mac) VALUES ($1, $2, $3, $4)
               ON CONFLICT (mac) DO NOTHING RETURNING id""",
            vm_id,
            network_id,
            position,
            new_mac(),
        )
        if nic_id is not None:
            return nic_id


async def _take_next(tx: Transaction, pool: Pool, vm_id: UUID, nic_id: UUID, primary: bool) -> int:
    # The pool's range may have been edited since the hint was written. If the hint is now outside the range, the search
    # starts at the first slot.
    begin = pool.next_slot if pool.first_slot <= pool.next_slot <= pool.last_slot else pool.first_slot
    slot: int | None = await tx.fetchval(
        _TAKE,
        pool.id,
        begin,
        pool.first_slot,
        pool.last_slot,
        vm_id,
        nic_id,
        primary,
        pool.cidr,
        pool.prefix_len,
    )
    if slot is None:
        raise PoolFull(pool.id)
    return slot


async def _take_this(tx: Transaction, pool: Pool, ip: IPAddress, vm_id: UUID, nic_id: UUID, primary: bool) -> int:
    slot = pool.slot_of(ip)
    if slot is None or not pool.first_slot <= slot <= pool.last_slot:
        raise conflict(f"{ip} is outside the range of the pool {pool.name}.")
    taken = await tx.fetchval(
        """INSERT INTO allocations (pool_id, slot, ip, state, vm_id, nic_id, is_primary)
           VALUES ($1, $2, $3, 'allocated', $4, $5, $6) ON CONFLICT (pool_id, slot) DO NOTHING RETURNING slot""",
        pool.id,
        slot,
        pool.network_at(slot),
        vm_id,
        nic_id,
        primary,
    )
    if taken is None:
        raise conflict(f"{pool.text_at(slot)} is not free.", hint="Leave ip out to receive the next free address.")
    return slot


async def _require_served(tx: Transaction, pool: Pool, node_id: UUID) -> None:
    location_id = await tx.fetchval("SELECT location_id FROM nodes WHERE id = $1", node_id)
    if not pool.serves(node_id, location_id):
        raise conflict(f"The pool {pool.name} does not serve the machine's node.")


async def _require_mix(tx: Transaction, pool: Pool, nic_id: UUID) -> None:
    """Raises conflict if the pool's topology cannot be mixed with that of the NIC's other addresses: a NIC is either
    plugged into a bridge (and a VLAN of it), or its host routes to it, but never both."""
    other = await tx.fetchrow(
        """SELECT pools.name, pools.topology, pools.vlan FROM allocations JOIN pools ON pools.id = allocations.pool_id
           WHERE allocations.nic_id = $1 AND allocations.state = 'allocated'
             AND ((pools.topology = 'bridged') <> ($2 = 'bridged') OR pools.vlan IS DISTINCT FROM $3) LIMIT 1""",
        nic_id,
        pool.topology,
        pool.vlan,
    )
    if other is not None:
        raise conflict(
            f"The NIC has an address of the pool {other['name']} ({wiring(other['topology'], other['vlan'])}), which "
            f"cannot be mixed with the pool {pool.name} ({pool.wiring})."
        )


async def _kept_by_hosts(tx: Transaction, freed: Iterable[Record]) -> None:
    """Set aside freed addresses that are not really free: those that a host has itself, or carries for a machine whose
    record does not have them. This happens in the transaction in which the machine releases them."""
    freed = list(freed)
    # A slot has one row, so while the machine held the address, it could not be recorded as blocked, too.
    if carried := await tx.fetch(
        "SELECT ip FROM carried_addresses WHERE ip = ANY($1::inet[])",
        [ip_interface(row["text"]).network for row in freed],
    ):
        await block_carried(tx, [row["ip"] for row in carried])
    # Such an alert was raised when a host named the address as its own while a machine held it. Looking up the alert by
    # its key costs less than comparing the pool's own reservations at each release.
    by_key = {host_address_alert(row["pool_id"], row["text"]): row["pool_id"] for row in freed}
    if not by_key:
        return
    alerts = await tx.fetch("SELECT key FROM alerts WHERE key = ANY($1) AND closed_at IS NULL", list(by_key))
    if not alerts:
        return
    # Pools are locked in the order in which all transactions lock them.
    pools = await tx.fetch(
        "SELECT id FROM pools WHERE id = ANY($1) ORDER BY family, created_at, id",
        [by_key[alert["key"]] for alert in alerts],
    )
    for pool in pools:
        await refresh_host_reservations(tx, pool_id=pool["id"])
