"""Attaches and detaches a machine's addresses, and caps its rate.

Invariants:
- the caller has locked the machine's row, so concurrent callers never exceed a limit;
- the host applies the change later: the generation grows in the same transaction (`network_changed`), and a detached
  address becomes free only when the host no longer carries it;
- a machine gets no address, rate or group that its node has reported it cannot apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from svc_actors.controller.machines.records import MachineRow, announce_machine
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.networking.addresses import (
    AllocatedAddress,
    IPAddress,
    PoolFull,
    allocate,
    allocate_first,
    start_release,
)
from svc_actors.controller.networking.changes import cap_rate, network_changed
from svc_actors.controller.networking.pool_needs import lack, needs
from svc_actors.controller.networking.security_groups import require_filterable
from svc_actors.store import Caller, Queryable, Record, Transaction, audit
from svc_common.errors import capacity, conflict, not_found, wrong_field
from svc_nodeagent.protocol import Topology

MOST_ADDRESSES: Final = 64
"""The most addresses of one machine; this limit is for administrators, too."""
IPV4_WITHOUT_PLAN: Final = 1
"""A customer's limit for a machine without a plan: the address that it was created with."""
IPV6_OF_A_CUSTOMER: Final = 8
"""Sub-prefixes that a customer may have on one machine; the specification bounds IPv4 only."""


# Which pools can serve a NIC ($3, in the network $1) of a machine on a node ($2): every pool of the network, or only
# the pool with an id ($4) or with an address ($5), each with the reasons against it. Public pools come first: a machine
# behind NAT cannot be reached from outside, and private addresses (RFC 1918, RFC 6598, RFC 4193) are not routed. Among
# equals the oldest comes first.
_POOLS: Final = """
SELECT pools.id, pools.name, pools.family, pools.topology, pools.vlan, pools.gateway, pools.enabled,
       pools.network_id = $1 AS of_the_network,
       nodes.id IS NOT NULL AND pools.location_id = nodes.location_id
       AND (cardinality(pools.node_ids) = 0 OR nodes.id = ANY(pools.node_ids)) AS serves,
       NOT EXISTS (
           SELECT FROM allocations held JOIN pools other ON other.id = held.pool_id
           WHERE held.nic_id = $3 AND held.state = 'allocated'
             AND ((other.topology = 'bridged') <> (pools.topology = 'bridged')
                  OR other.vlan IS DISTINCT FROM pools.vlan)
       ) AS mixes
FROM pools LEFT JOIN nodes ON nodes.id = $2
WHERE ($4::uuid IS NULL OR pools.id = $4) AND ($5::inet IS NULL OR $5 <<= pools.cidr)
ORDER BY pools.topology = 'nat' OR EXISTS (
             SELECT FROM unnest('{10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7}'::cidr[]) AS private
             WHERE pools.cidr <<= private
         ), pools.created_at, pools.id"""


@dataclass(frozen=True)
class NewAddress:
    """The requested address. None leaves the choice to the service: the family is that of `ip` or `pool_id`, else 4;
    the NIC is the first. `bounded`: the plan's limit applies, as for a customer."""

    family: int | None = None
    pool_id: UUID | None = None
    ip: IPAddress | None = None
    nic_id: UUID | None = None
    bounded: bool = True


async def attach(tx: Transaction, caller: Caller, vm: MachineRow, address: NewAddress) -> str:
    """Allocate an address from a pool that serves the machine's node and NIC. Returns it as text.

    Raises capacity (no address is free, or the machine has as many as it may have), conflict (the machine cannot be
    changed, the pool does not fit, the ip is not free, the node cannot carry it), not_found (NIC, pool), invalid.
    """
    require_changeable(vm)
    nic = await _nic(tx, vm, address.nic_id)
    facts = await tx.fetchval("SELECT facts FROM nodes WHERE id = $1", vm.node_id)
    pools = await _pools(tx, vm, nic, address)
    family = pools[0]["family"]
    await _require_room(tx, vm, family, bounded=address.bounded)
    carried = [pool for pool in pools if _lack(facts, pool) is None]
    if not carried and address.bounded:
        raise conflict(f"The machine's host cannot carry a further IPv{family} address; nothing was changed.")
    if not carried:
        raise conflict(
            f"The machine's node cannot carry an address of the pool {pools[0]['name']}: {_lack(facts, pools[0])}",
            hint="Choose another pool.",
        )
    taken = await _take(tx, vm, nic["id"], carried, address)
    if taken.topology == Topology.BRIDGED.value:
        await require_filterable(tx, vm.id)
    await network_changed(tx, [vm.id])
    await _record(tx, caller, vm, {"ip": taken.text})
    return taken.text


