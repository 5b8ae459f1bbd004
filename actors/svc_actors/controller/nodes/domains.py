"""The hypervisor's domains on a node: as the host itself answers, or from its last inventory if the answer takes too
long.

Changes of single guests are recorded here; the Node actor records whole inventories.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.gateway.gateway import Gateway, NodeUnavailable, OperationFailed
from svc_actors.store import Database, Queryable
from svc_nodeagent.protocol import DomainState, InventoryResult, NodeInventory

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


async def note_domain_changes(
    queryable: Queryable, changes: Sequence[tuple[UUID, UUID, DomainState]]
) -> dict[UUID, tuple[UUID | None, UUID | None]]:
    """Record nodes' reports of machines (node, machine, state), in one statement for all. Returns for each existing
    machine the node on which it is placed, and the other node of its move.

    The placement is read without the machine's lock, since a holder of the lock must not delay the nodes' reports; it
    is read again under the lock.
    """
    rows = await queryable.fetch(
        """WITH noted AS (
               UPDATE observed_domains SET state = seen.state, seen_at = now()
               FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS seen (node_id, vm_id, state)
               WHERE observed_domains.node_id = seen.node_id AND observed_domains.vm_id = seen.vm_id
           )
           SELECT id, node_id, coalesce(moved_from, moving_to) AS moves_with FROM vms
           WHERE id = ANY($2::uuid[]) AND deleted_at IS NULL""",
        [node_id for node_id, _, _ in changes],
        [vm_id for _, vm_id, _ in changes],
        [state.value for _, _, state in changes],
    )
    return {row["id"]: (row["node_id"], row["moves_with"]) for row in rows}
