"""The hypervisor's domains on a node: as the host itself answers, or from its last inventory if the answer takes too
long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.gateway.gateway import Gateway, NodeUnavailable, OperationFailed
from svc_actors.store import Database
from svc_nodeagent.protocol import InventoryResult, NodeInventory

ASK_SECONDS: Final = 5.0
"""How long a caller waits for the host's answer; after that the last inventory is shown."""
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Domain:
    """`vm_id` is None for a foreign domain. `managed`: the domain's machine is placed on this node. `observed_at`: when
    the host was asked, or when it reported a change."""

    uuid: UUID
    name: str
    vm_id: UUID | None
    managed: bool
    state: str
    vcpus: int
    memory_mib: int
    observed_at: datetime


async def domains_of(database: Database, gateway: Gateway, node_id: UUID) -> list[Domain]:
    """The domains, sorted by name. Nothing is recorded: the next inventory does that."""
    asked_at: datetime = await database.fetchval("SELECT clock_timestamp()")
    inventory = await _ask(gateway, node_id)
    if inventory is None:
        return await _recorded(database, node_id)
    placed = {
        row["id"]
        for row in await database.fetch("SELECT id FROM vms WHERE node_id = $1 AND deleted_at IS NULL", node_id)
    }
    return [
        Domain(
            uuid=each.uuid,
            name=each.name,
            vm_id=each.vm_id,
            managed=each.vm_id in placed,
            state=each.state.value,
            vcpus=each.vcpus,
            memory_mib=each.memory_mib,
            observed_at=asked_at,
        )
        for each in sorted(inventory.domains, key=lambda each: (each.name, each.uuid))
    ]


async def _ask(gateway: Gateway, node_id: UUID) -> InventoryResult | None:
    try:
        with trio.move_on_after(ASK_SECONDS):
            answer = await gateway.query(node_id, NodeInventory(), timeout=ASK_SECONDS)
            return answer if isinstance(answer, InventoryResult) else None
    except (NodeUnavailable, OperationFailed) as error:
        log.info("node.domains_as_recorded", node_id=str(node_id), reason=str(error))
    return None


async def _recorded(database: Database, node_id: UUID) -> list[Domain]:
    rows = await database.fetch(
        """
        SELECT d.uuid, d.name, d.vm_id, d.state, d.vcpus, d.memory_mib, d.seen_at AS observed_at,
               vms.id IS NOT NULL AS managed
          FROM observed_domains AS d
          LEFT JOIN vms ON vms.id = d.vm_id AND vms.node_id = d.node_id AND vms.deleted_at IS NULL
         WHERE d.node_id = $1 ORDER BY d.name, d.uuid
        """,
        node_id,
    )
    return [Domain(**row) for row in rows]
