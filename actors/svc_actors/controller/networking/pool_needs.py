"""What a pool asks of a host's kernel, and which hosts have said that they lack it.

Invariant: no pool is defined for a host that has said it cannot carry it, and no machine is placed on one; a host that
has not reported yet is taken at its word later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from svc_actors.controller.networking.pool_definitions import PoolDefinition
from svc_actors.errors import conflict, wrong_field
from svc_actors.store import Transaction


def needs(*, family: int, topology: str, vlan: int | None) -> tuple[str, ...]:
    """The features of `NodeFacts.network_features` that a host needs for such a pool."""
    return (topology, *(("ipv6",) if family == 6 else ()), *(("vlan",) if vlan is not None else ()))


def lack(facts: Mapping[str, Any] | None, wanted: tuple[str, ...]) -> str | None:
    """Why a host with these facts cannot carry what is wanted, in its own words; None when it can, or is not known."""
    lacks: Mapping[str, str] = (facts or {}).get("network_lacks") or {}
    return next((f"{feature}: {lacks[feature]}" for feature in wanted if feature in lacks), None)


async def require_carriers(tx: Transaction, pool: PoolDefinition) -> None:
    """Raise conflict when a node that the pool serves cannot carry it, and invalid when it names nodes that are not of
    its location."""
    rows = await tx.fetch(
        """SELECT id, name, facts FROM nodes WHERE location_id = $1 AND deleted_at IS NULL
           AND (cardinality($2::uuid[]) = 0 OR id = ANY($2)) ORDER BY name""",
        pool.location_id,
        list(pool.node_ids),
    )
    strangers = set(pool.node_ids) - {row["id"] for row in rows}
    if strangers:
        raise wrong_field("node_ids", f"the location has no node {min(str(stranger) for stranger in strangers)}")
    wanted = needs(family=pool.family, topology=pool.topology, vlan=pool.vlan)
    lacking = [(row["name"], reason) for row in rows if (reason := lack(row["facts"], wanted)) is not None]
    if lacking:
        name, reason = lacking[0]
        raise conflict(
            f"The node {name} cannot carry this pool: {reason}",
            hint="Name the nodes that it shall serve in node_ids, or choose another topology.",
            details={"nodes": [{"node": name, "reason": reason} for name, reason in lacking]},
        )