async def detach(tx: Transaction, caller: Caller, vm: MachineRow, ip: IPAddress) -> None:
    """Release one address (of a sub-prefix, any address in it). Raises not_found, and conflict for the primary address
    and for one that is already being released."""
    require_changeable(vm)
    released = await start_release(tx, vm.id, ip)
    await network_changed(tx, [vm.id])
    await _record(tx, caller, vm, {"ip": ", ".join(released)})


async def set_rate(tx: Transaction, caller: Caller, vm: MachineRow, rate_mbps: int | None) -> None:
    """Set the operator's cap on the machine's traffic; None removes it. Raises conflict if its node cannot limit
    rates."""
    require_changeable(vm)
    facts = await tx.fetchval("SELECT facts FROM nodes WHERE id = $1", vm.node_id)
    if rate_mbps is not None and (reason := lack(facts, ("rate",))) is not None:
        raise conflict(f"The machine's node cannot hold a rate: {reason}", hint="Nothing was changed.")
    before = await cap_rate(tx, vm.id, rate_mbps)
    await _record(tx, caller, vm, {"rate_mbps": rate_mbps, "before": before})


def require_changeable(vm: MachineRow) -> None:
    """Raises conflict for a machine that is being deleted, is deleted, or has failed."""
    if vm.status in (MachineStatus.DELETING, MachineStatus.DELETED, MachineStatus.FAILED):
        raise conflict(
            f"The machine is {vm.status.value}; its network was not changed.", details={"status": vm.status.value}
        )


async def _nic(tx: Transaction, vm: MachineRow, nic_id: UUID | None) -> Record:
    nic = await tx.fetchrow(
        """SELECT nics.id, nics.network_id, networks.name AS network
           FROM nics JOIN networks ON networks.id = nics.network_id
           WHERE nics.vm_id = $1 AND ($2::uuid IS NULL OR nics.id = $2) ORDER BY nics.position LIMIT 1""",
        vm.id,
        nic_id,
    )
    if nic is None:
        raise not_found("The machine has no such NIC.")
    return nic


async def offered_pools(queryable: Queryable, vm_id: UUID, node_id: UUID | None) -> list[Record]:
    """The pools for a further address of the machine's first NIC, in the order in which they are tried."""
    nic = await queryable.fetchrow("SELECT id, network_id FROM nics WHERE vm_id = $1 ORDER BY position LIMIT 1", vm_id)
    if nic is None:
        return []
    facts = await queryable.fetchval("SELECT facts FROM nodes WHERE id = $1", node_id)
    rows = await queryable.fetch(_POOLS, nic["network_id"], node_id, nic["id"], None, None)
    return [row for row in rows if row["mixes"] and _unfit(row) is None and _lack(facts, row) is None]


async def _pools(tx: Transaction, vm: MachineRow, nic: Record, wanted: NewAddress) -> list[Record]:
    """The pools to try, in order; at least one, all of one family."""
    family = wanted.family
    if wanted.ip is not None:
        if family not in (None, wanted.ip.version):
            raise wrong_field("family", f"{wanted.ip} is an IPv{wanted.ip.version} address")
        family = wanted.ip.version
    rows = await tx.fetch(_POOLS, nic["network_id"], vm.node_id, nic["id"], wanted.pool_id, wanted.ip)
    if wanted.bounded and (wanted.pool_id is not None or wanted.ip is not None):
        rows = [row for row in rows if row["mixes"] and _unfit(row) is None]
    if wanted.pool_id is not None or wanted.ip is not None:
        return [_the_pool(rows, wanted, family, "" if wanted.bounded else f" of the network {nic['network']}")]
    family = family or 4
    fitting = [row for row in rows if row["family"] == family and row["mixes"] and _unfit(row) is None]
    if not fitting:
        raise capacity(
            f"No pool of the machine's network has IPv{family} addresses for its node; nothing was changed.",
            hint="An administrator adds a pool to the machine's network.",
        )
    return fitting


