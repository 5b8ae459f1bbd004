"""What the end of a task, or the host's word outside of one, makes of a machine.

Called in a transaction that has the machine's row locked: by the Machine actor, and by `observing`, of which it is one
caller.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alerts_about
from svc_actors.controller.backups.deleted import keep_for_a_while, removal_ended
from svc_actors.controller.backups.records import backup_ended, forgetting_ended
from svc_actors.controller.machines import media, moving, platforms, power, processors, rescue, snapshots, windows
from svc_actors.controller.machines.records import MachineRow, write_definition, write_outcome, write_size, write_status
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Observation, move, observe
from svc_actors.controller.networking.addresses import begin_release, free_removed, keep_addresses
from svc_actors.controller.networking.changes import call_watch, network_changed
from svc_actors.controller.networking.security_groups import leave_groups
from svc_actors.controller.placement.scheduler import lock_capacity
from svc_actors.controller.tasks.runner import Ending, Task
from svc_actors.controller.volumes import orders as volume_orders
from svc_actors.controller.volumes import states as volume_states
from svc_actors.controller.volumes.records import MOST_KEPT, keep_disk, machine_gone
from svc_actors.store import Transaction, UniqueViolationError
from svc_nodeagent.protocol import DeleteResult, DomainResult

RELEASED: Final = "released"
"""The parameter of a deletion that names the addresses whose release began with it: the machine keeps these after all
if its host refuses to delete it."""

DESTROYED: Final = "destroy_volumes"
"""The parameter of a deletion that names the volumes which go with the machine."""

GENERATION: Final = "network_generation"
"""The parameter of a task that carries the machine's network: what generation its host has at least, once the task has
succeeded. The work may read a newer one; but after a restart, the node answers for what it was asked at first."""

WINDOWS: Final = "windows"
"""The parameter of a reinstallation that says whether the new system is a Windows: null, or whether a password was
ordered for it."""

LOST: Final = "The host no longer has the machine."


async def settle(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """What is peculiar to the operation that has ended; then, for all, the network and the status."""
    heard = ending.result.state if isinstance(ending.result, DomainResult) else None
    seen = heard or vm.observed_state
    failure = "The last task failed"
    built = False
    match task.op:
        case "vm.create" if ending.succeeded:
            built = True
        case "vm.create":
            await _give_up_creation(tx, vm)
            seen, failure = None, "Creation failed"
        case "vm.delete" if isinstance(ending.result, DeleteResult):
            await _remove(tx, vm, task, ending.result)
            return
        case "vm.delete":
            await keep_addresses(tx, vm.id, task.parameters.get(RELEASED, ()))
            await network_changed(tx, [vm.id])
            seen, failure = seen if vm.built_at is not None else None, "Deletion failed"
        case "vm.update" if not ending.succeeded:
            await _put_back(tx, vm, **task.parameters["before"])
        case "vm.resize" if not ending.succeeded:
            before = task.parameters["before"]
            await write_size(tx, vm.id, **before | {"plan_id": before["plan_id"] and UUID(before["plan_id"])})
        case "vm.reinstall":
            await _reinstalled(tx, vm, task, succeeded=ending.succeeded)
        case "vm.restore" if ending.succeeded:
            await snapshots.gone_with_disks(tx, vm.id)
            await platforms.changed(tx, task)
        case snapshots.TAKE | snapshots.RESTORE | snapshots.DELETE:
            await snapshots.ended(tx, task, ending)
        case "vm.rescue" | "vm.rescue_end":
            await rescue.ended(tx, vm, task, ending)
        case media.OP:
            await media.ended(tx, vm, task, ending)
        case op if op in volume_states.OPS:
            await volume_orders.ended(tx, task, ending)
        case "vm.backup":
            await backup_ended(tx, vm, task, ending)
        case "vm.backups.forget":
            await forgetting_ended(tx, vm, task, ending)
        case "vm.backups.remove":
            await removal_ended(tx, vm, task, ending)
            return
        case "vm.cpu.set" if ending.succeeded:
            await processors.changed(tx, vm, task, seen)
        case moving.OP if ending.succeeded and not task.parameters.get(moving.LIVE):
            await moving.moved(tx, vm, task)
        case "vm.set_password":
            await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
            if ending.succeeded:
                await windows.password_set(tx, vm.id)
    if ending.succeeded and processors.starts_anew(task):
        await processors.take_up(tx, vm)
    if heard is not None:
        await power.note_pause(tx, vm, heard, None)
    generation: int | None = task.parameters.get(GENERATION) if ending.succeeded else None
    if generation is None:
        await call_watch(tx)
    observation = (observe(seen) if seen is not None else None) or _assumed_observation(vm.status)
    failed = not ending.succeeded and observation in (Observation.UNBUILT, Observation.LOST)
    reason = await power.task_ended(tx, vm, task, ending, observation, seen)
    status, reason = moved_by(
        vm.status, vm.status_reason, observation, reason or (f"{failure}: {ending.message}" if failed else None)
    )
    await write_outcome(tx, vm, status, reason, heard=heard, built=built, generation=generation)


async def interrupted(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """A task ended of which nobody knows what it has done: its machine is taken for what it was before, until its host
    says what it is. Nothing is let go of, since the host may have all of it. A deleted one stays deleted."""
    if vm.status is MachineStatus.DELETED:
        return
    if task.op in snapshots.OPS:
        await snapshots.ended(tx, task, ending)
    if task.op in volume_states.OPS:
        await volume_orders.ended(tx, task, ending, known=False)
    if task.op in ("vm.create", "vm.reinstall", "vm.rescue", "vm.set_password"):
        await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    status, reason = moved_by(vm.status, vm.status_reason, _assumed_observation(vm.status), ending.message)
    await write_status(tx, vm.id, status, reason)


def moved_by(
    status: MachineStatus, known: str | None, observation: Observation, reason: str | None
) -> tuple[MachineStatus, str | None]:
    """The status that the observation leads to, and why; `known` is why the machine is what it is now."""
    after = move(status, observation)
    if after is status and after in (MachineStatus.STOPPED, MachineStatus.FAILED):
        reason = reason or known
    if after is MachineStatus.FAILED and reason is None:
        reason = LOST
    return after, reason


async def _give_up_creation(tx: Transaction, vm: MachineRow) -> None:
    """The failed machine stays until it is deleted, without an address and without its first boot's secret."""
    await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    await lock_capacity(tx, vm.node_id)
    await begin_release(tx, vm.id)


