"""The Machine actor: it decides orders for a machine and changes its status.

An order is decided here, written in one transaction (status, task, audit, event), and then executed by the task runner.
When the task ends, the runner calls `task_ended`, which writes the end of the task together with its effect on the
machine (`outcomes`). Reports of a host outside of a task arrive by `observed`.

Invariants:
- every status change is a move of the table in `states`;
- one open task at a time (also a constraint of the database). Only `force_stop` supersedes a task, and says so in the
  task that it ends; the outcome of a superseded task has no effect;
- the row is locked while a decision is made, so that two processes cannot decide at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final
from uuid import UUID

from svc_actors.controller.backups import orders as backup_orders
from svc_actors.controller.backups.records import BackupLocation
from svc_actors.controller.machines import (
    copy_files,
    media,
    moving,
    power,
    processors,
    remaking,
    rescue,
    snapshots,
    windows,
)
from svc_actors.controller.machines.admission import (
    moved,
    require_confirmed,
    require_idle,
    require_known,
    require_not_in_rescue,
    require_not_suspended,
    require_unprotected,
)
from svc_actors.controller.machines.changes import Changes, definition, start_change, update_settings
from svc_actors.controller.machines.network_attachment import (
    NewAddress,
    attach,
    detach,
    set_rate,
)
from svc_actors.controller.machines.observing import MachineReport, record_observations
from svc_actors.controller.machines.outcomes import DESTROYED, GENERATION, RELEASED, settle
from svc_actors.controller.machines.processors import NewProcessor
from svc_actors.controller.machines.records import (
    MachineRow,
    announce_machine,
    lock_machine,
    write_status,
)
from svc_actors.controller.machines.remaking import NewSize, NewSystem
from svc_actors.controller.machines.spec import Seed
from svc_actors.controller.machines.states import (
    DesiredPower,
    MachineStatus,
    Order,
    move,
    start_hint,
)
from svc_actors.controller.machines.tasks import idle, new_task, supersede
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.networking.addresses import IPAddress, start_release
from svc_actors.controller.networking.changes import network_changed
from svc_actors.controller.tasks.runner import (
    Ending,
    ResourceKind,
    Task,
    TaskRunner,
    end_task,
    open_task_of,
)
from svc_actors.controller.volumes import orders as volume_orders
from svc_actors.controller.volumes.records import volumes_deleted_with
from svc_actors.runtime import Actor
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Transaction, service_itself
from svc_common.errors import ServiceError, conflict
from svc_nodeagent.protocol import DomainState, StateCause

Decide = Callable[[Transaction], Awaitable[None]]
"""A further decision in the transaction of an order, made before the order; it may refuse the order."""
Parameters = Callable[[Transaction, MachineRow], Awaitable[dict[str, object]]]
"""A decision about an order, which may refuse it; returns the parameters of its task."""


class Machine(Actor):
    """Holds no state in memory: each message reads and locks the row it decides on. `recheck` requests a new inventory
    of a node whose report could not be recorded."""

    def __init__(
        self,
        database: Database,
        tasks: TaskRunner,
        sealer: Sealer,
        passwords: WindowsPasswords,
        recheck: Callable[[UUID], None],
    ) -> None:
        self._database = database
        self._tasks = tasks
        self._sealer = sealer
        self._passwords = passwords
        self._recheck = recheck

    @property
    def vm_id(self) -> UUID:
        return UUID(self.key)

    async def order(self, caller: Caller, order: Order) -> Task:
        """Order the node operation of the same name. A deletion is ordered with `delete` instead."""

        async def work(tx: Transaction) -> tuple[Task, Task | None]:
            vm = await lock_machine(tx, self.vm_id)
            require_known(vm)
            await moving.require_released(tx, vm)
            if order.wants is DesiredPower.RUNNING:
                await require_not_suspended(tx, vm)
            superseded = await supersede(tx, caller, self.vm_id, order)
            status = moved(vm, order)
            parameters: dict[str, object] = {}
            if superseded is not None:
                parameters["supersedes"] = str(superseded.id)
                if superseded.op in rescue.OPS:
                    await rescue.superseded(tx, vm)
                    parameters[rescue.SUPERSEDED] = True
            if order is Order.START:
                parameters[GENERATION] = vm.net_wanted
            task = await new_task(tx, caller, vm, order.op, parameters)
            await power.set_desired_power(tx, vm, order.wants)
            await write_status(tx, vm.id, status, None)
            return task, superseded

        task, superseded = await self._database.transact(work)
        if superseded is not None:
            self._tasks.abandon(superseded.id)
        self._tasks.start(task)
        return task

    async def delete(self, caller: Caller, *, destroy_disks: bool, destroy_volumes: bool = False) -> Task:
        """Delete the machine. The order is accepted even while the machine's node is away: the deletion is recorded,
        the addresses wait to be released (by the node's confirmation, or by force), and the task waits until the node
        is back."""

        async def work(tx: Transaction) -> Task:
            vm = await lock_machine(tx, self.vm_id)
            require_unprotected(vm, Order.DELETE)
            await require_idle(tx, self.vm_id)
            await moving.require_released(tx, vm)
            status = moved(vm, Order.DELETE)
            released = await start_release(tx, self.vm_id)
            await network_changed(tx, [self.vm_id])
            going = await volumes_deleted_with(tx, vm.id, all_of_them=destroy_volumes)
            destroyed = {DESTROYED: [str(each) for each in going]} if going else {}
            parameters = {"destroy_disks": destroy_disks, RELEASED: released} | destroyed
            task = await new_task(tx, caller, vm, Order.DELETE.op, parameters)
            await power.set_desired_power(tx, vm, Order.DELETE.wants)
            await write_status(tx, vm.id, status, None)
            return task

        return await self._start(work)

    async def update(self, caller: Caller, changes: Changes) -> Task | None:
        """Apply all changes in one transaction, or none; returns None if they do not concern the host. Name and size
        change at once in the record, and by a task in the host's definition; if the task fails, they are reverted."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id)
            await update_settings(tx, caller, vm, changes)
            if changes.of_the_definition(vm) == definition(vm):
                return None
            vm = await idle(tx, self.vm_id)
            parameters = await start_change(tx, vm, changes)
            task = await new_task(tx, caller, vm, "vm.update", parameters)
            await announce_machine(tx, self.vm_id)
            return task

        return await self._start_if_any(work)

    async def resize(self, caller: Caller, size: NewSize, decide: Decide | None = None) -> Task:
        """Change the record at once and the host's machine by a task; if the task fails, the record is reverted."""

        async def work(tx: Transaction) -> Task:
            if decide is not None:
                await decide(tx)
            vm = await idle(tx, self.vm_id)
            parameters, status = await remaking.resize(tx, vm, size)
            task = await new_task(tx, caller, vm, Order.RESIZE.op, parameters)
            if status is None:
                await announce_machine(tx, vm.id)
            else:
                await write_status(tx, vm.id, status, None)
            return task

        return await self._start(work)

    async def set_processor(self, caller: Caller, new: NewProcessor) -> Task:
        """Write another processor into the machine's definition on the host. An order that is repeated because its
        answer was lost gets the task of the first order."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters, status = await processors.change(tx, vm, new)
            task = await new_task(tx, caller, vm, Order.CPU_SET.op, parameters)
            if status is not None:
                await write_status(tx, vm.id, status, None)
            return task

        task, _ = await self._start_once(Order.CPU_SET.op, new.order, work)
        return task

    async def reinstall(self, caller: Caller, new: NewSystem, decide: Decide | None = None) -> tuple[Task, bool]:
        """Replace the machine's system by a new one; addresses, name and size stay. Returns the task and whether it is
        new: an order that is repeated because its answer was lost gets the task of the first order."""

        async def work(tx: Transaction) -> Task:
            if decide is not None:
                await decide(tx)
            vm = await idle(tx, self.vm_id)
            parameters, status = await remaking.reinstall(tx, vm, new, self._sealer)
            task = await new_task(tx, caller, vm, Order.REINSTALL.op, parameters)
            await write_status(tx, vm.id, status, None)
            return task

        task, started = await self._start_once(Order.REINSTALL.op, new.order, work)
        if started and new.first_boot is not None and new.first_boot.password is not None:
            # The work of the task starts at the next checkpoint, after this.
            self._passwords.keep(self.vm_id, new.first_boot.password)
        return task, started

    async def rescue(self, caller: Caller, new: rescue.NewRescue) -> tuple[Task, bool]:
        """Boot the rescue system. Returns the task and whether it is new: an order that is repeated because its answer
        was lost gets the task of the first order."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters, status = await rescue.start_rescue(tx, vm, new, self._sealer)
            task = await new_task(tx, caller, vm, Order.RESCUE.op, parameters | {GENERATION: vm.net_wanted})
            await write_status(tx, vm.id, status, None)
            return task

        return await self._start_once(Order.RESCUE.op, new.order, work)

    async def end_rescue(self, caller: Caller, *, force: bool) -> Task:
        """Boot the machine's own disk again."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters, status = await rescue.start_exit(tx, vm, force=force)
            task = await new_task(tx, caller, vm, Order.RESCUE_END.op, parameters | {GENERATION: vm.net_wanted})
            await write_status(tx, vm.id, status, None)
            return task

        return await self._start(work)

    async def migrate(self, caller: Caller, move: moving.Move) -> Task:
        """Migrate the machine to another node: offline, live, or with a restart. An order that is repeated because its
        answer was lost gets the task of the first order."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters, status = await moving.start_move(tx, vm, move)
            task = await new_task(tx, caller, vm, moving.OP, parameters)
            if status is None:
                await announce_machine(tx, vm.id)
            else:
                await write_status(tx, vm.id, status, None)
            return task

        task, _ = await self._start_once(moving.OP, move.order, work)
        return task

    async def commit_move(self, task: Task) -> bool:
        """Record that the guest of a live migration now runs on the other node. False if the task has ended meanwhile:
        then the machine stays where it was."""
        return await self._within(task, moving.commit_move)

    async def gone_back(self, task: Task) -> bool:
        """Record that the guest of a live migration is on the source node after all. False as in `commit_move`."""
        return await self._within(task, moving.revert_move)

    async def _within(self, task: Task, step: Callable[[Transaction, MachineRow, Task], Awaitable[None]]) -> bool:
        async def work(tx: Transaction) -> bool:
            vm = await lock_machine(tx, self.vm_id)
            under_way = await open_task_of(tx, ResourceKind.VM, self.vm_id)
            if under_way is None or under_way.id != task.id:
                return False
            await step(tx, vm, task)
            return True

        return await self._database.transact(work)

    async def set_password(self, caller: Caller, password_hash: str) -> Task:
        """Set a password through the guest agent. The hash is sealed in the row until the task has ended."""

        async def work(tx: Transaction) -> Task:
            vm = await self._ready_for_a_password(tx)
            await tx.execute(
                "UPDATE vms SET sealed_seed = $2 WHERE id = $1", vm.id, Seed(password_hash).sealed(self._sealer)
            )
            return await new_task(tx, caller, vm, "vm.set_password", {})

        return await self._start(work)

    async def set_windows_password(self, caller: Caller, password: str) -> Task:
        """As `set_password`, for Windows, which takes no crypt hash: the password is in memory until the task ends."""

        async def work(tx: Transaction) -> Task:
            vm = await self._ready_for_a_password(tx)
            await windows.require_booted(tx, vm.id)
            return await new_task(tx, caller, vm, "vm.set_password", {})

        task = await self._database.transact(work)
        self._passwords.keep(task.id, password)
        self._tasks.start(task)
        return task

    async def _ready_for_a_password(self, tx: Transaction) -> MachineRow:
        vm = await idle(tx, self.vm_id)
        require_not_in_rescue(vm, "given a password")
        if vm.status is not MachineStatus.RUNNING:
            raise conflict(
                f"The machine is {vm.status.value}, and a password is set by the guest's agent, which needs a "
                "running machine; nothing was changed.",
                hint=start_hint(vm.status),
                details={"status": vm.status.value},
            )
        return vm

    async def first_boot_ended(self, ordered_at: datetime, error: str | None) -> None:
        """The first boot of the Windows ordered at `ordered_at` has ended; `error`: why its password is not set."""

        async def work(tx: Transaction) -> None:
            await windows.booted(tx, await lock_machine(tx, self.vm_id), ordered_at, error)

        await self._database.transact(work)

    async def take_own_password(self, caller: Caller) -> None:
        """Record that the caller receives the password which the machine has set for itself. This is possible once."""

        async def work(tx: Transaction) -> None:
            await windows.take(tx, caller, await lock_machine(tx, self.vm_id))

        await self._database.transact(work)

    async def back_up(self, caller: Caller | None) -> Task:
        """Back up the disks to the node's target; a caller of None is the schedule."""
        decide = partial(backup_orders.start_backup, scheduled=caller is None)
        return await self._order_idle(caller or service_itself("vm.backup"), "vm.backup", decide)

    async def restore_copy(self, caller: Caller, copy_id: UUID) -> Task:
        """Restore the disks from a copy. Raises conflict, not_found, not_ready."""
        return await self._order_idle(caller, "vm.restore", partial(backup_orders.start_restoration, copy_id=copy_id))

    async def open_copy(self, caller: Caller, copy_id: UUID) -> Task:
        """Open the files of a copy on the node. Raises conflict, not_found, not_ready."""
        return await self._order_idle(caller, copy_files.OPEN, partial(copy_files.opening_parameters, copy_id=copy_id))

    async def change_medium(self, caller: Caller, new: media.NewMedium) -> Task:
        """Insert another image into the CD-ROM drive, or eject it; if the task fails, the record is reverted."""
        return await self._order_idle(caller, media.OP, partial(media.record_medium, new=new))

    async def snapshot(self, caller: Caller, order: snapshots.SnapshotOrder) -> Task:
        """Take, restore or delete a snapshot of the disks. Raises conflict, not_found, not_ready."""
        return await self._order_idle(caller, order.op, partial(snapshots.record_order, order=order))

    async def volume(self, caller: Caller, order: volume_orders.MachineOrder) -> tuple[UUID, Task]:
        """Attach, detach or grow a volume, or create a volume for the machine. Raises capacity, conflict, not_found,
        not_ready, unavailable."""

        async def work(tx: Transaction) -> tuple[UUID, Task]:
            vm = await idle(tx, self.vm_id)
            if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
                raise conflict(
                    f"The machine is {vm.status.value}, so its volumes were not changed.",
                    details={"status": vm.status.value},
                )
            volume, parameters = await volume_orders.machine_task(tx, order, vm_id=vm.id, node_id=vm.node_id)
            task = await new_task(tx, caller, vm, order.op, parameters)
            await announce_machine(tx, vm.id)
            return volume.id, task

        volume_id, task = await self._database.transact(work)
        self._tasks.start(task)
        return volume_id, task

    async def remove_copies(self, at: BackupLocation) -> Task | None:
        """Remove the deleted machine's copies at a place, if the removal is due. A node that is lost or was removed is
        not asked: the storage mounted on it keeps its copies, and the audit says so."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id, gone=True)
            caller = service_itself("vm.backups.remove")
            parameters = await backup_orders.start_removal(tx, caller, vm, at)
            if parameters is None:
                return None
            return await new_task(tx, caller, vm, "vm.backups.remove", parameters, at.node_id)

        return await self._start_if_any(work)

    async def forget_copies(self, at: BackupLocation) -> Task | None:
        """Remove superseded copies at a place to which the machine is no longer copied; a node that is lost or was
        removed is treated as in `remove_copies`."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id)
            caller = service_itself("vm.backups.forget")
            parameters = await backup_orders.start_superseded_removal(tx, caller, vm, at)
            if parameters is None:
                return None
            return await new_task(tx, caller, vm, "vm.backups.forget", parameters, at.node_id)

        return await self._start_if_any(work)

    async def attach_address(self, caller: Caller, address: NewAddress) -> str:
        """Allocate a further address, returned as text; the network watch applies it on the host."""

        async def work(tx: Transaction) -> str:
            vm = await lock_machine(tx, self.vm_id)
            require_confirmed(vm)
            return await attach(tx, caller, vm, address)

        return await self._database.transact(work)

    async def detach_address(self, caller: Caller, ip: IPAddress) -> None:
        """Release an address of the machine: it becomes free once its host no longer carries it."""

        async def work(tx: Transaction) -> None:
            vm = await lock_machine(tx, self.vm_id)
            require_confirmed(vm)
            await detach(tx, caller, vm, ip)

        await self._database.transact(work)

    async def set_rate(self, caller: Caller, rate_mbps: int | None) -> None:
        """Cap the machine's traffic in each direction; None removes the cap."""

        async def work(tx: Transaction) -> None:
            await set_rate(tx, caller, await lock_machine(tx, self.vm_id), rate_mbps)

        await self._database.transact(work)

    async def restore(self) -> Task | None:
        """Bring the machine to its desired power state: start it, or define it again on a host that has lost it.
        Whether this is needed is decided again under the lock: an order, maintenance or a deletion that came first
        wins."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id)
            if not await tx.fetchval(
                f"SELECT {power.AWAITING} FROM vms JOIN nodes ON nodes.id = vms.node_id WHERE vms.id = $1", vm.id
            ):
                return None
            if vm.desired is DesiredPower.STOPPED:
                same = definition(vm)
                return await new_task(tx, service_itself("vm.update"), vm, "vm.update", {"before": same, "after": same})
            order = Order.START
            task = await new_task(tx, service_itself(order.op), vm, order.op, {GENERATION: vm.net_wanted})
            await write_status(tx, vm.id, move(vm.status, order), vm.status_reason)
            return task

        return await self._start_if_any(work)

    async def recovered(self) -> None:
        """Reset the count of failures, if the machine has run for long enough."""

        async def work(tx: Transaction) -> None:
            vm = await lock_machine(tx, self.vm_id)
            if vm.status is MachineStatus.RUNNING and vm.recovered:
                await power.recovered(tx, vm)

        await self._database.transact(work)

    async def observed(
        self,
        node_id: UUID,
        state: DomainState,
        reason: str,
        *,
        cause: StateCause | None = None,
        asked_at: datetime | None = None,
        rescue: bool | None = None,
    ) -> bool:
        """Record a host's report outside of a task's outcome. False if this node does not host the machine, or the
        machine is deleted: then nothing is written. `asked_at` (the database's clock) is given for an inventory, which
        describes the past: reports recorded since then are newer, unless the clock was set back in between. A report
        that cannot be written (the database is away) is requested again, since its sender does not repeat it.
        """

        async def work(tx: Transaction) -> bool:
            seen = {self.vm_id: MachineReport(node_id, state, reason, cause, rescue)}
            return bool(await record_observations(tx, seen, asked_at=asked_at, wait=True))

        try:
            return await self._database.transact(work)
        except ServiceError:
            self._recheck(node_id)
            raise

    async def task_ended(self, task: Task, ending: Ending) -> None:
        """Write a task's end and its effect on the machine; writes nothing if the task had already ended."""

        async def work(tx: Transaction) -> None:
            vm = await lock_machine(tx, self.vm_id, gone=True)
            if await end_task(tx, task.id, ending) is not None:
                await settle(tx, vm, task, ending)

        await self._database.transact(work)
        self._passwords.forget(task.id)
        if task.node_id is not None and rescue.may_differ(task, ending):
            self._recheck(task.node_id)
        if task.op in (_MAKES_NONE if ending.succeeded else _MAKES_ONE):
            # The machine no longer has a Windows whose first boot could end, so its password is not needed.
            self._passwords.forget(self.vm_id)

    async def _order_idle(self, caller: Caller, op: str, decide: Parameters) -> Task:
        """Order a task of a machine that has none, with what `decide` returns as its parameters."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            return await new_task(tx, caller, vm, op, await decide(tx, vm))

        return await self._start(work)

    async def _start(self, work: Callable[[Transaction], Awaitable[Task]]) -> Task:
        """Write an order, then start its task."""
        task = await self._database.transact(work)
        self._tasks.start(task)
        return task

    async def _start_if_any(self, work: Callable[[Transaction], Awaitable[Task | None]]) -> Task | None:
        task = await self._database.transact(work)
        if task is not None:
            self._tasks.start(task)
        return task

    async def _start_once(
        self, op: str, order: str | None, work: Callable[[Transaction], Awaitable[Task]]
    ) -> tuple[Task, bool]:
        """Write an order and start its task, and return it with whether it is new: an order that is repeated, after its
        answer was lost, gets the task of the first."""

        async def write(tx: Transaction) -> tuple[Task, bool]:
            before = await remaking.task_of_order(tx, self.vm_id, op, order)
            return (await work(tx), True) if before is None else (before, False)

        task, new = await self._database.transact(write)
        if new:
            self._tasks.start(task)
        return task, new


_MAKES_ONE: Final = frozenset({"vm.create", Order.REINSTALL.op})
_MAKES_NONE: Final = frozenset({Order.DELETE.op})
"""`_MAKES_ONE`: tasks that leave a machine with a new system when they succeed. `_MAKES_NONE`: tasks that leave no
system."""