def _the_pool(rows: list[Record], wanted: NewAddress, family: int | None, network: str) -> Record:
    """The pool that the request names, by its id or by an address in it; `network` is the end of a message."""
    if not rows and wanted.ip is None:
        raise not_found("There is no such pool.")
    if not rows and wanted.pool_id is not None:
        raise conflict(f"{wanted.ip} is not in that pool; nothing was changed.")
    if not rows:
        raise conflict(f"{wanted.ip} is in no pool{network} that the machine can use; nothing was changed.")
    pool = rows[0]
    if family not in (None, pool["family"]):
        raise wrong_field("family", f"the pool {pool['name']} is of IPv{pool['family']}")
    reason = _unfit(pool)
    if reason is not None:
        raise conflict(f"The pool {pool['name']} {reason}; nothing was changed.")
    return pool


def _unfit(pool: Record) -> str | None:
    if not pool["enabled"]:
        return "is not enabled"
    if not pool["of_the_network"]:
        return "is of another network than the NIC"
    return None if pool["serves"] else "does not serve the machine's node"


async def _require_room(tx: Transaction, vm: MachineRow, family: int, *, bounded: bool) -> None:
    """Raises capacity at the limits. Addresses that are being released do not count towards the first limit, since the
    machine no longer uses them. But while its host is away, none of these becomes free: so the sum of both is limited,
    too, or one machine could empty a pool."""
    held = await tx.fetchone(
        """SELECT count(*) AS all, count(*) FILTER (WHERE family(ip) = $2) AS of_the_family_in_all,
                      count(*) FILTER (WHERE family(ip) = $2 AND state = 'allocated') AS of_the_family
               FROM allocations WHERE vm_id = $1""",
        vm.id,
        family,
    )
    if held["all"] >= MOST_ADDRESSES:
        raise capacity(
            f"The machine has {held['all']} addresses, including those being released, as many as it may have."
        )
    if not bounded:
        return
    allowed = IPV6_OF_A_CUSTOMER
    if family == 4:
        allowed = await ipv4_allowed(tx, vm.plan_id)
    if held["of_the_family"] >= allowed:
        raise capacity(
            f"The machine has {held['of_the_family']} of the {allowed} IPv{family} addresses that it may have; "
            "none was attached.",
            hint="Detach one, or ask for a plan with more.",
            details={"allowed": allowed, "held": held["of_the_family"]},
        )
    if held["of_the_family_in_all"] >= 2 * allowed:
        raise capacity(
            "The addresses detached last are still being released; none was attached.",
            hint="Try again once the machine's host has released them.",
        )


async def require_addresses_allowed(tx: Transaction, vm: MachineRow, plan_id: UUID | None) -> None:
    """Raises conflict if the machine has more IPv4 addresses than a customer may have with this plan."""
    allowed = await ipv4_allowed(tx, plan_id)
    held: int = await tx.fetchval(
        "SELECT count(*) FROM allocations WHERE vm_id = $1 AND family(ip) = 4 AND state = 'allocated'", vm.id
    )
    if held > allowed:
        raise conflict(
            f"The machine has {held} IPv4 addresses, and the plan allows {allowed}; nothing was changed.",
            hint=f"Detach {held - allowed} first.",
            details={"allowed": allowed, "held": held},
        )


async def ipv4_allowed(queryable: Queryable, plan_id: UUID | None) -> int:
    """How many IPv4 addresses a customer may have on a machine of this plan."""
    if plan_id is None:
        return IPV4_WITHOUT_PLAN
    count: int = await queryable.fetchval("SELECT ipv4_count FROM plans WHERE id = $1", plan_id)
    return count


async def _take(
    tx: Transaction, vm: MachineRow, nic_id: UUID, pools: list[Record], wanted: NewAddress
) -> AllocatedAddress:
    whose: Any = {"vm_id": vm.id, "nic_id": nic_id, "primary": False, "node_id": vm.node_id}
    if wanted.pool_id is None and wanted.ip is None:
        taken = await allocate_first(tx, [pool["id"] for pool in pools], **whose)
    else:
        try:
            taken = await allocate(tx, pools[0]["id"], ip=wanted.ip, **whose)
        except PoolFull:
            taken = None
    if taken is None:
        raise capacity(
            "No address is free for this machine; nothing was changed.",
            hint="Ask an administrator for another pool.",
            details={"full_pools": len(pools)},
        )
    return taken


def _lack(facts: Mapping[str, Any] | None, pool: Record) -> str | None:
    return lack(facts, needs(pool))


async def _record(tx: Transaction, caller: Caller, vm: MachineRow, details: dict[str, Any]) -> None:
    await audit.record(tx, caller, vm.target, details)
    await announce_machine(tx, vm.id)
