"""The effect of a task's end, or of a host's report outside of a task, on a machine.

Called in a transaction that has the machine's row locked: by the Machine actor, and (`next_status`) by `observing`.

Rule: the status follows the host's last report, not the task's result. A shutdown that failed leaves a machine running
because its host says so, not because the task failed. Only if the host has reported nothing final, the status is
derived from the machine's status before the order (`_assumed_observation`). The exception is a creation that failed:
whatever the host reported meanwhile, the machine was never built.

Rejected: one message and one function for each operation's end. These differed in a word, and each had its own copy of
the part that is the same for all (the network's generation, the status); this part is written once here.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alerts_about
from svc_actors.controller.backups.deleted import removal_ended, set_copies_expiry
from svc_actors.controller.backups.records import backup_ended, superseded_removal_ended
from svc_actors.controller.machines import media, moving, platforms, power, processors, rescue, snapshots, windows
from svc_actors.controller.machines.records import MachineRow, write_definition, write_outcome, write_size, write_status
from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Observation, move, observe
from svc_actors.controller.networking.addresses import free_removed, keep_addresses, start_release
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
"""The parameter of a deletion that names the addresses whose release started with it. If the host refuses the deletion,
the machine keeps these; an address that was detached before stays `releasing`."""

DESTROYED: Final = "destroy_volumes"
"""The parameter of a deletion that names the volumes deleted with the machine."""

GENERATION: Final = "network_generation"
"""The parameter of a task that also brings the machine's network up to date: the generation that the host has at least
once the task has succeeded. The host may have a newer one, since the work sends the network of its moment. But after a
restart of the controller the node repeats its answer to the first request, so only the generation at the time of the
order is certain."""

WINDOWS: Final = "windows"
"""The parameter of a reinstallation: null if the new system is not Windows, else whether a password was ordered."""

LOST: Final = "The host no longer has the machine."


async def settle(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """First apply what is specific to the operation that has ended; then, for all operations, the network and the
    status."""
    # A result with a state is the host's report at the end of the task. Without such a result (the task failed, or the
    # operation does not report the guest's state), the last state observed while the task was open counts.
    heard = ending.result.state if isinstance(ending.result, DomainResult) else None
    seen = heard or vm.observed_state
    failure = "The last task failed"
    built = False
    match task.op:
        case "vm.create" if ending.succeeded:
            built = True
        case "vm.create":
            await _give_up_creation(tx, vm)
            # A domain may have been observed during the creation. With `seen` None the status becomes `failed` in any
            # case, and a failed machine can only be deleted.
            seen, failure = None, "Creation failed"
        case "vm.delete" if isinstance(ending.result, DeleteResult):
            await _remove(tx, vm, task, ending.result)
            return
        case "vm.delete":
            # The host refused the deletion. The order had released the addresses in the records, but the host still
            # carries them: a new network generation makes the host apply them again. A machine that was never built
            # becomes `failed` again.
            await keep_addresses(tx, vm.id, task.parameters.get(RELEASED, ()))
            await network_changed(tx, [vm.id])
            seen, failure = seen if vm.built_at is not None else None, "Deletion failed"
        # The new values of an update or a resize were recorded with the order, so a failure puts the old ones back. The
        # old ones are in the task's parameters: read from the record now, they would be the new ones, also for a repeat
        # after a crash.
        case "vm.update" if not ending.succeeded:
            await _put_back(tx, vm, **task.parameters["before"])
        case "vm.resize" if not ending.succeeded:
            before = task.parameters["before"]
            await write_size(tx, vm.id, **before | {"plan_id": before["plan_id"] and UUID(before["plan_id"])})
        case "vm.reinstall":
            await _reinstalled(tx, vm, task, succeeded=ending.succeeded)
        case "vm.restore" if ending.succeeded:
            # Snapshots are stored inside the disk's file, which the restoration has replaced.
            await snapshots.delete_snapshots(tx, vm.id)
            await platforms.changed(tx, task)
        case snapshots.TAKE | snapshots.RESTORE | snapshots.DELETE:
            await snapshots.record_end(tx, task, ending)
        case "vm.rescue" | "vm.rescue_end":
            await rescue.record_end(tx, vm, task, ending)
        case media.OP:
            await media.record_end(tx, vm, task, ending)
        case op if op in volume_states.OPS:
            await volume_orders.record_end(tx, task, ending)
        case "vm.backup":
            await backup_ended(tx, vm, task, ending)
        case "vm.backups.forget":
            await superseded_removal_ended(tx, vm, task, ending)
        case "vm.backups.remove":
            # The machine is deleted, so no status has to change and no network has to be updated.
            await removal_ended(tx, vm, task, ending)
            return
        case "vm.cpu.set" if ending.succeeded:
            await processors.changed(tx, vm, task, seen)
        # A live move is left out: it was recorded while its task ran (`moving.commit_move`), because the guest waited,
        # paused, for the record.
        case moving.OP if ending.succeeded and not task.parameters.get(moving.LIVE):
            await moving.moved(tx, vm, task)
        case "vm.set_password":
            # The password is deleted whether it could be set or not: it is kept only as long as the task.
            await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
            if ending.succeeded:
                await windows.password_set(tx, vm.id)
    if ending.succeeded and processors.restarts_guest(task):
        await processors.apply_pending_processor(tx, vm)
    if heard is not None:
        await power.note_pause(tx, vm, heard, None)
    # While a task that also applies the machine's network is open, the network watch leaves the machine alone. If the
    # task has ended without bringing the host up to date, the watch is called now, so that it does not wait for its
    # next round.
    generation: int | None = task.parameters.get(GENERATION) if ending.succeeded else None
    if generation is None:
        await call_watch(tx)
    # `observe` returns None for a guest that is shutting down. That is not final, so the status from before the order
    # counts.
    observation = (observe(seen) if seen is not None else None) or _assumed_observation(vm.status)
    # The task's message becomes the reason of the machine's status only if the failure leaves the machine `failed`.
    # After a shutdown that the guest ignored, for example, the machine is running, and this status has no reason.
    failed = not ending.succeeded and observation in (Observation.UNBUILT, Observation.LOST)
    reason = await power.task_ended(tx, vm, task, ending, observation, seen)
    status, reason = next_status(
        vm.status, vm.status_reason, observation, reason or (f"{failure}: {ending.message}" if failed else None)
    )
    await write_outcome(tx, vm, status, reason, heard=heard, built=built, generation=generation)


async def interrupted(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """A task ended, and nobody knows what it has done. The machine is taken to be in the state from before the task,
    until its host reports otherwise. No address, disk or room is given back: the host may have used all of it. A
    deleted machine stays deleted."""
    if vm.status is MachineStatus.DELETED:
        return
    if task.op in snapshots.OPS:
        await snapshots.record_end(tx, task, ending)
    if task.op in volume_states.OPS:
        await volume_orders.record_end(tx, task, ending, known=False)
    if task.op in ("vm.create", "vm.reinstall", "vm.rescue", "vm.set_password"):
        await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    status, reason = next_status(vm.status, vm.status_reason, _assumed_observation(vm.status), ending.message)
    await write_status(tx, vm.id, status, reason)


def next_status(
    status: MachineStatus, known: str | None, observation: Observation, reason: str | None
) -> tuple[MachineStatus, str | None]:
    """The status to which the observation leads, and the reason for it; `known` is the reason of the present status."""
    after = move(status, observation)
    # The machine was observed off, or lost, again. If this report has no reason, the first report's reason stays.
    if after is status and after in (MachineStatus.STOPPED, MachineStatus.FAILED):
        reason = reason or known
    if after is MachineStatus.FAILED and reason is None:
        reason = LOST
    return after, reason


async def _give_up_creation(tx: Transaction, vm: MachineRow) -> None:
    """The failed machine stays until it is deleted, without an address and without the secret of its first boot. Its
    address is `releasing` until the node confirms: the host may have routed it before the creation failed."""
    await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    await lock_capacity(tx, vm.node_id)
    await start_release(tx, vm.id)


async def _remove(tx: Transaction, vm: MachineRow, task: Task, result: DeleteResult) -> None:
    """The host has removed the machine. An address that the host did not name stays `releasing`; a disk that the host
    has kept becomes a volume."""
    await machine_gone(tx, vm.id, [UUID(each) for each in task.parameters.get(DESTROYED, ())])
    await lock_capacity(tx, vm.node_id)
    await start_release(tx, vm.id)
    await free_removed(tx, vm.id, result.removed_addresses)
    await close_alerts_about(tx, "vm", vm.id)
    await leave_groups(tx, vm.id)
    await snapshots.delete_snapshots(tx, vm.id)
    await set_copies_expiry(tx, vm.id)
    if vm.node_id is not None:
        # A machine has one disk of its own. If a host names more kept disks than the order asked it to keep (a hostile
        # host could name sixteen), these are recorded as volumes but do not count towards the customer's limits.
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
    status, reason = next_status(vm.status, vm.status_reason, Observation.DELETED, None)
    await write_outcome(tx, vm, status, reason, heard=None, built=False, generation=None)


async def _put_back(tx: Transaction, vm: MachineRow, *, name: str, vcpus: int, memory_mib: int) -> None:
    """The host refused the update and still has the old values. If the old name is another machine's by now, this
    machine keeps the new name; the sizes are reverted in any case."""
    try:
        async with tx.savepoint():
            await write_definition(tx, vm.id, name=name, vcpus=vcpus, memory_mib=memory_mib)
    except UniqueViolationError:
        await write_definition(tx, vm.id, name=vm.name, vcpus=vcpus, memory_mib=memory_mib)


async def _reinstalled(tx: Transaction, vm: MachineRow, task: Task, *, succeeded: bool) -> None:
    """The record names the new system once the host reports that it is installed. The desired power becomes running, as
    for a new machine."""
    await tx.execute("UPDATE vms SET sealed_seed = NULL WHERE id = $1", vm.id)
    if not succeeded:
        return
    await snapshots.delete_snapshots(tx, vm.id)
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
        await windows.record_first_boot(tx, vm.id, password=system["password"])
    else:
        await windows.forget(tx, vm.id)
    await power.set_desired_power(tx, vm, DesiredPower.RUNNING)


def _assumed_observation(status: MachineStatus) -> Observation:
    """The observation to use if the host has reported nothing final: it follows from the machine's status before the
    order."""
    match status:
        case MachineStatus.CREATING | MachineStatus.DELETING | MachineStatus.FAILED:
            return Observation.UNBUILT
        case MachineStatus.STARTING | MachineStatus.STOPPED:
            return Observation.STOPPED
        case _:
            return Observation.RUNNING
