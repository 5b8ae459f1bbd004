"""The watch that starts machines' backups when they are due.

Level-triggered: each round reads from the records what is due, so a run that was missed in an outage of the controller
or the node is made up for. A node makes one backup at a time, that of the machine which is overdue longest first. A
machine whose last attempt failed is tried again after an hour. The machine's actor starts the backup, under the lock of
its row.

Rejected: reading every scheduled machine and judging each in Python. With 100,000 machines this kept the controller
busy for 0.8 s twice a minute. Now an index holds the overdue machines next to each other, and PostgreSQL returns one
machine for each node.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import structlog

from svc_actors.controller.backups.records import BackupLocation, as_policy, tell_missing
from svc_actors.controller.backups.schedule import LATE_AFTER, last_hour, next_due
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database, Record

LOOK_SECONDS: Final = 30.0
# The most alerts that are raised in one round: after an outage of all nodes every machine is late, and each alert is a
# transaction.
_TOLD_AT_ONCE: Final = 500
log = structlog.get_logger(__name__)

SCHEDULED: Final = """vms JOIN plan_backups ON plan_backups.plan_id = vms.plan_id
LEFT JOIN nodes ON nodes.id = vms.node_id
LEFT JOIN LATERAL (
    SELECT count(*) AS copies, max(begun_at) AS begun_at, max(completed_at) AS completed_at
    FROM machine_backups WHERE vm_id = vms.id AND removed_at IS NULL
) kept ON true"""
"""Every machine whose plan asks for backups."""

_OVERDUE: Final = """
SELECT vms.id, vms.name, vms.project_id, vms.node_id, vms.status, vms.unconfirmed, vms.rescue_since, run.at
FROM vms
CROSS JOIN LATERAL (SELECT ('x' || right(vms.id::text, 8))::bit(32)::bigint % 3600 * interval '1 second' AS seconds) own
CROSS JOIN LATERAL (
    SELECT $3::timestamptz + own.seconds
           - CASE WHEN $3 + own.seconds > $1::timestamptz THEN $4::interval ELSE interval '0' END AS at
) run
WHERE vms.plan_id = $2 AND vms.backed_up < $3 AND vms.deleted_at IS NULL AND vms.built_at IS NOT NULL
  AND vms.backed_up < run.at - own.seconds AND run.at >= greatest($5::timestamptz, vms.built_at)"""
"""Machines of the plan $2 whose run is due, and since when. The rule is that of `schedule.next_due`; the index behind
it holds overdue machines next to each other. $3 is the start of the plan's last hour of runs, $4 the time from one run
to the next, and $5 the time since when the plan asks for backups. The query is for one plan at a time: for several
plans, the planner could not estimate how few machines are due.

`backed_up < $3` is for the index and finds a little too much: machines whose last copy is from before this hour but
whose own moment in it has not come. The condition on `run.at` after it is exact."""

_NEXT: Final = f"""
SELECT DISTINCT ON (overdue.node_id) overdue.node_id, overdue.at, overdue.id
FROM ({_OVERDUE}) overdue JOIN nodes ON nodes.id = overdue.node_id
WHERE overdue.status IN ('running', 'stopped') AND NOT overdue.unconfirmed AND overdue.rescue_since IS NULL
  AND nodes.state = 'online' AND nodes.mode = 'managed' AND NOT nodes.maintenance AND nodes.lost_at IS NULL
  AND NOT EXISTS (SELECT FROM tasks WHERE node_id = nodes.id AND op = 'vm.backup' AND status IN ('queued', 'running'))
  AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = overdue.id
                      AND status IN ('queued', 'running'))
  AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = overdue.id AND op = 'vm.backup'
                      AND ended_at > $1 - interval '1 hour' AND status IN ('failed', 'cancelled'))
ORDER BY overdue.node_id, overdue.at, overdue.id"""
"""For each node that makes no backup now, the machine of the plan that is longest overdue and can be copied."""

_LATE: Final = f"""
SELECT overdue.* FROM ({_OVERDUE}) overdue
WHERE overdue.at < $1 - $6::interval
  AND NOT EXISTS (SELECT FROM alerts WHERE key = 'machine-backup:' || overdue.id::text AND closed_at IS NULL)
