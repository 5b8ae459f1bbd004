"""The desired power state of a machine, and the response when it is off but should be running.

Theory of operation. A machine has a status, which follows its host's reports, and a desired power state. Orders set the
desired state: a start, a reboot and a reset set it to running; a shutdown, a forced stop and a deletion set it to
stopped. When a machine goes off without an order, its restart policy and the cause decide once, at the observation:
either the desired state stays running, or it becomes `stopped` and nothing is done. So the loop that closes the
difference (`reconcile.power_watch`) needs no policy: it starts machines that should be running and are not.

| went off because            | always  | on_failure | never |
|-----------------------------|---------|------------|-------|
| the guest shut itself down  | restart | off        | off   |
| QEMU ended, or was stopped on the host by hand | restart | restart | off |
| its host was restarted (power cut, reboot) | restart | restart | off |

Invariants:
- failures in a row delay the next attempt, from the sixth on by an hour each (an open circuit breaker). Their count is
  reset by an order to the machine, or when the machine has run for ten minutes. A restart of the host is not a failure
  of its machines;
- a machine whose files are missing is not started again without an order.

Called with the machine's row locked, in the transaction that writes its status.

Why: docs/decisions/0025-machine-states-and-power.md.
"""

from __future__ import annotations

import math
from typing import Final
from uuid import UUID

from svc_actors.alerts import CustomerNotice, Severity, close_alert, raise_alert
from svc_actors.controller.machines.records import KEPT_OFF, STABLE_SECONDS, MachineRow
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Observation, Order, RestartPolicy
from svc_actors.controller.tasks.runner import Ending, Task, TaskStatus
from svc_actors.store import Transaction, Via
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import DomainState, StateCause

FIRST_PAUSE: Final = 10.0
"""Seconds before the second attempt; each further pause is twice as long. The first attempt is made at once."""
MOST_FAILURES: Final = 5
"""Failures in a row before the circuit breaker opens: the next failure after these opens it."""
COOL_DOWN: Final = 3600.0
"""Seconds between attempts while the breaker is open."""

AWAITING: Final = f"""vms.deleted_at IS NULL AND vms.built_at IS NOT NULL AND NOT vms.unconfirmed
    AND vms.moved_from IS NULL
    AND (vms.desired_power = 'running' AND vms.status = 'stopped' OR vms.status = 'failed')
    AND (vms.restart_after IS NULL OR vms.restart_after <= now()) AND NOT vms.traffic_isolated AND NOT {KEPT_OFF}
    AND nodes.state = 'online' AND nodes.mode = 'managed' AND nodes.deleted_at IS NULL
    AND (NOT nodes.maintenance
         OR 'vm.migrate' = (SELECT op FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                            ORDER BY created_at DESC, id DESC LIMIT 1))
    AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                                        AND tasks.status IN ('queued', 'running'))"""
"""SQL condition on `vms JOIN nodes`: the machine is not in its desired state, and may be started or defined now. A
machine that its host has lost is defined again, whether its desired state is running or not. On a node in maintenance
only one kind of machine is started: one that a migration has switched off, if the migration failed and the machine
stays on its node."""

RECOVERED: Final = f"""vms.deleted_at IS NULL AND vms.restart_failures > 0 AND vms.status = 'running'
    AND vms.running_since < now() - interval '{STABLE_SECONDS:g} seconds'"""


def is_restarted(policy: RestartPolicy, cause: StateCause | None) -> bool:
    match policy:
        case RestartPolicy.ALWAYS:
            return True
        case RestartPolicy.NEVER:
            return False
        case RestartPolicy.ON_FAILURE:
            return cause is not StateCause.GUEST


def restart_pause(failures: int) -> float:
    """Seconds until the next start of a machine that has failed this often in a row."""
    if failures <= 1:
        return 0.0
    if failures > MOST_FAILURES:
        return COOL_DOWN
    return FIRST_PAUSE * 2.0 ** (failures - 2)


def power_alert(vm_id: UUID) -> str:
    return f"machine-power:{vm_id}"


def paused_alert(vm_id: UUID) -> str:
    return f"machine-paused:{vm_id}"


async def set_desired_power(tx: Transaction, vm: MachineRow, desired: DesiredPower) -> None:
    """Set the desired state because of an order or the host's report, and reset the count of failures."""
    await tx.execute(
        "UPDATE vms SET desired_power = $2, restart_failures = 0, restart_after = NULL WHERE id = $1",
        vm.id,
        desired.value,
    )
    if vm.restart_failures:
        await close_alert(tx, power_alert(vm.id))


async def recovered(tx: Transaction, vm: MachineRow) -> None:
    await set_desired_power(tx, vm, vm.desired)


async def decide_restart(
    tx: Transaction, vm: MachineRow, state: DomainState, cause: StateCause | None, reason: str | None
) -> str | None:
    """Decide whether a machine that went off (or was lost) without an order is started again; returns the reason for
    its status."""
    if vm.desired is not DesiredPower.RUNNING:
        return reason
    if not is_restarted(vm.restart_policy, cause):
        await set_desired_power(tx, vm, DesiredPower.STOPPED)
        if cause is StateCause.GUEST:
            return reason
        left = f"{reason or _FOUND_OFF} Its restart policy leaves it off."
        await _alert(tx, vm, left, Severity.WARNING)
        return left
    if cause is None and state is not DomainState.CRASHED:
        return reason or f"{_FOUND_OFF} It is started again."
    failures = 1 if vm.recovered else vm.restart_failures + 1
    return await _failed(tx, vm, failures, reason or "The guest shut itself down.", quiet=cause is StateCause.GUEST)


