"""Retention: removes old tasks and their logs, samples of nodes, deleted machines and traffic.

Everything is removed in batches that block no one (`svc_actors.store.removal`). Rows that other rows refer to stay: a
deleted machine is kept as long as it holds an address, has a backup, or has figures of a month that is kept.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from svc_actors.store import Database, Transaction
from svc_actors.store.removal import in_batches, remove_rows

_TASKS_AT_ONCE: Final = 200
_MACHINES_AT_ONCE: Final = 100


async def remove_old_tasks(database: Database, keep: timedelta) -> int:
    """Remove tasks that ended longer ago than `keep`, with their logs, the oldest first; returns how many."""

    async def remove() -> int:
        ids = [
            row["id"]
            for row in await database.fetch(
                "SELECT id FROM tasks WHERE ended_at < now() - $1::interval ORDER BY ended_at LIMIT $2",
                keep,
                _TASKS_AT_ONCE,
            )
        ]
        # The log's lines are deleted first, in their own batches: a log may have a million lines. An ended task's log
        # gets no new ones.
        await remove_rows(database, "task_events", "task_id = ANY($1::uuid[])", ids)
        return await database.change("DELETE FROM tasks WHERE id = ANY($1::uuid[])", ids)

    return await in_batches(remove, _TASKS_AT_ONCE)


async def remove_old_samples(database: Database, keep: timedelta) -> int:
    """Remove hourly samples of nodes. They are searched node by node, because their key starts with the node."""
    removed = 0
    for node in await database.fetch("SELECT id FROM nodes"):
        removed += await remove_rows(
            database, "node_samples", "node_id = $1 AND hour < now() - $2::interval", node["id"], keep
        )
    return removed


async def remove_old_traffic(database: Database, months: int) -> int:
    """Remove readings and decisions of the months before the last `months`; decisions in force stay."""
    before = await database.fetchval(
        "SELECT to_char(date_trunc('month', now() AT TIME ZONE 'UTC') - make_interval(months => $1), 'YYYY-MM')", months
    )
    removed = await remove_rows(database, "traffic_readings", "period < $1", before)
    return removed + await remove_rows(database, "traffic_decisions", "period < $1 AND NOT standing", before)


async def remove_deleted_machines(database: Database, keep: timedelta) -> int:
    """Remove machines that were deleted longer ago than `keep`, hold no address, and have no backup and no traffic of a
    month that is kept; and volumes that were deleted that long ago."""

    await remove_rows(database, "volumes", "deleted_at < now() - $1::interval", keep)

    async def remove(tx: Transaction) -> int:
        ids = [
            row["id"]
            for row in await tx.fetch(
                """
                SELECT id FROM vms WHERE deleted_at < now() - $1::interval
                  AND NOT EXISTS (SELECT FROM allocations WHERE vm_id = vms.id)
                  AND NOT EXISTS (SELECT FROM traffic_readings WHERE vm_id = vms.id)
                  AND copies_until IS NULL
                ORDER BY deleted_at LIMIT $2 FOR UPDATE SKIP LOCKED
                """,
                keep,
                _MACHINES_AT_ONCE,
            )
        ]
        for table in (
            "traffic_decisions",
            "machine_backups",
            "machine_backup_stores",
            "security_group_machines",
            "nics",
        ):
            await tx.execute(f"DELETE FROM {table} WHERE vm_id = ANY($1::uuid[])", ids)
        return await tx.change("DELETE FROM vms WHERE id = ANY($1::uuid[])", ids)

    return await in_batches(lambda: database.transact(remove), _MACHINES_AT_ONCE)
