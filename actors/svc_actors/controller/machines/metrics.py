"""A machine's metrics, fetched from its node as they are asked for; nothing of them is kept here."""

from __future__ import annotations

from typing import Final, Protocol
from uuid import UUID

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.errors import unavailable
from svc_nodeagent.protocol import FailureCode, MetricsResult, NodeOperation, OperationResult, VmMetrics
from svc_nodeagent.protocol import MetricPoint as MetricPoint

_TIMEOUT: Final = 15.0
MAX_POINTS: Final = 5000


class NodeQueries(Protocol):
    """What metrics need of the gateway."""

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult: ...


async def machine_metrics(
    gateway: NodeQueries, *, node_id: UUID | None, vm_id: UUID, resolution_seconds: int, hours: int
) -> MetricsResult:
    """The points of the last `hours`, oldest first; none where the node has not measured it yet, as after a move.
    Raises unavailable when the node is offline. The resolution is made coarser where the points would be too many."""
    if node_id is None:
        raise unavailable("The machine is on no node, so nothing measures it.")
    resolution = max(resolution_seconds, -(-hours * 3600 // MAX_POINTS))
    operation = VmMetrics(vm_id=vm_id, resolution_seconds=resolution, hours=hours)
    try:
        result = await gateway.query(node_id, operation, timeout=_TIMEOUT)
    except OperationFailed as failure:
        if failure.code is FailureCode.NOT_FOUND:
            return MetricsResult(vm_id=vm_id, resolution_seconds=resolution, points=())
        raise unavailable(f"The node could not report it: {failure.message}", hint=failure.hint) from failure
    if not isinstance(result, MetricsResult):
        raise TypeError(f"vm.metrics was answered with {result.kind}")
    return result
