"""The watch that begins machines' backups when they are due.

Level-triggered: what is due is read from the records each time, so a run that fell into an outage of the controller or
of the node is made up for. One backup at a time a node, the longest overdue first; a machine whose last attempt ended
without a copy is tried again after an hour. A backup is begun by the machine's actor, under the lock of its row.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from svc_actors.controller.backups.records import as_policy, tell_missing
from svc_actors.controller.backups.schedule import LATE_AFTER, next_due
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database, Record

LOOK_SECONDS: Final = 30.0
log = structlog.get_logger(__name__)

SCHEDULED: Final = """vms JOIN plan_backups ON plan_backups.plan_id = vms.plan_id
LEFT JOIN nodes ON nodes.id = vms.node_id
LEFT JOIN LATERAL (
    SELECT count(*) AS copies, max(begun_at) AS begun_at, max(completed_at) AS completed_at
    FROM machine_backups WHERE vm_id = vms.id AND removed_at IS NULL
) kept ON true"""
"""Every machine whose plan asks for backups."""

_DUE: Final = f"""
SELECT vms.id, vms.name, vms.project_id, vms.node_id, plan_backups.*, kept.begun_at,
       greatest(plan_backups.since, vms.built_at) AS asked_since,
       vms.status IN ('running', 'stopped') AND nodes.state = 'online' AND nodes.mode = 'managed'
           AND NOT nodes.maintenance AND nodes.lost_at IS NULL AND NOT vms.unconfirmed
           AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                               AND (status IN ('queued', 'running')
                                    OR op = 'vm.backup' AND ended_at > $1::timestamptz - interval '1 hour'
                                       AND status <> 'succeeded'))
           AND NOT EXISTS (SELECT FROM tasks WHERE node_id = vms.node_id AND op = 'vm.backup'
                               AND status IN ('queued', 'running')) AS ready,
       EXISTS (SELECT FROM alerts WHERE key = 'machine-backup:' || vms.id::text AND closed_at IS NULL) AS told
FROM {SCHEDULED} WHERE vms.deleted_at IS NULL AND vms.built_at IS NOT NULL"""


def due_of(row: Record, now: datetime) -> datetime:
    """Of a row with a policy, the machine's `id`, `begun_at` of its last copy, and `asked_since`."""
    return next_due(as_policy(row), row["id"], done=row["begun_at"], since=row["asked_since"], now=now)


async def begin_due(database: Database, actors: ActorSystem) -> None:
    await look(database, actors, utc_now())


async def look(database: Database, actors: ActorSystem, now: datetime) -> None:
    """Begin what is due and can be begun, and tell of what is late."""
    due = sorted((at, row["id"], row) for row in await database.fetch(_DUE, now) if (at := due_of(row, now)) <= now)
    nodes: set[UUID] = set()
    for at, vm_id, row in due:
        if now - at > LATE_AFTER and not row["told"]:
            await _tell_late(database, row, at)
        if not row["ready"] or row["node_id"] in nodes:
            continue
        nodes.add(row["node_id"])
        try:
            await actors.ref(Machine, str(vm_id)).ask(Machine.back_up, None)
        except DomainError as error:
            log.warning("backups.not_begun", vm_id=str(vm_id), error=str(error))


async def _tell_late(database: Database, row: Record, at: datetime) -> None:
    """Where it is told already, it is said what its last attempt failed of."""
    async with database.transaction() as tx:
        why = f"It was due at {at:%Y-%m-%d %H:%M} UTC, and its node could not be asked for it since."
        await tell_missing(tx, row["id"], row["name"], row["project_id"], why)
