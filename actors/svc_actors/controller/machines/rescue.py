"""Decides about putting a machine into rescue and back, and records it.

A machine in rescue has an ordinary status: running, stopped or in between. That it boots the rescue system is a
separate fact, `rescue_since`, which its host stores as well: whatever starts the machine (an order, its host after a
power cut) starts the system that the host has chosen.

Invariant: the record follows the host's report, at the end of the task or in the next inventory (`observing`). So if
the effect of a task is unknown, a new inventory of the host is requested.

Why: docs/decisions/0026-resize-reinstall-rescue-iso.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines import power
from svc_actors.controller.machines.admission import moved, require_not_suspended
from svc_actors.controller.machines.records import MachineRow, announce_machine
from svc_actors.controller.machines.spec import Seed, network_spec
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Order
from svc_actors.controller.tasks.records import Ending, Task
from svc_actors.controller.tasks.runner import TaskRun, Work
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Queryable, Record, Transaction
from svc_common.errors import conflict
from svc_nodeagent.protocol import OperationResult, VmRescue, VmRescueEnd

OPS: Final = frozenset({Order.RESCUE.op, Order.RESCUE_END.op})
SUPERSEDED: Final = "rescue_superseded"
"""The parameter of a forced stop that superseded a rescue task: how far the rescue task had come is unknown."""
_INSTALL: Final = "An administrator installs or enables one, as docs/rescue.md says."
Parameters = dict[str, object]

_STEP: Final = "host"


@dataclass(frozen=True)
class NewRescue:
    """`generated` is root's password in the rescue system, `password_hash` its SHA-512 crypt. `force`: a running guest
    is stopped at once instead of shut down. `order` identifies the order, so that a repeated one is recognised."""

    password_hash: str
    generated: str = field(repr=False)
    ssh_keys: tuple[str, ...]
    force: bool
    order: str | None = None


async def start_rescue(
    tx: Transaction, vm: MachineRow, new: NewRescue, sealer: Sealer
) -> tuple[Parameters, MachineStatus]:
    """Store the password sealed until the task has ended; returns the task's parameters and the machine's status
    meanwhile. Raises conflict."""
    if vm.rescue_since is not None:
        raise conflict(
            "The machine is already in rescue; nothing was changed.",
            hint="If it is off, start it; for a new password, end the rescue and start another.",
        )
    await require_not_suspended(tx, vm)
    status = moved(vm, Order.RESCUE)
    system = await system_for(tx, vm)
    secret = Seed(new.password_hash, new.generated).sealed(sealer)
    await tx.execute("UPDATE vms SET sealed_seed = $2 WHERE id = $1", vm.id, secret)
    return _parameters(vm, new.force) | {
        "image_id": str(system),
        "ssh_keys": list(new.ssh_keys),
        "order": new.order,
    }, status


async def start_exit(tx: Transaction, vm: MachineRow, *, force: bool) -> tuple[Parameters, MachineStatus]:
    if vm.rescue_since is None:
        raise conflict("The machine is not in rescue; nothing was changed.")
    await require_not_suspended(tx, vm)
    return _parameters(vm, force), moved(vm, Order.RESCUE_END)


def _parameters(vm: MachineRow, force: bool) -> Parameters:
    return {"runs": vm.status is MachineStatus.RUNNING, "force": force}


async def system_for(queryable: Queryable, vm: MachineRow) -> UUID:
    """The rescue system for the machine: the newest that is enabled and has a checksum. Raises conflict."""
    row = await _newest(queryable)
    if row is None:
        raise conflict(
            "There is no rescue system, so no machine can be put into rescue; nothing was changed.",
            hint=_INSTALL,
        )
    if vm.memory_mib < row["min_memory_mib"]:
        raise conflict(
            f"The machine has {vm.memory_mib} MiB of memory, and the rescue system needs {row['min_memory_mib']};"
            " nothing was changed.",
            hint="Give it more while it is off.",
        )
    system: UUID = row["id"]
    return system


async def newest_system(queryable: Queryable) -> UUID:
    """As `system_for`, for showing the files of a backup. Raises conflict."""
    row = await _newest(queryable)
    if row is None:
        raise conflict(
            "There is no rescue system, which is needed to read the files of backups; nothing was opened.",
            hint=_INSTALL,
        )
    system: UUID = row["id"]
    return system


async def _newest(queryable: Queryable) -> Record | None:
    return await queryable.fetchrow(
        """SELECT id, min_memory_mib FROM images WHERE kind = 'rescue' AND enabled AND digest IS NOT NULL
           ORDER BY created_at DESC, id LIMIT 1"""
    )


async def record_end(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """Record the end of a rescue task. Only a success tells which system the host boots."""
    await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    if ending.succeeded:
        await write(tx, vm.id, task.op == Order.RESCUE.op)
        await power.set_desired_power(tx, vm, DesiredPower.RUNNING)
        await announce_machine(tx, vm.id)


async def superseded(tx: Transaction, vm: MachineRow) -> None:
    """Remove the password: the rescue task was superseded, so it is no longer needed."""
    await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)


def may_differ(task: Task, ending: Ending) -> bool:
    """Whether the host may differ from the record after the end of this task."""
    return (task.op in OPS and not ending.succeeded) or SUPERSEDED in task.parameters


async def write(tx: Transaction, vm_id: UUID, rescue: bool) -> None:
    await tx.execute(
        "UPDATE vms SET rescue_since = CASE WHEN $2 THEN coalesce(rescue_since, now()) END WHERE id = $1",
        vm_id,
        rescue,
    )


class RescueWork:
    def __init__(self, database: Database, sealer: Sealer, images: ImageSources) -> None:
        self._database = database
        self._sealer = sealer
        self._images = images

    @property
    def works(self) -> Mapping[str, Work]:
        return {Order.RESCUE.op: self.start, Order.RESCUE_END.op: self.end}

    async def start(self, run: TaskRun) -> OperationResult:
        """The task's id identifies the rescue, so a repeated attempt is the same rescue."""
        vm_id, parameters = run.task.resource_id, run.task.parameters
        system, fetched = await self._images.of_task(run, UUID(parameters["image_id"]), span=(0, 50))
        sealed = await self._database.fetchval("SELECT sealed_seed FROM vms WHERE id = $1", vm_id)
        secret = Seed.unsealed(self._sealer, sealed)
        if secret.password_hash is None:
            raise conflict("The rescue password has expired; nothing was changed.", hint="Try again.")
        operation = VmRescue(
            vm_id=vm_id,
            instance_id=str(run.task.id),
            system=system,
            password_hash=secret.password_hash,
            ssh_keys=tuple(parameters["ssh_keys"]),
            network=await network_spec(self._database, vm_id),
            runs=parameters["runs"],
            force=parameters["force"],
        )
        return await run.perform(operation, step=_STEP, span=(50, 100) if fetched else (0, 100))

    async def end(self, run: TaskRun) -> OperationResult:
        vm_id, parameters = run.task.resource_id, run.task.parameters
        operation = VmRescueEnd(
            vm_id=vm_id,
            network=await network_spec(self._database, vm_id),
            runs=parameters["runs"],
            force=parameters["force"],
        )
        return await run.perform(operation, step=_STEP)
