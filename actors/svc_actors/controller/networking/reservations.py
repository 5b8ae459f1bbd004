"""Addresses of a pool that are never given out: reserved by an operator, or used by the pool and its hosts themselves.

Invariants:
- a reservation holds all of its addresses or none; each is a row of `allocations`, under the same constraint as a
  machine's address;
- the pool's own reservations (network, broadcast, gateway, its hosts' own addresses) are computed again whenever
  something on which they depend changes, or an address is freed, and nobody can delete them;
- while a machine holds a host's own address, there is an alert: `pool-host-address:<pool>:<address>`;
- a node's report reserves at most a limited part of a pool, and an observed node's report nothing. Claims beyond that
  raise an alert, `pool-host-claims:<pool>:<node>`. So no node takes a pool away from all others.

Reservations are rows of `allocations` although they never change: if they had a table of their own, taking an address
would need to read two tables, and no constraint could cover both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_interface
from typing import Final
from uuid import UUID

from svc_actors.alerts import Severity, close_alerts, raise_alert
from svc_actors.controller.networking.carried import block_carried
from svc_actors.controller.networking.pool_arithmetic import IPAddress, Slots
from svc_actors.controller.networking.pool_records import Pool, lock_pool
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import conflict, not_found, wrong_field

MOST_RESERVED: Final = 65_536
"""How many addresses one reservation may hold: each is a row."""


MOST_HOST_ADDRESSES: Final = 16
"""The most addresses of one pool that are reserved because a host names them as its own; in a small pool, a quarter of
its addresses. Honest hosts have a few, and a hostile host must leave most of the pool to others."""
_MOST_NAMED: Final = 5


class OwnReservationKind(StrEnum):
    """The kinds of the pool's own reservations."""

    NETWORK = "network"
    BROADCAST = "broadcast"
    GATEWAY = "gateway"
    HOST = "host"


@dataclass(frozen=True)
class _OwnReservation:
    kind: OwnReservationKind
    note: str


