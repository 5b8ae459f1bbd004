"""What a pool needs of a host's kernel, and which hosts have reported that they lack it.

Invariant: a pool is not defined for a host that has reported it cannot carry the pool, and a machine with an address of
the pool is not placed on such a host. A host that has not reported yet does not prevent a pool's definition; placement
judges the host once it has reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_interface
from typing import Any

from svc_actors.controller.networking.pool_definitions import PoolDefinition
from svc_actors.store import Record, Transaction
from svc_common.errors import conflict, wrong_field


def needs(pool: Mapping[str, Any] | Record) -> tuple[str, ...]:
    """The features that a host needs for such a pool, by the names of `NodeFacts.network_lacks`; `pool` has the columns
    family, topology, vlan and gateway. On a bridge another device is the gateway; otherwise the gateway's address
    becomes one of the host's."""
    # `scheduler._FITTING` computes the same in SQL.
    return (
        pool["topology"],
        *(("ipv6",) if pool["family"] == 6 else ()),
        *(("vlan",) if pool["vlan"] is not None else ()),
        *((f"gateway:{pool['gateway']}",) if pool["topology"] != "bridged" else ()),
    )


def lack(facts: Mapping[str, Any] | None, features: tuple[str, ...]) -> str | None:
    """Why a host with these facts lacks one of the features, in the host's own words; None if it lacks none, or has not
    reported."""
    # Only a feature that the agent names as missing counts, unlike with platforms: an agent names each feature that its
    # kernel does not have.
    lacks: Mapping[str, str] = (facts or {}).get("network_lacks") or {}
    return next((f"{feature}: {lacks[feature]}" for feature in features if feature in lacks), None)


async def require_carriers(tx: Transaction, pool: PoolDefinition) -> None:
    """Raise conflict if a node that the pool serves cannot carry it, and invalid if the pool names nodes of another
    location."""
    rows = await tx.fetch(
        """SELECT id, name, facts FROM nodes WHERE location_id = $1 AND deleted_at IS NULL
           AND (cardinality($2::uuid[]) = 0 OR id = ANY($2)) ORDER BY name""",
        pool.location_id,
        list(pool.node_ids),
    )
    strangers = set(pool.node_ids) - {row["id"] for row in rows}
    if strangers:
        raise wrong_field("node_ids", f"the location has no node {min(str(stranger) for stranger in strangers)}")
    await _require_own_gateway(tx, pool)
    wanted = needs({"family": pool.family, **pool.columns()})
    lacking = [(row["name"], reason) for row in rows if (reason := lack(row["facts"], wanted)) is not None]
    if lacking:
        name, reason = lacking[0]
        raise conflict(
            f"The node {name} cannot carry this pool: {reason}",
            hint="Name the nodes that it serves in node_ids, or choose another topology.",
            details={"nodes": [{"node": name, "reason": reason} for name, reason in lacking]},
        )


async def _require_own_gateway(tx: Transaction, pool: PoolDefinition) -> None:
    """Raise conflict if the pool's gateway is an address of a host of its location. Each host that carries the pool
    would answer for this address, and could no longer reach the host that has it."""
    # Neither can conflict with a host's address: on a bridge no host answers for the gateway, and a link-local gateway
    # (fe80::1) is each host's own on each link.
    if pool.topology == "bridged" or pool.gateway.is_link_local:
        return
    rows = await tx.fetch(
        """SELECT name, facts->'host_addresses' AS addresses FROM nodes
           WHERE location_id = $1 AND deleted_at IS NULL AND jsonb_typeof(facts->'host_addresses') = 'array'
           ORDER BY name""",
        pool.location_id,
    )
    for row in rows:
        if any(ip_interface(address).ip == pool.gateway for address in row["addresses"]):
            raise conflict(
                f"The gateway {pool.gateway} is an address of the node {row['name']}; nothing was changed.",
                hint="Choose a gateway that nothing else answers for.",
            )
