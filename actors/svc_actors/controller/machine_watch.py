"""What is done about machines in the background: addresses that wait for their node, domains that nobody knows.

Invariants:
- an address is freed by its node's word alone: what a deletion did not name, and what a creation that failed held, is
  asked for again until the node does;
- a domain of ours that no record knows is shown by an alert and left alone: nobody's disks are destroyed by a guess.
"""

from __future__ import annotations

from typing import Final, Protocol
from uuid import UUID, uuid4

import structlog
import trio

from svc_actors.controller.addresses import free_removed
from svc_actors.controller.alerts import close_alert, raise_alert
from svc_actors.controller.gateway import OperationFailed
from svc_actors.errors import ServiceError
from svc_actors.store import Database
from svc_nodeagent.protocol import NodeOperation, OperationId, OperationResult, ReleaseResult, VmNetRelease

_RELEASE_TIMEOUT: Final = 30.0
_ORPHAN: Final = "orphan:"
log = structlog.get_logger(__name__)


class ReleasingGateway(Protocol):
    """What the watch needs of the gateway."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def perform(
        self, node_id: UUID, operation_id: OperationId, operation: NodeOperation, *, timeout: float
    ) -> OperationResult: ...

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None: ...


class MachineWatch:
    """One a process; `run` under the composer's nursery."""

    def __init__(self, database: Database, gateway: ReleasingGateway, *, interval: float = 30.0) -> None:
        self._database = database
        self._gateway = gateway
        self._interval = interval

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            await trio.sleep(self._interval)
            try:
                await self.release()
                await self.point_out_orphans()
            except ServiceError as error:
                log.warning("machine_watch.interrupted", error=error.message)
            except Exception:
                # A defect in one round: the watch, and the controller with it, goes on.
                log.exception("machine_watch.failed")

    async def release(self) -> None:
        """Ask every online node for the addresses that machines gone or never built there hold, all nodes at once."""
        rows = await self._database.fetch(
            """SELECT vms.node_id, held.vm_id, array_agg(host(held.ip)) AS addresses
               FROM allocations held JOIN vms ON vms.id = held.vm_id
               WHERE held.state = 'releasing' AND vms.node_id IS NOT NULL
                 AND (vms.deleted_at IS NOT NULL OR vms.built_at IS NULL AND vms.status = 'failed')
               GROUP BY vms.node_id, held.vm_id"""
        )
        async with trio.open_nursery() as nursery:
            for row in rows:
                if self._gateway.is_online(row["node_id"]):
                    nursery.start_soon(self._release, row["node_id"], row["vm_id"], tuple(row["addresses"]))

    async def point_out_orphans(self) -> None:
        """An alert for each domain of ours, on a managed node, whose machine the records do not have there."""
        async with self._database.transaction() as tx:
            orphans = await tx.fetch(
                """SELECT seen.node_id, seen.name, seen.vm_id, nodes.name AS node
                   FROM observed_domains seen
                   JOIN nodes ON nodes.id = seen.node_id AND nodes.mode = 'managed' AND nodes.deleted_at IS NULL
                   WHERE seen.vm_id IS NOT NULL AND seen.state <> 'absent' AND NOT EXISTS (
                       SELECT FROM vms WHERE vms.id = seen.vm_id AND vms.node_id = seen.node_id
                                         AND (vms.deleted_at IS NULL OR vms.deleted_at > seen.seen_at))"""
            )
            keys = []
            for row in orphans:
                keys.append(f"{_ORPHAN}{row['node_id']}:{row['vm_id']}")
                await raise_alert(
                    tx,
                    keys[-1],
                    f"Node {row['node']} has the domain {row['name']} of a machine that is not recorded there.",
                    resource_kind="node",
                    resource_id=row["node_id"],
                )
            gone = await tx.fetch(
                "SELECT key FROM alerts WHERE closed_at IS NULL AND starts_with(key, $1) AND key <> ALL($2::text[])",
                _ORPHAN,
                keys,
            )
            for row in gone:
                await close_alert(tx, row["key"])

    async def _release(self, node_id: UUID, vm_id: UUID, addresses: tuple[str, ...]) -> None:
        operation_id = OperationId(f"release:{uuid4()}")
        operation = VmNetRelease(vm_id=vm_id, addresses=addresses)
        try:
            result = await self._gateway.perform(node_id, operation_id, operation, timeout=_RELEASE_TIMEOUT)
            if isinstance(result, ReleaseResult) and result.vm_id == vm_id:
                async with self._database.transaction() as tx:
                    await free_removed(tx, vm_id, result.removed)
        except OperationFailed as failure:
            log.warning("machine_watch.not_released", vm_id=str(vm_id), error=failure.message)
        except ServiceError as error:
            log.warning("machine_watch.not_released", vm_id=str(vm_id), error=error.message)
            return
        await self._gateway.acknowledge(node_id, operation_id)
