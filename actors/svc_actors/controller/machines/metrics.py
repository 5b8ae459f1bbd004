"""A machine's metrics, fetched from its node on request; the controller stores none of them."""

from __future__ import annotations

from typing import Final, Protocol
from uuid import UUID

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_common.errors import unavailable
from svc_nodeagent.protocol import FailureCode, MetricsResult, NodeOperation, OperationResult, VmMetrics
from svc_nodeagent.protocol import MetricPoint as MetricPoint

_TIMEOUT: Final = 15.0
MAX_POINTS: Final = 5000


class NodeQueries(Protocol):
    """The part of the gateway that metrics use."""

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult: ...


async def machine_metrics(
    gateway: NodeQueries, *, node_id: UUID | None, vm_id: UUID, resolution_seconds: int, hours: int
) -> MetricsResult:
    """The points of the last `hours`, oldest first; none if the node has not measured the machine yet, for example
    after a migration. If there would be too many points, the resolution is made coarser. Raises unavailable if the node
    is offline."""
    if node_id is None:
        raise unavailable("The machine is not placed on a node, so it is not measured.")
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