ORDER BY overdue.at, overdue.id LIMIT {_TOLD_AT_ONCE}"""


def due_of(row: Record, now: datetime) -> datetime:
    """When the machine is next due; `row` has a policy, the machine's `id`, `begun_at` of its last copy, and
    `asked_since`."""
    return next_due(as_policy(row), row["id"], done=row["begun_at"], since=row["asked_since"], now=now)


_CAN_REMOVE: Final = """
(nodes.state = 'online' AND NOT nodes.maintenance OR nodes.lost_at IS NOT NULL OR nodes.deleted_at IS NOT NULL)
AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                    AND (status IN ('queued', 'running')
                         OR op IN ('vm.backups.remove', 'vm.backups.forget') AND tasks.node_id = nodes.id
                            AND ended_at > $1::timestamptz - interval '1 hour'))"""
"""Either the node can remove copies of the machine now, or the node is lost or deleted and never will: then the actor
writes the copies off. After a removal has ended, the next one starts an hour later at the earliest."""

_REMOVED: Final = f"""
SELECT vms.id, nodes.id AS node_id, holder.target_id FROM vms
JOIN machine_backup_stores holder ON holder.vm_id = vms.id
JOIN nodes ON nodes.id = CASE WHEN holder.target_id IS NULL THEN holder.node_id ELSE (
    SELECT id FROM nodes WHERE state = 'online' AND NOT maintenance AND lost_at IS NULL AND deleted_at IS NULL
    ORDER BY id <> holder.node_id, id LIMIT 1) END
WHERE vms.copies_until <= $1::timestamptz AND {_CAN_REMOVE}
ORDER BY vms.copies_until, vms.id LIMIT 100"""
"""Deleted machines whose copies have been kept for long enough, with each node whose target may have some of the
copies. Copies at a target that every node reaches are removed by a node that is online, if possible by the node that
made them."""

_SUPERSEDED: Final = f"""
SELECT DISTINCT vms.id, nodes.id AS node_id, copies.target_id
FROM machine_backups copies JOIN vms ON vms.id = copies.vm_id
JOIN nodes ON nodes.id = CASE WHEN copies.target_id IS NULL THEN copies.node_id ELSE vms.node_id END
WHERE (copies.target_id IS NULL OR nodes.state = 'online') AND copies.superseded_at IS NOT NULL
  AND copies.removed_at IS NULL AND vms.deleted_at IS NULL AND {_CAN_REMOVE}
ORDER BY vms.id LIMIT 100"""
"""Machines with copies that a later copy has superseded. These lie at the target of a node that the machine has left,
or at a target that the machine's node no longer uses."""


async def run_due(database: Database, actors: ActorSystem) -> None:
    # `look` and `remove_due` get the same time, so both judge by it what is due.
    now = utc_now()
    await look(database, actors, now)
    await remove_due(database, actors, now)


async def look(database: Database, actors: ActorSystem, now: datetime) -> None:
    """Start the backups that are due and can be started, and raise alerts about those that are late."""
    waiting: list[tuple[datetime, UUID, UUID]] = []
    for plan in await database.fetch("SELECT * FROM plan_backups"):
        policy = as_policy(plan)
        of_plan = (now, plan["plan_id"], last_hour(policy, now), policy.period, plan["since"])
        for row in await database.fetch(_LATE, *of_plan, LATE_AFTER):
            await _tell_late(database, row)
        waiting += [(row["at"], row["id"], row["node_id"]) for row in await database.fetch(_NEXT, *of_plan)]
    begun: set[UUID] = set()
    # Each plan has named one machine for each node. If several plans name machines of the same node, the machine that
    # is overdue longest is started; the others wait for a later round, after its backup is done.
    for _, vm_id, node_id in sorted(waiting):
        if node_id in begun:
            continue
        # The node counts as used even if the machine's actor refuses (an order came in between): the next round is half
        # a minute away.
        begun.add(node_id)
        try:
            await actors.ref(Machine, str(vm_id)).ask(Machine.back_up, None)
        except DomainError as error:
            log.warning("backups.not_begun", vm_id=str(vm_id), error=str(error))


async def remove_due(database: Database, actors: ActorSystem, now: datetime) -> None:
    """Start removing copies: those of machines that were deleted long enough ago, or whose copies are to be removed at
    once, and those that a later copy on another node has superseded. Each node that has such copies is asked; each
    machine has one removal at a time."""
    begun: set[UUID] = set()
    for sql, remove in ((_REMOVED, Machine.remove_copies), (_SUPERSEDED, Machine.forget_copies)):
        for row in await database.fetch(sql, now):
            if row["id"] in begun:
                continue
            begun.add(row["id"])
            try:
                await actors.ref(Machine, str(row["id"])).ask(remove, BackupLocation(row["node_id"], row["target_id"]))
            except DomainError as error:
                log.warning("backups.not_removed", vm_id=str(row["id"]), error=str(error))


async def _tell_late(database: Database, row: Record) -> None:
    """Raise the alert of a backup that is late. A backup that failed has an alert with its reason already, and is not
    listed here."""
    why = f"It was due at {row['at']:%Y-%m-%d %H:%M} UTC, but has not been started on its node since."
    await database.transact(lambda tx: tell_missing(tx, row["id"], row["name"], row["project_id"], why))