@dataclass(frozen=True)
class _Claim:
    """What one node claims of a pool: the slots of its host's own addresses, in order."""

    node_id: UUID
    host: str
    observed: bool
    slots: tuple[int, ...]

    def granted(self, pool: Pool) -> tuple[int, ...]:
        """The slots that are reserved because of the claim: the lowest ones, so that these stay the same at each
        report."""
        return () if self.observed else self.slots[: min(MOST_HOST_ADDRESSES, max(1, pool.count // 4))]

    def complaint(self, pool: Pool) -> str | None:
        refused = self.slots[len(self.granted(pool)) :]
        if not refused:
            return None
        named = ", ".join(pool.text_at(slot) for slot in refused[:_MOST_NAMED])
        which = f"{named} and {len(refused) - _MOST_NAMED} more" if len(refused) > _MOST_NAMED else named
        says = f"says that {len(self.slots)} of its addresses are in the pool {pool.name}"
        if self.observed:
            return (
                f"The host {self.host} is only observed and {says}, so none is set aside for it: {which}. "
                "Reserve them if that is true, or set the node's mode to managed."
            )
        return (
            f"The host {self.host} {says}, and {len(refused)} of them are not set aside for it: {which}. "
            "Reserve them if that is true, or check the host."
        )


async def reserve(
    tx: Transaction, pool_id: UUID, first: IPAddress, last: IPAddress | None, *, kind: str, note: str
) -> Record:
    """Reserve the addresses from `first` to `last`, inclusive; for sub-prefixes, those that contain `first` and `last`
    and all between. Returns the reservation's row. Raises conflict, naming the first address that is not free; invalid
    for addresses outside the pool, a range that ends before it starts or contains more than `MOST_RESERVED`; not_found.
    """
    pool = await lock_pool(tx, pool_id)
    low = _slot(pool, "ip", first)
    high = low if last is None else _slot(pool, "range_end", last)
    if high < low:
        raise wrong_field("range_end", "the range ends before it starts")
    if high - low >= MOST_RESERVED:
        raise wrong_field(
            "range_end",
            f"one reservation holds at most {MOST_RESERVED:,} addresses",
            hint="Narrow the pool's range instead, or make several reservations.",
        )
    await _require_free(tx, pool, low, high, "nothing was reserved")
    return await _insert(tx, pool, low, high, kind=kind, note=note, arithmetic=False)


async def unreserve(tx: Transaction, pool_id: UUID, reservation_id: UUID) -> Record:
    """Free a reservation's addresses. Raises conflict for a reservation of the pool itself, not_found."""
    pool = await lock_pool(tx, pool_id)
    row = await tx.fetchrow("SELECT * FROM reservations WHERE id = $1 AND pool_id = $2", reservation_id, pool_id)
    if row is None:
        raise not_found("There is no such reservation.")
    if row["arithmetic"]:
        raise conflict(
            f"{pool.text_at(row['first_slot'])} is set aside by the pool itself ({row['note']}); the reservation stays."
        )
    await tx.execute("DELETE FROM reservations WHERE id = $1", reservation_id)
    # A host may have named one of these addresses as its own while it was reserved; now the address is reserved for
    # that host.
    await refresh_own_reservations(tx, pool)
    return row


async def block(tx: Transaction, pool_id: UUID, ip: IPAddress, note: str) -> str:
    """Block a free address. Returns it as text. Raises conflict unless it is free, invalid, not_found."""
    pool = await lock_pool(tx, pool_id)
    slot = _slot(pool, "ip", ip)
    await _require_free(tx, pool, slot, slot, "nothing was blocked")
    await tx.execute(
        "INSERT INTO allocations (pool_id, slot, ip, state, note) VALUES ($1, $2, $3, 'blocked', $4)",
        pool.id,
        slot,
        pool.network_at(slot),
        note,
    )
    return pool.text_at(slot)


async def unblock(tx: Transaction, pool_id: UUID, ip: IPAddress) -> str:
    """Set a blocked address free. Returns it as text. Raises conflict if it is not blocked, invalid, not_found."""
    pool = await lock_pool(tx, pool_id)
    slot = _slot(pool, "ip", ip)
    row = await tx.fetchrow(
        "SELECT carried, note FROM allocations WHERE pool_id = $1 AND slot = $2 AND state = 'blocked'", pool.id, slot
    )
    if row is None:
        raise conflict(f"{pool.text_at(slot)} is not blocked.")
    if row["carried"]:
        raise conflict(
            f"{pool.text_at(slot)} stays blocked: {row['note']}",
            hint="Adopt or discard that machine: `svc node orphans`. The address becomes free once no host carries it.",
        )
    await tx.execute("DELETE FROM allocations WHERE pool_id = $1 AND slot = $2", pool.id, slot)
    await block_carried(tx, [pool.network_at(slot)])
    await refresh_own_reservations(tx, pool)
    return pool.text_at(slot)


async def refresh_host_reservations(
    tx: Transaction, *, pool_id: UUID | None = None, location_id: UUID | None = None
) -> None:
    """Update the own reservations of one pool, of a location's pools, or of all, after nodes have reported their hosts'
    addresses, or were added, moved or removed. A pool that does not change is locked, too: another node may be claiming
    an address for its own host at this moment."""
    rows = await tx.fetch(
        """SELECT * FROM pools WHERE ($1::uuid IS NULL OR id = $1) AND ($2::uuid IS NULL OR location_id = $2)
           ORDER BY family, created_at, id FOR NO KEY UPDATE""",
        pool_id,
        location_id,
    )
    for row in rows:
        await refresh_own_reservations(tx, Pool.of(row))


async def refresh_own_reservations(tx: Transaction, pool: Pool) -> None:
    """Insert the pool's own reservations that are missing, delete those that no longer apply, and raise and close the
    alerts about them. The caller has locked the pool."""
    # The reservations are computed anew and compared with the existing ones, instead of being updated for each change.
    # Reports of hosts, edits of the pool and freed addresses come in any order, and a change missed once would stay
    # missing.
    claims = await _claims(tx, pool)
    wanted = _own_reservations(pool, claims)
    existing = await _existing(tx, pool.id)
    # A reservation whose reason has changed (for example, the address now belongs to another host) is deleted and
    # inserted again.
    stale = [id for slot, (id, taken) in existing.items() if wanted.get(slot) != taken]
    if stale:
        await tx.execute("DELETE FROM reservations WHERE id = ANY($1)", stale)
    missing = [slot for slot, taken in wanted.items() if slot not in existing or existing[slot][1] != taken]
    rows = await tx.fetch(
        """SELECT slot, state, vms.name AS vm_name FROM allocations LEFT JOIN vms ON vms.id = allocations.vm_id
           WHERE pool_id = $1 AND slot = ANY($2)""",
        pool.id,
        missing,
    )
    # Addresses that a machine, an operator's reservation or a block holds already are not reserved. Only those of
    # machines are collisions.
    held = {row["slot"]: row for row in rows}
    for slot in missing:
        if slot not in held:
            taken = wanted[slot]
            await _insert(tx, pool, slot, slot, kind=taken.kind.value, note=taken.note, arithmetic=True)
    collisions = {
        host_address_alert(pool.id, pool.text_at(slot)): (
            f"{pool.text_at(slot)} of the pool {pool.name} is {wanted[slot].note}, and the machine {row['vm_name']} "
            "holds it. Give the host another address, or detach the machine's."
        )
        for slot, row in held.items()
        if row["vm_name"] is not None
    }
    complaints = {
        _claims_alert(pool.id, claim.node_id): complaint
        for claim in claims
        if (complaint := claim.complaint(pool)) is not None
    }
    for key, message in (collisions | complaints).items():
        await raise_alert(tx, key, message, severity=Severity.CRITICAL, resource_kind="pool", resource_id=pool.id)
    await close_alerts(tx, host_address_alert(pool.id, ""), keep=collisions)
    await close_alerts(tx, _claims_alert(pool.id, ""), keep=complaints)


def _claims_alert(pool_id: UUID, node_id: UUID | str) -> str:
    return f"pool-host-claims:{pool_id}:{node_id}"


def host_address_alert(pool_id: UUID, address: str) -> str:
    """The key of the alert about a host's own address that a machine holds."""
    return f"pool-host-address:{pool_id}:{address}"


async def _existing(queryable: Queryable, pool_id: UUID) -> dict[int, tuple[UUID, _OwnReservation]]:
    rows = await queryable.fetch(
        "SELECT id, first_slot, kind, note FROM reservations WHERE pool_id = $1 AND arithmetic", pool_id
    )
    return {
        row["first_slot"]: (row["id"], _OwnReservation(OwnReservationKind(row["kind"]), row["note"])) for row in rows
    }


def _own_reservations(pool: Pool, claims: Sequence[_Claim]) -> dict[int, _OwnReservation]:
    """The slots that the pool and its hosts need for themselves; if there are two reasons for one address, the first
    counts."""
    taken: dict[int, _OwnReservation] = {}
    # Only pools of single addresses have a network and a broadcast address, pools of sub-prefixes do not. In a /31 or a
    # /127 both addresses are hosts' (RFC 3021, RFC 6164). IPv6 has no broadcast address.
    addressed = pool.prefix_len == pool.cidr.max_prefixlen
    if addressed and pool.cidr.prefixlen < pool.cidr.max_prefixlen - 1:
        taken[0] = _OwnReservation(OwnReservationKind.NETWORK, "the network's own address")
        if pool.family == 4:
            taken[pool.count - 1] = _OwnReservation(OwnReservationKind.BROADCAST, "the broadcast address")
    gateway = pool.slot_of(pool.gateway)
    if gateway is not None:
        taken.setdefault(gateway, _OwnReservation(OwnReservationKind.GATEWAY, "the gateway"))
    for claim in claims:
        for slot in claim.granted(pool):
            taken.setdefault(slot, _OwnReservation(OwnReservationKind.HOST, f"an address of the host {claim.host}"))
    return taken


async def _claims(queryable: Queryable, pool: Pool) -> list[_Claim]:
    """The addresses of the pool that nodes of its location claim, the oldest node first."""
    # Only nodes of the pool's location count: private addresses elsewhere may be the same. The oldest node comes first,
    # so that of two nodes that name the same address, the same one gets it each time.
    nodes = await queryable.fetch(
        """SELECT id, name, mode, facts->'host_addresses' AS addresses FROM nodes
           WHERE location_id = $1 AND deleted_at IS NULL AND jsonb_typeof(facts->'host_addresses') = 'array'
           ORDER BY created_at, id""",
        pool.location_id,
    )
    claims = []
    for node in nodes:
        slots = {pool.slot_of(ip_interface(address).ip) for address in node["addresses"]}
        own = tuple(sorted(slot for slot in slots if slot is not None))
        if own:
            claims.append(_Claim(node["id"], node["name"], node["mode"] == "observe", own))
    return claims


async def _require_free(tx: Transaction, pool: Pool, low: int, high: int, outcome: str) -> None:
    held = await tx.fetchrow(
        """SELECT slot, state, vms.name AS vm_name FROM allocations LEFT JOIN vms ON vms.id = allocations.vm_id
           WHERE pool_id = $1 AND slot BETWEEN $2 AND $3 ORDER BY slot LIMIT 1""",
        pool.id,
        low,
        high,
    )
    if held is not None:
        text = pool.text_at(held["slot"])
        is_held = f"held by the machine {held['vm_name']}" if held["state"] == "allocated" else held["state"]
        raise conflict(f"{text} is {is_held}; {outcome}.", details={"ip": text, "state": held["state"]})


async def _insert(
    tx: Transaction, pool: Pool, low: int, high: int, *, kind: str, note: str, arithmetic: bool
) -> Record:
    row = await tx.fetchone(
        """INSERT INTO reservations (pool_id, first_slot, last_slot, kind, note, arithmetic)
               VALUES ($1, $2, $3, $4, $5, $6) RETURNING *""",
        pool.id,
        low,
        high,
        kind,
        note,
        arithmetic,
    )
    await tx.execute(
        """INSERT INTO allocations (pool_id, slot, ip, state, reservation_id)
           SELECT $1, slot, pool_address($5, $6, slot), 'reserved', $4
           FROM generate_series($2::bigint, $3::bigint) slot""",
        pool.id,
        low,
        high,
        row["id"],
        pool.cidr,
        pool.prefix_len,
    )
    return row


def _slot(pool: Slots, field: str, ip: IPAddress) -> int:
    slot = pool.slot_of(ip)
    if slot is None:
        raise wrong_field(field, f"{ip} is not inside {pool.cidr}")
    return slot
