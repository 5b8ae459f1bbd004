"""Ask a node which networks of machines it carries, and repair differences from the records.

A node is asked after every inventory. Differences are stored on the node and raised as an alert, until a probe finds
agreement. On a managed node they are repaired: the network of a machine that differs is applied again under a new
generation, and addresses that a deleted machine has left are released. On an observed node they are only shown.

Invariant: repairs concern only our own networks, and no machine that is recorded on another node, that has no record,
or that has not been confirmed since a restore (`orphans`).

Drift is judged only of machines without an open task or an outstanding change: their records are read before and after
the answer, since a change that was made meanwhile would look like a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol
from uuid import UUID, uuid4

import structlog

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.records import ISOLATED
from svc_actors.controller.machines.spec import held_network
from svc_actors.controller.networking.changes import network_applied, network_changed
from svc_actors.controller.networking.drift import NetworkDrift, RecordedNetwork, compare
from svc_actors.controller.networking.pool_arithmetic import address_text
from svc_actors.controller.nodes.node import Node
from svc_actors.controller.nodes.records import NodeMode, get_node
from svc_actors.controller.reconcile.orphans import compare_with_records
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, Transaction
from svc_nodeagent.protocol import (
    NodeNetProbe,
    NodeOperation,
    ObservedNetwork,
    OperationId,
    OperationResult,
    ProbeResult,
    VmNetRelease,
)

PROBE_TIMEOUT: Final = 60.0
_RELEASE_TIMEOUT: Final = 30.0
log = structlog.get_logger(__name__)


class ProbedGateway(Protocol):
    """The part of the gateway that the probe uses."""

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult: ...

    async def perform(
        self, node_id: UUID, operation_id: OperationId, operation: NodeOperation, *, timeout: float
    ) -> OperationResult: ...

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None: ...


class NetworkProbe:
    """One per process. `recheck` requests another inspection of a node soon: after a repair, to see whether the repair
    helped."""

    def __init__(
        self, database: Database, gateway: ProbedGateway, system: ActorSystem, recheck: Callable[[UUID], None]
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._system = system
        self._recheck = recheck

    async def probe(self, node_id: UUID) -> None:
        """Ask, record and repair. If the node does not answer, raises what a query raises."""
        before = await self._recorded(node_id)
        try:
            result = await self._gateway.query(node_id, NodeNetProbe(), timeout=PROBE_TIMEOUT)
        except OperationFailed as failure:
            log.warning("network_probe.refused", node_id=str(node_id), error=failure.message)
            return
        if not isinstance(result, ProbeResult):
            return
        found = compare(before, await self._recorded(node_id), result)
        await self._database.transact(partial(compare_with_records, node_id=node_id, networks=result.machines))
        news = await self._system.ref(Node, str(node_id)).ask(Node.network_probed, found)
        if not found.differences or (await get_node(self._database, node_id)).mode is not NodeMode.MANAGED:
            return
        await self._mend(node_id, found, {network.vm_id: network for network in result.machines})
        # Inspect again soon only because of a difference that is new. A difference that persists is repaired at each
        # inventory; without this condition it would cause an endless loop of inspections.
        if news:
            self._recheck(node_id)

    async def _mend(self, node_id: UUID, found: NetworkDrift, observed: dict[UUID, ObservedNetwork]) -> None:
        differing = sorted({each.vm_id for each in found.differences if each.vm_id is not None})

        async def write(tx: Transaction) -> None:
            rows = await tx.fetch(
                "SELECT id FROM vms WHERE id = ANY($1::uuid[]) AND node_id = $2 AND deleted_at IS NULL"
                " AND NOT unconfirmed ORDER BY id FOR NO KEY UPDATE",
                differing,
                node_id,
            )
            for row in rows:
                # A host that is ahead of the records (which are from a backup) would ignore a generation lower than its
                # own. So the host's generation is recorded first, and the new generation is above it.
                if (network := observed.get(row["id"])) is not None:
                    await network_applied(tx, row["id"], network.generation)
            await network_changed(tx, [row["id"] for row in rows])

        await self._database.transact(write)
        await self._release(node_id, found.strays)

    async def _release(self, node_id: UUID, strays: Sequence[ObservedNetwork]) -> None:
        """Have the node release the addresses that deleted machines have left on it. Recorded addresses that wait to be
        released are freed by the network watch alone."""
        # Only machines recorded as deleted: one without any record may, after a restore, be a customer's running
        # machine.
        deleted = {
            row["id"]
            for row in await self._database.fetch(
                "SELECT id FROM vms WHERE id = ANY($1::uuid[]) AND deleted_at IS NOT NULL",
                [stray.vm_id for stray in strays],
            )
        }
        for stray in strays:
            if stray.vm_id not in deleted:
                continue
            operation_id = OperationId(f"stray:{stray.vm_id}:{uuid4()}")
            addresses = tuple(address_text(held_network(address)) for address in stray.addresses)
            operation = VmNetRelease(vm_id=stray.vm_id, addresses=addresses)
            try:
                await self._gateway.perform(node_id, operation_id, operation, timeout=_RELEASE_TIMEOUT)
            except OperationFailed as failure:
                log.warning("network_probe.stray_not_released", vm_id=str(stray.vm_id), error=failure.message)
            await self._gateway.acknowledge(node_id, operation_id)

    async def _recorded(self, node_id: UUID) -> dict[UUID, RecordedNetwork]:
        rows = await self._database.fetch(
            f"""SELECT vms.id, vms.name, vms.net_wanted, vms.net_applied, {ISOLATED} AS isolated,
                      array(SELECT ip FROM allocations WHERE vm_id = vms.id AND state = 'allocated') AS held,
                      vms.net_applied = vms.net_wanted AND vms.built_at IS NOT NULL
                      AND vms.moved_from IS NULL AND vms.status IN ('stopped', 'running') AND NOT EXISTS (
                          SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                                              AND tasks.status IN ('queued', 'running')) AS settled
               FROM vms WHERE $1 IN (node_id, moved_from) AND deleted_at IS NULL""",
            node_id,
        )
        return {
            row["id"]: RecordedNetwork(
                vm_id=row["id"],
                name=row["name"],
                wanted=row["net_wanted"],
                applied=row["net_applied"],
                isolated=row["isolated"],
                networks=frozenset(held_network(ip) for ip in row["held"]),
                settled=row["settled"],
            )
            for row in rows
        }
