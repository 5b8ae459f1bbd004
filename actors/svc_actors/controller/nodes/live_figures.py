"""The live figures of nodes, `capacity` and `seen_at`: written only here, for one node or for all connected ones.

They bypass the Node actor: here a thousand heartbeats a minute are one statement, through actors they would be a
thousand messages and transactions.

Invariant: no node delays another. When all are written, a node whose row is locked is skipped, and its figures are a
minute older. If a node's figures cannot be written, the caller writes each node separately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from svc_actors.store import Transaction
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import Capacity

log = structlog.get_logger(__name__)


async def record_seen(tx: Transaction, node_id: UUID, capacity: Capacity | None = None) -> None:
    """Record that the node was seen now, and its capacity if given. The caller holds the lock of its row."""
    await tx.execute(
        "UPDATE nodes SET seen_at = now(), capacity = coalesce($2, capacity) WHERE id = $1",
        node_id,
        None if capacity is None else capacity.model_dump(mode="json"),
    )


async def record_live_figures(tx: Transaction, beats: Sequence[tuple[UUID, Capacity]]) -> None:
    """Record the last report of each of these nodes: in its row, and in the mean of the hour."""
    node_ids = [node_id for node_id, _ in beats]
    # Rows need not be locked in any order: locked rows are skipped and not waited for, so there is no deadlock.
    with tx.unmarked():
        await tx.execute(
            """
            WITH free AS MATERIALIZED (
                SELECT id FROM nodes WHERE id = ANY($1::uuid[]) AND deleted_at IS NULL FOR NO KEY UPDATE SKIP LOCKED
            )
            UPDATE nodes SET capacity = beats.capacity, seen_at = now()
            FROM free JOIN unnest($1::uuid[], $2::jsonb[]) AS beats (node_id, capacity) ON beats.node_id = free.id
            WHERE nodes.id = free.id
            """,
            node_ids,
            [capacity.model_dump(mode="json") for _, capacity in beats],
        )
        await tx.execute(
            """
            INSERT INTO node_samples AS old (node_id, hour, samples, load_1m, memory_free_mib, disk_free_gib)
            SELECT node_id, date_trunc('hour', now(), 'UTC'), 1, load_1m, memory_free_mib, disk_free_gib
            FROM unnest($1::uuid[], $2::double precision[], $3::double precision[], $4::double precision[])
                 AS beats (node_id, load_1m, memory_free_mib, disk_free_gib)
            ON CONFLICT (node_id, hour) DO UPDATE SET samples = old.samples + 1,
                load_1m = old.load_1m + (excluded.load_1m - old.load_1m) / (old.samples + 1),
                memory_free_mib =
                    old.memory_free_mib + (excluded.memory_free_mib - old.memory_free_mib) / (old.samples + 1),
                disk_free_gib = old.disk_free_gib + (excluded.disk_free_gib - old.disk_free_gib) / (old.samples + 1)
            """,
            node_ids,
            [capacity.load_1m for _, capacity in beats],
            [float(capacity.memory_free_mib) for _, capacity in beats],
            [capacity.disk_free_gib for _, capacity in beats],
        )


# One node's bad data affects that node only. All reports are processed together if possible, because a thousand nodes
# are then one statement; if that fails, node by node. An outage of the database is no node's fault: then the whole call
# fails and is retried.
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