async def task_ended(
    tx: Transaction, vm: MachineRow, task: Task, ending: Ending, observation: Observation, state: DomainState | None
) -> str | None:
    """Update the desired state and the failures at the end of a task; returns the reason for the machine's status, if
    any."""
    if observation is Observation.RUNNING:
        if vm.desired is DesiredPower.STOPPED and task.op in _STOPS and _is_final(ending):
            await set_desired_power(tx, vm, DesiredPower.RUNNING)
        return None
    if observation not in (Observation.STOPPED, Observation.LOST):
        return None
    if vm.status is MachineStatus.RUNNING:
        return await decide_restart(tx, vm, state or DomainState.STOPPED, vm.observed_cause, None)
    if ending.succeeded or task.op not in _ATTEMPTS:
        return None
    if vm.desired is DesiredPower.STOPPED and observation is Observation.STOPPED:
        return None
    if ending.status is TaskStatus.CANCELLED or vm.restart_policy is RestartPolicy.NEVER:
        await set_desired_power(tx, vm, DesiredPower.STOPPED)
        return None
    automatic = task.caller.via == Via.SYSTEM
    words = f"The last task failed: {ending.message.rstrip('.')}."
    if ending.error_code is ErrorCode.NOT_FOUND:
        await _write_attempt(tx, vm, vm.restart_failures + 1, math.inf)
        await _alert(tx, vm, words, Severity.CRITICAL)
        return words
    return await _failed(tx, vm, vm.restart_failures + 1, words, quiet=not automatic)


async def note_pause(tx: Transaction, vm: MachineRow, state: DomainState, cause: StateCause | None) -> None:
    """Raise the alert about a guest that was paused because its disk could not be written; any other report closes the
    alert."""
    if state is DomainState.PAUSED and cause is StateCause.IO_ERROR:
        await raise_alert(
            tx,
            paused_alert(vm.id),
            f"Machine {vm.name} on node {vm.node_name} is paused: its disk could not be written. It resumes"
            " once the node's file system has space again.",
            severity=Severity.CRITICAL,
            resource_kind="vm",
            resource_id=vm.id,
            notice=CustomerNotice(vm.project_id, f"Machine {vm.name} is paused, since its disk could not be written."),
        )
    elif vm.observed_state is DomainState.PAUSED:
        await close_alert(tx, paused_alert(vm.id))


async def _failed(tx: Transaction, vm: MachineRow, failures: int, reason: str, *, quiet: bool) -> str:
    """Record one more failure and schedule the next attempt; returns the reason. `quiet`: no alert while the breaker is
    closed."""
    pause = restart_pause(failures)
    await _write_attempt(tx, vm, failures, pause)
    if failures > MOST_FAILURES:
        words = f"{reason} It failed {failures} times in a row; it is retried every hour, or when ordered."
        await _alert(tx, vm, words, Severity.CRITICAL)
        return words
    words = f"{reason} It is started again{f' in {pause:g} s' if pause else ''}."
    if not quiet:
        await _alert(tx, vm, words, Severity.WARNING)
    return words


async def _alert(tx: Transaction, vm: MachineRow, words: str, severity: Severity) -> None:
    await raise_alert(
        tx,
        power_alert(vm.id),
        f"Machine {vm.name} on node {vm.node_name} is off but should be running. {words}",
        severity=severity,
        resource_kind="vm",
        resource_id=vm.id,
        notice=CustomerNotice(vm.project_id, f"Machine {vm.name} went off unexpectedly."),
    )


async def _write_attempt(tx: Transaction, vm: MachineRow, failures: int, pause: float) -> None:
    await tx.execute(
        """UPDATE vms SET restart_failures = $2,
                          restart_after = CASE WHEN $3::float8 = 'infinity' THEN 'infinity'::timestamptz
                                               ELSE now() + make_interval(secs => $3) END
           WHERE id = $1""",
        vm.id,
        failures,
        pause,
    )


def _is_final(ending: Ending) -> bool:
    """Whether an order to stop that did not succeed has definitely ended. An order that its node never answered has
    not."""
    return ending.status is TaskStatus.CANCELLED or (
        ending.status is TaskStatus.FAILED and ending.error_code is not ErrorCode.UNAVAILABLE
    )


_FOUND_OFF: Final = "It was off when its host came back."
_STOPS: Final = frozenset({Order.SHUTDOWN.op, Order.FORCE_STOP.op, Order.DELETE.op})
_ATTEMPTS: Final = frozenset(
    {order.op for order in Order if order.wants is DesiredPower.RUNNING and order is not Order.MIGRATE} | {"vm.update"}
)
"""Tasks that try to bring a machine back. `vm.update` belongs to them because it defines the machine again if the host
has lost it. A migration does not: it only switches the machine off."""
