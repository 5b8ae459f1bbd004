"""The machines' networks that a node was last seen to carry, and how they differ from the records."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from svc.controller.services import Controller
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.nodes.records import get_node

operations = Operations[Controller]()


class NodeNetworkRequest(Request):
    id: UUID


class NodeDifference(Model):
    """`vm_id` is null if the difference concerns no machine, `vm_name` also if there is no record of the machine."""

    vm_id: UUID | None
    vm_name: str | None
    problem: str


class NodeTap(Model):
    """A tap of ours. `rate_mbps` null: no cap. `dropped`: frames of the guest that were refused since the tap was made,
    by reason (mac, ipv4, ipv6, arp, neighbour, router, dhcp, protocol)."""

    device: str
    vm_id: UUID | None
    vm_name: str | None
    up: bool
    rate_mbps: int | None
    dropped: dict[str, int]


class NodeNetwork(Model):
    """`agrees`: the host's networks match the records; null until the first check. Differences of a managed node are
    repaired automatically; those of an observed node are only shown."""

    probed_at: datetime | None
    agrees: bool | None
    differences: list[NodeDifference]
    taps: list[NodeTap]


@operations.declare(
    "node.network",
    "Show the machine networks on a node, and how they differ from the records",
    Route.get("/nodes/{id}/network"),
    access=Access.STAFF,
    scope=Scope.READ,
)
async def show_network(context: Context[Controller], request: NodeNetworkRequest) -> NodeNetwork:
    database = context.services.database
    await get_node(database, request.id)
    row = await database.fetchone("SELECT network_probe, network_probed_at FROM nodes WHERE id = $1", request.id)
    probe: dict[str, list[dict[str, Any]]] | None = row["network_probe"]
    if probe is None:
        return NodeNetwork(probed_at=None, agrees=None, differences=[], taps=[])
    named = {UUID(each["vm_id"]) for each in (*probe["differences"], *probe["taps"]) if each["vm_id"]}
    names = {
        str(vm["id"]): vm["name"]
        for vm in await database.fetch("SELECT id, name FROM vms WHERE id = ANY($1::uuid[])", list(named))
    }
    return NodeNetwork(
        probed_at=row["network_probed_at"],
        agrees=not probe["differences"],
        differences=[NodeDifference(**each, vm_name=names.get(each["vm_id"])) for each in probe["differences"]],
        taps=[
            NodeTap(
                device=tap["device"],
                vm_id=tap["vm_id"],
                vm_name=names.get(tap["vm_id"]),
                up=tap["up"],
                rate_mbps=tap["rate_mbps"],
                dropped=tap["dropped"],
            )
            for tap in probe["taps"]
        ],
    )
