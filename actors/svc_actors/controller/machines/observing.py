"""Records hosts' reports of machines outside of a task's outcome, for many machines at once.

A restarted host reports every machine that it has, and among a thousand hosts some are reporting at any time. Therefore
a few statements record all reports that have arrived: one message and one transaction per machine took most of the
database's time.

Invariants:
- a row is locked before its change is decided, as in the Machine actor: if both change a row, the second reads what the
  first has written;
- a locked row delays no other machine: it is skipped, and the caller sends the report to that machine's actor, which
  waits;
- a report while a task of the machine is open is noted, but changes no status: the task's end decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.controller.machines import power
from svc_actors.controller.machines.outcomes import LOST, next_status
from svc_actors.controller.machines.records import (
    MACHINE_ROW,
    MachineRow,
    announce_status,
    as_machine,
    pending_processor_sql,
)
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Observation, observe
from svc_actors.store import Transaction
from svc_nodeagent.protocol import DomainState, StateCause


@dataclass(frozen=True)
class MachineReport:
    """A node's report of a machine; `reason` is the host's explanation, `cause` the same for programs."""

    node_id: UUID
    state: DomainState
    reason: str
    cause: StateCause | None = None
    rescue: bool | None = None
    """Whether it boots the rescue system, if an inventory says so."""


_LOCKED: Final = f"""
{MACHINE_ROW} WHERE vms.id = ANY($1::uuid[]) AND vms.node_id = ANY($2::uuid[]) AND vms.deleted_at IS NULL
ORDER BY vms.id FOR NO KEY UPDATE OF vms"""

# A separate statement after the rows are locked, so that it sees an order that was committed just before.
_BUSY: Final = """
SELECT resource_id FROM tasks
WHERE resource_kind = 'vm' AND resource_id = ANY($1::uuid[]) AND status IN ('queued', 'running')"""


async def record_observations(
    tx: Transaction, seen: Mapping[UUID, MachineReport], *, asked_at: datetime | None, wait: bool = False
) -> set[UUID]:
    """Record nodes' reports of machines that are placed on them; returns the ids of the machines considered.

    `asked_at` (the database's clock) is given for an inventory, which describes the past. Skipped are machines that are
    not on the node or deleted, and without `wait` those whose row is locked.
    """
    nodes = list({each.node_id for each in seen.values()})
    rows = await tx.fetch(_LOCKED if wait else f"{_LOCKED} SKIP LOCKED", list(seen), nodes)
    machines = [vm for vm in map(as_machine, rows) if vm.node_id == seen[vm.id].node_id]
    if asked_at is None:
        news = machines
    else:
        now: datetime = await tx.fetchval("SELECT clock_timestamp()")
        news = [vm for vm in machines if not _heard_since(vm, asked_at, now)]
    if news:
        busy = {row["resource_id"] for row in await tx.fetch(_BUSY, [vm.id for vm in news])}
        await _write(tx, news, seen, busy, from_inventory=asked_at is not None)
    return {vm.id for vm in machines}


def _heard_since(vm: MachineRow, asked_at: datetime, now: datetime) -> bool:
    """Whether the machine's last report was recorded after the inventory was requested, and so is newer than the
    inventory. A time in the future (the clock was set back) does not count."""
    return vm.observed_at is not None and asked_at < vm.observed_at <= now


async def _write(
    tx: Transaction,
    machines: list[MachineRow],
    seen: Mapping[UUID, MachineReport],
    busy: set[UUID],
    *,
    from_inventory: bool,
) -> None:
    """Record the state of all machines, change statuses, and announce the changes."""
    statuses: list[str] = []
    reasons: list[str | None] = []
    rescues: list[bool | None] = []
    for vm in machines:
        await power.note_pause(tx, vm, seen[vm.id].state, seen[vm.id].cause)
        before = vm.status, vm.status_reason
        status, reason = before if vm.id in busy else await _moved(tx, vm, seen[vm.id], from_inventory=from_inventory)
        statuses.append(status.value)
        reasons.append(reason)
        rescue = None if vm.id in busy else seen[vm.id].rescue
        rescues.append(rescue)
        if (status, reason) != before or rescue not in (None, vm.rescue_since is not None):
            await announce_status(tx, vm.id, vm.name, vm.project_id, vm.node_id, status=status, reason=reason)
    causes = [seen[vm.id].cause for vm in machines]
    # Written without a commit mark: a change of status was announced, and the announcement leaves a mark; what else is
    # lost would be observed again.
    with tx.unmarked():
        await tx.execute(
            f"""UPDATE vms SET observed_state = seen.state, observed_cause = seen.cause, observed_at = now(),
                              status = seen.status, status_reason = seen.reason,
                              running_since = CASE WHEN seen.status <> 'running' THEN NULL
                                                   WHEN vms.status <> 'running' THEN now() ELSE running_since END,
                              rescue_since = CASE WHEN seen.rescue THEN coalesce(vms.rescue_since, now())
                                                  WHEN seen.rescue IS NULL THEN vms.rescue_since END,
                              {pending_processor_sql("seen.status = 'stopped'")}
               FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::boolean[])
                    AS seen (vm_id, state, status, reason, cause, rescue)
               WHERE vms.id = seen.vm_id""",
            [vm.id for vm in machines],
            [seen[vm.id].state.value for vm in machines],
            statuses,
            reasons,
            [cause.value if cause else None for cause in causes],
            rescues,
        )


async def _moved(
    tx: Transaction, vm: MachineRow, seen: MachineReport, *, from_inventory: bool
) -> tuple[MachineStatus, str | None]:
    observation = observe(seen.state)
    if observation is None or (vm.status is MachineStatus.FAILED and vm.built_at is None):
        return vm.status, vm.status_reason
    reason = _reason(seen)
    if vm.unconfirmed and observation is Observation.STOPPED and seen.cause in (StateCause.GUEST, StateCause.FORCED):
        # The machine was switched off after the backup was made, by an order or by its guest, so it must not be
        # started.
        await power.set_desired_power(tx, vm, DesiredPower.STOPPED)
        return next_status(vm.status, vm.status_reason, observation, reason)
    if vm.status is MachineStatus.RUNNING and observation in (Observation.STOPPED, Observation.LOST):
        reason = await power.decide_restart(tx, vm, seen.state, seen.cause, reason)
    elif observation is Observation.RUNNING and vm.desired is DesiredPower.STOPPED and from_inventory:
        # No order explains that the guest runs: somebody has started it on its host by hand, so running becomes the
        # desired state. Only an inventory counts, not an event of the host: an event may be older than an order that
        # has ended since.
        await power.set_desired_power(tx, vm, DesiredPower.RUNNING)
    return next_status(vm.status, vm.status_reason, observation, reason)


def _reason(seen: MachineReport) -> str | None:
    match seen.state:
        case DomainState.PAUSED if seen.cause is StateCause.IO_ERROR:
            return "The guest is paused: its disk could not be written. It resumes once its host has space."
        case DomainState.STOPPED if seen.cause is StateCause.FORCED:
            return "The guest was stopped by force on its host."
        case DomainState.PAUSED:
            return f"The host has paused the guest: {seen.reason}"
        case DomainState.CRASHED:
            return f"The guest crashed: {seen.reason}."
        case DomainState.ABSENT:
            return LOST
        case _:
            return None
