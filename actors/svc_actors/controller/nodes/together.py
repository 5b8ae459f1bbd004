"""What is done for all nodes at once, so that one node's nonsense costs that node alone.

Whatever goes over what nodes say is done together where that works, since a thousand nodes are one statement then, and
node by node where it fails. A database that is away is nobody's fault: that fails as a whole, and is tried again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from svc_actors.errors import ErrorCode, ServiceError

log = structlog.get_logger(__name__)


async def for_nodes(what: str, nodes: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[object]]) -> None:
    """Do `work` for these nodes. One for which it fails is named in the log and passed over. `work` can be repeated."""
    try:
        await work(nodes)
    except ServiceError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            raise
        await _each(what, nodes, work, error)
    except Exception as error:  # noqa: BLE001 - a defect over one node, which is found by taking each by itself
        await _each(what, nodes, work, error)


async def _each(
    what: str, nodes: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[object]], error: Exception
) -> None:
    if len(nodes) == 1:
        log.error("node.passed_over", node_id=str(nodes[0]), what=what, error=f"{type(error).__name__}: {error}")
        return
    for node_id in nodes:
        await for_nodes(what, [node_id], work)
