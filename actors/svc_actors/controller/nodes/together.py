"""Processes reports of all nodes at once, so that one node's bad data affects that node only.

All reports are processed together if possible, because a thousand nodes are then one statement; if that fails, node by
node. An outage of the database is no node's fault: then the whole call fails and is retried.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from svc_common.errors import ErrorCode, ServiceError

log = structlog.get_logger(__name__)


async def for_nodes(what: str, nodes: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[object]]) -> None:
    """Do `work` for these nodes. A node for which it fails is logged and skipped. `work` must be repeatable."""
    try:
        await work(nodes)
    except ServiceError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            raise
        await _each(what, nodes, work, error)
    except Exception as error:  # noqa: BLE001 - one node's data may be the cause: each is then processed alone
        await _each(what, nodes, work, error)


async def _each(
    what: str, nodes: Sequence[UUID], work: Callable[[Sequence[UUID]], Awaitable[object]], error: Exception
) -> None:
    if len(nodes) == 1:
        log.error("node.passed_over", node_id=str(nodes[0]), what=what, error=f"{type(error).__name__}: {error}")
        return
    for node_id in nodes:
        await for_nodes(what, [node_id], work)