async def _remove(tx: Transaction, vm: MachineRow, task: Task, result: DeleteResult) -> None:
    """The host has let go of it. An address that the host did not name stays `releasing`; a disk that was kept is a
    volume from now on."""
    await machine_gone(tx, vm.id, [UUID(each) for each in task.parameters.get(DESTROYED, ())])
    await lock_capacity(tx, vm.node_id)
    await begin_release(tx, vm.id)
    await free_removed(tx, vm.id, result.removed_addresses)
    await close_alerts_about(tx, "vm", vm.id)
    await leave_groups(tx, vm.id)
    await snapshots.gone_with_disks(tx, vm.id)
    await keep_for_a_while(tx, vm.id)
    if vm.node_id is not None:
        # Of the machine's own disks there is one: what the host names beyond what was ordered counts towards no limit.
        ordered = 0 if task.parameters.get("destroy_disks") else 1
        for number, kept in enumerate(result.retained_disks[:MOST_KEPT]):
            await keep_disk(
                tx,
                name=vm.name,
                project_id=vm.project_id,
                node_id=vm.node_id,
                size_gib=vm.disk_gib,
                kept_name=kept,
                vm_id=vm.id,
                ordered=number < ordered,
            )
    await call_watch(tx)
    status, reason = moved_by(vm.status, vm.status_reason, Observation.DELETED, None)
    await write_outcome(tx, vm, status, reason, heard=None, built=False, generation=None)


async def _put_back(tx: Transaction, vm: MachineRow, *, name: str, vcpus: int, memory_mib: int) -> None:
    """The host kept what it had. The name may be another machine's by now; then this one keeps the new name."""
    try:
        async with tx.savepoint():
            await write_definition(tx, vm.id, name=name, vcpus=vcpus, memory_mib=memory_mib)
    except UniqueViolationError:
        await write_definition(tx, vm.id, name=vm.name, vcpus=vcpus, memory_mib=memory_mib)


async def _reinstalled(tx: Transaction, vm: MachineRow, task: Task, *, succeeded: bool) -> None:
    """The record names the new system once the host says that it is there. It shall run, as a new machine does."""
    await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    if not succeeded:
        return
    await snapshots.gone_with_disks(tx, vm.id)
    await tx.execute(
        "UPDATE vms SET image_id = $2, access_mode = $3, ssh_keys = $4 WHERE id = $1",
        vm.id,
        UUID(task.parameters["image_id"]),
        task.parameters["access_mode"],
        task.parameters["ssh_keys"],
    )
    await platforms.changed(tx, task)
    await media.reinstalled(tx, task)
    if (system := task.parameters.get(WINDOWS)) is not None:
        await windows.expect(tx, vm.id, password=system["password"])
    else:
        await windows.forget(tx, vm.id)
    await power.want(tx, vm, DesiredPower.RUNNING)


def _assumed_observation(status: MachineStatus) -> Observation:
    """The observation to go by where the host has said nothing final: what the machine was before the order."""
    match status:
        case MachineStatus.CREATING | MachineStatus.DELETING | MachineStatus.FAILED:
            return Observation.UNBUILT
        case MachineStatus.STARTING | MachineStatus.STOPPED:
            return Observation.STOPPED
        case _:
            return Observation.RUNNING
