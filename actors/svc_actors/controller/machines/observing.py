"""What a host says of machines outside of a task's outcome, recorded for many of them at once.

A host that was started again has something new to say of every machine it has: a few statements record a node's worth
of them, where a message and a transaction each took most of the time that the database had.

Invariants:
- a row is locked before it is decided on, as the Machine actor locks it: whoever comes first, the other reads what it
  wrote;
- who holds a row delays no other machine: it is passed over, and the caller tells that machine's actor, which waits;
- what a host says while a task of the machine is open is noted, and moves nothing: the task's end decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.controller.machines.outcomes import LOST, moved_by
from svc_actors.controller.machines.records import announce_status
from svc_actors.controller.machines.states import MachineStatus, observe
from svc_actors.store import Record, Transaction
from svc_nodeagent.protocol import DomainState


@dataclass(frozen=True)
class Seen:
    """A machine as its host has it; `reason` is the host's word on why."""

    state: DomainState
    reason: str


# What was heard since an answer that describes the past was asked for ($3) is newer than it, unless the clock has been
# set back in between.
_LOCKED: Final = """
SELECT id, name, project_id, status, status_reason, built_at IS NOT NULL AS built,
       coalesce($3::timestamptz < observed_at AND observed_at <= clock_timestamp(), false) AS heard_since
FROM vms WHERE id = ANY($1::uuid[]) AND node_id = $2 AND deleted_at IS NULL
ORDER BY id FOR NO KEY UPDATE"""

# A statement of its own, after the locks: an order that has just been committed is seen.
_BUSY: Final = """
SELECT resource_id FROM tasks
WHERE resource_kind = 'vm' AND resource_id = ANY($1::uuid[]) AND status IN ('queued', 'running')"""


async def record_observations(
    tx: Transaction, node_id: UUID, seen: Mapping[UUID, Seen], *, asked_at: datetime | None, wait: bool = False
) -> set[UUID]:
    """Record what this node says of machines that are placed on it; the ids of those that were looked at.

    `asked_at` (the database's clock) is given for an inventory, which describes the past. Passed over is what the node
    does not have, what is deleted, and without `wait` what somebody else holds.
    """
    rows = await tx.fetch(_LOCKED if wait else f"{_LOCKED} SKIP LOCKED", list(seen), node_id, asked_at)
    news = [row for row in rows if not row["heard_since"]]
    if news:
        busy = {row["resource_id"] for row in await tx.fetch(_BUSY, [row["id"] for row in news])}
        await _write(tx, node_id, news, seen, busy)
    return {row["id"] for row in rows}


async def _write(
    tx: Transaction, node_id: UUID, rows: list[Record], seen: Mapping[UUID, Seen], busy: set[UUID]
) -> None:
    """Note the state of all, move those that it moves, and announce these."""
    statuses: list[str] = []
    reasons: list[str | None] = []
    for row in rows:
        before = MachineStatus(row["status"]), row["status_reason"]
        status, reason = before if row["id"] in busy else _moved(row, seen[row["id"]])
        statuses.append(status.value)
        reasons.append(reason)
        if (status, reason) != before:
            await announce_status(tx, row["id"], row["name"], row["project_id"], node_id, status=status, reason=reason)
    await tx.execute(
        """UPDATE vms SET observed_state = seen.state, observed_at = now(), status = seen.status,
                          status_reason = seen.reason
           FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) AS seen (vm_id, state, status, reason)
           WHERE vms.id = seen.vm_id""",
        [row["id"] for row in rows],
        [seen[row["id"]].state.value for row in rows],
        statuses,
        reasons,
    )


def _moved(row: Record, seen: Seen) -> tuple[MachineStatus, str | None]:
    status, observation = MachineStatus(row["status"]), observe(seen.state)
    if observation is None or (status is MachineStatus.FAILED and not row["built"]):
        return status, row["status_reason"]
    return moved_by(status, row["status_reason"], observation, _reason(seen))


def _reason(seen: Seen) -> str | None:
    match seen.state:
        case DomainState.PAUSED:
            return f"The host has paused the guest: {seen.reason}"
        case DomainState.CRASHED:
            return f"The guest crashed: {seen.reason}"
        case DomainState.ABSENT:
            return LOST
        case _:
            return None
