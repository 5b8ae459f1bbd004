"""The Machine actor: the only one that changes a machine's status.

An order is decided here, written in one transaction (status, task, audit, event), and then acted on by the task runner.
When the task ends, the runner asks `task_ended`, which writes the end of the task together with what it makes of the
machine (`outcomes`). What a host says outside of a task arrives by `observed`.

Invariants:
- every status change is a move of the table in `states`;
- one open task at a time (also a constraint of the database); only `force_stop` supersedes, and says so in the task
  that it ends; a superseded task's outcome changes nothing any more;
- the row is locked while it is decided, so that two processes could not decide at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.controller.backups import orders as backup_orders
from svc_actors.controller.backups.records import At
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
from svc_actors.controller.machines.changes import Changes, definition, start_change, write_record
from svc_actors.controller.machines.network_attachment import (
    NewAddress,
    attach,
    detach,
    set_rate,
)
from svc_actors.controller.machines.observing import Seen, record_observations
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
    run_it_first,
)
from svc_actors.controller.machines.tasks import idle, new_task, supersede
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.networking.addresses import IPAddress, begin_release
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
from svc_actors.controller.volumes.records import goes_with_machine
from svc_actors.errors import ServiceError, conflict
from svc_actors.runtime import Actor
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Transaction, service_itself
from svc_nodeagent.protocol import DomainState, StateCause

Decide = Callable[[Transaction], Awaitable[None]]
"""What somebody else decides with an order, first in its transaction; it may refuse."""


class Machine(Actor):
    """Nothing is kept in memory: each message reads the row it decides on, locked. `recheck` has a node inventoried
    again soon, where what it said could not be recorded."""

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
        """Have the host carry out the node operation that is called like the order. A deletion is `delete`."""

        async def work(tx: Transaction) -> tuple[Task, Task | None]:
            vm = await lock_machine(tx, self.vm_id)
            require_known(vm)
            await moving.require_let_go(tx, vm)
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
            await power.want(tx, vm, order.wants)
            await write_status(tx, vm.id, status, None)
            return task, superseded

        task, superseded = await self._database.transact(work)
        if superseded is not None:
            self._tasks.abandon(superseded.id)
        self._tasks.begin(task)
        return task

    async def delete(self, caller: Caller, *, destroy_disks: bool, destroy_volumes: bool = False) -> Task:
        """Taken while the node is away as well: the deletion is recorded, the addresses wait to be released (by the
        node's confirmation, or by force), and the task waits for the node to come back."""

        async def work(tx: Transaction) -> Task:
            vm = await lock_machine(tx, self.vm_id)
            require_unprotected(vm, Order.DELETE)
            await require_idle(tx, self.vm_id)
            await moving.require_let_go(tx, vm)
            status = moved(vm, Order.DELETE)
            released = await begin_release(tx, self.vm_id)
            await network_changed(tx, [self.vm_id])
            going = await goes_with_machine(tx, vm.id, all_of_them=destroy_volumes)
            destroyed = {DESTROYED: [str(each) for each in going]} if going else {}
            parameters = {"destroy_disks": destroy_disks, RELEASED: released} | destroyed
            task = await new_task(tx, caller, vm, Order.DELETE.op, parameters)
            await power.want(tx, vm, Order.DELETE.wants)
            await write_status(tx, vm.id, status, None)
            return task

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def update(self, caller: Caller, changes: Changes) -> Task | None:
        """All that differs from the record, in one transaction, or nothing; None where no host is told of it. Name and
        size change in the record at once and in the host's definition by a task; when that fails, they are put back."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id)
            await write_record(tx, caller, vm, changes)
            if changes.of_the_definition(vm) == definition(vm):
                return None
            vm = await idle(tx, self.vm_id)
            parameters = await start_change(tx, vm, changes)
            task = await new_task(tx, caller, vm, "vm.update", parameters)
            await announce_machine(tx, self.vm_id)
            return task

        task = await self._database.transact(work)
        if task is not None:
            self._tasks.begin(task)
        return task

    async def resize(self, caller: Caller, wanted: NewSize, decide: Decide | None = None) -> Task:
        """Change the record at once and the host's machine by a task; when that fails, the record is put back."""

        async def work(tx: Transaction) -> Task:
            if decide is not None:
                await decide(tx)
            vm = await idle(tx, self.vm_id)
            parameters, status = await remaking.resize(tx, vm, wanted)
            task = await new_task(tx, caller, vm, Order.RESIZE.op, parameters)
            if status is None:
                await announce_machine(tx, vm.id)
            else:
                await write_status(tx, vm.id, status, None)
            return task

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def set_processor(self, caller: Caller, new: NewProcessor) -> Task:
        """Have the host write another processor into the machine's definition. An order that comes again, after its
        answer was lost, is answered with the task that it began."""

        async def work(tx: Transaction) -> tuple[Task, bool]:
            before = await remaking.begun_by(tx, self.vm_id, Order.CPU_SET.op, new.order)
            if before is not None:
                return before, False
            vm = await idle(tx, self.vm_id)
            parameters, status = await processors.change(tx, vm, new)
            task = await new_task(tx, caller, vm, Order.CPU_SET.op, parameters)
            if status is not None:
                await write_status(tx, vm.id, status, None)
            return task, True

        task, begun = await self._database.transact(work)
        if begun:
            self._tasks.begin(task)
        return task

    async def reinstall(self, caller: Caller, new: NewSystem, decide: Decide | None = None) -> tuple[Task, bool]:
        """Have the host put a new system in the place of the machine's own; addresses, name and size stay. An order
        that comes again, after its answer was lost, is answered with the task that it began; True where it begins one.
        """

        async def work(tx: Transaction) -> tuple[Task, bool]:
            before = await remaking.begun_by(tx, self.vm_id, Order.REINSTALL.op, new.order)
            if before is not None:
                return before, False
            if decide is not None:
                await decide(tx)
            vm = await idle(tx, self.vm_id)
            parameters, status = await remaking.reinstall(tx, vm, new, self._sealer)
            task = await new_task(tx, caller, vm, Order.REINSTALL.op, parameters)
            await write_status(tx, vm.id, status, None)
            return task, True

        task, begun = await self._database.transact(work)
        if begun:
            if new.first_boot is not None and new.first_boot.password is not None:
                self._passwords.keep(self.vm_id, new.first_boot.password)
            self._tasks.begin(task)
        return task, begun

    async def rescue(self, caller: Caller, new: rescue.NewRescue) -> tuple[Task, bool]:
        """Have it boot the rescue system. An order that comes again, after its answer was lost, is answered with the
        task that it began; True where it begins one."""

        async def work(tx: Transaction) -> tuple[Task, bool]:
            before = await remaking.begun_by(tx, self.vm_id, Order.RESCUE.op, new.order)
            if before is not None:
                return before, False
            vm = await idle(tx, self.vm_id)
            parameters, status = await rescue.begin(tx, vm, new, self._sealer)
            task = await new_task(tx, caller, vm, Order.RESCUE.op, parameters | {GENERATION: vm.net_wanted})
            await write_status(tx, vm.id, status, None)
            return task, True

        task, begun = await self._database.transact(work)
        if begun:
            self._tasks.begin(task)
        return task, begun

    async def end_rescue(self, caller: Caller, *, force: bool) -> Task:
        """Have it boot its own disk again."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters, status = await rescue.begin_end(tx, vm, force=force)
            task = await new_task(tx, caller, vm, Order.RESCUE_END.op, parameters | {GENERATION: vm.net_wanted})
            await write_status(tx, vm.id, status, None)
            return task

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def migrate(self, caller: Caller, move: moving.Move) -> Task:
        """Have it moved to another node: while it is off, live, or with a restart. An order that comes again, after its
        answer was lost, is answered with the task that it began."""

        async def work(tx: Transaction) -> tuple[Task, bool]:
            before = await remaking.begun_by(tx, self.vm_id, moving.OP, move.order)
            if before is not None:
                return before, False
            vm = await idle(tx, self.vm_id)
            parameters, status = await moving.begin_move(tx, vm, move)
            task = await new_task(tx, caller, vm, moving.OP, parameters)
            if status is None:
                await announce_machine(tx, vm.id)
            else:
                await write_status(tx, vm.id, status, None)
            return task, True

        task, begun = await self._database.transact(work)
        if begun:
            self._tasks.begin(task)
        return task

    async def gone_over(self, task: Task) -> bool:
        """Record that its guest is at the other node of its live move. False where the task has ended meanwhile: then
        the machine stays where it was."""
        return await self._within(task, moving.gone_over)

    async def gone_back(self, task: Task) -> bool:
        """Record that it is at the first node of its live move after all. False as of `gone_over`."""
        return await self._within(task, moving.gone_back)

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
        """Have the guest agent set a password. The hash is sealed in the row until the task has ended."""

        async def work(tx: Transaction) -> Task:
            vm = await self._ready_for_a_password(tx)
            await tx.execute(
                "UPDATE vms SET sealed_seed = $2 WHERE id = $1", vm.id, Seed(password_hash).sealed(self._sealer)
            )
            return await new_task(tx, caller, vm, "vm.set_password", {})

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def set_windows_password(self, caller: Caller, password: str) -> Task:
        """As `set_password`, of a Windows, which takes no crypt: the password is in memory until the task has ended."""

        async def work(tx: Transaction) -> Task:
            vm = await self._ready_for_a_password(tx)
            await windows.require_booted(tx, vm.id)
            return await new_task(tx, caller, vm, "vm.set_password", {})

        task = await self._database.transact(work)
        self._passwords.keep(task.id, password)
        self._tasks.begin(task)
        return task

    async def _ready_for_a_password(self, tx: Transaction) -> MachineRow:
        vm = await idle(tx, self.vm_id)
        require_not_in_rescue(vm, "given a password")
        if vm.status is not MachineStatus.RUNNING:
            raise conflict(
                f"A password is set through the guest's agent, and the machine is {vm.status.value}.",
                hint=run_it_first(vm.status),
                details={"status": vm.status.value},
            )
        return vm

    async def first_boot_ended(self, ordered_at: datetime, error: str | None) -> None:
        """That of the Windows which was ordered then; `error`: why its ordered password is not set."""

        async def work(tx: Transaction) -> None:
            await windows.booted(tx, await lock_machine(tx, self.vm_id), ordered_at, error)

        await self._database.transact(work)

    async def take_own_password(self, caller: Caller) -> None:
        """Record that the caller is given the password that the machine has set for itself, which happens once."""

        async def work(tx: Transaction) -> None:
            await windows.take(tx, caller, await lock_machine(tx, self.vm_id))

        await self._database.transact(work)

    async def back_up(self, caller: Caller | None) -> Task:
        """Have its disks copied to its node's target; None is the schedule."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters = await backup_orders.start_backup(tx, vm, scheduled=caller is None)
            return await new_task(tx, caller or service_itself("vm.backup"), vm, "vm.backup", parameters)

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def restore_copy(self, caller: Caller, copy_id: UUID) -> Task:
        """Have its disks made what they were in a copy. Raises conflict, not_found, not_ready."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            parameters = await backup_orders.start_restoration(tx, vm, copy_id)
            return await new_task(tx, caller, vm, "vm.restore", parameters)

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def open_copy(self, caller: Caller, copy_id: UUID) -> Task:
        """Have the files of a copy shown on its node. Raises conflict, not_found, not_ready."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            return await new_task(tx, caller, vm, copy_files.OPEN, await copy_files.begin(tx, vm, copy_id))

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def change_medium(self, caller: Caller, new: media.NewMedium) -> Task:
        """Have another image in its CD-ROM drive, or none; when that fails, the record is put back."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            return await new_task(tx, caller, vm, media.OP, await media.begin(tx, vm, new))

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def snapshot(self, caller: Caller, order: snapshots.SnapshotOrder) -> Task:
        """Have a snapshot of its disks taken, restored or deleted. Raises conflict, not_found, not_ready."""

        async def work(tx: Transaction) -> Task:
            vm = await idle(tx, self.vm_id)
            return await new_task(tx, caller, vm, order.op, await snapshots.begin(tx, vm, order))

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def volume(self, caller: Caller, order: volume_orders.MachineOrder) -> tuple[UUID, Task]:
        """Have a volume of it attached, detached or grown, or a new one made for it. Raises capacity, conflict,
        not_found, not_ready, unavailable."""

        async def work(tx: Transaction) -> tuple[UUID, Task]:
            vm = await idle(tx, self.vm_id)
            if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
                raise conflict(
                    f"The machine is {vm.status.value}, so its volumes are left as they are.",
                    details={"status": vm.status.value},
                )
            volume, parameters = await volume_orders.machine_task(tx, order, vm_id=vm.id, node_id=vm.node_id)
            task = await new_task(tx, caller, vm, order.op, parameters)
            await announce_machine(tx, vm.id)
            return volume.id, task

        volume_id, task = await self._database.transact(work)
        self._tasks.begin(task)
        return volume_id, task

    async def remove_copies(self, at: At) -> Task | None:
        """Have a node remove the deleted machine's copies there, where that is due. A node that is lost or was removed
        is not asked: what is mounted on it has what it has, and the audit says so."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id, gone=True)
            caller = service_itself("vm.backups.remove")
            parameters = await backup_orders.start_removal(tx, caller, vm, at)
            if parameters is None:
                return None
            return await new_task(tx, caller, vm, "vm.backups.remove", parameters, at.node_id)

        return self._begun(await self._database.transact(work))

    async def forget_copies(self, at: At) -> Task | None:
        """Have a node remove what later copies have superseded where the machine is not copied to any more; one that is
        lost or was removed as in `remove_copies`."""

        async def work(tx: Transaction) -> Task | None:
            vm = await lock_machine(tx, self.vm_id)
            caller = service_itself("vm.backups.forget")
            parameters = await backup_orders.start_forgetting(tx, caller, vm, at)
            if parameters is None:
                return None
            return await new_task(tx, caller, vm, "vm.backups.forget", parameters, at.node_id)

        return self._begun(await self._database.transact(work))

    def _begun(self, task: Task | None) -> Task | None:
        if task is not None:
            self._tasks.begin(task)
        return task

    async def attach_address(self, caller: Caller, wanted: NewAddress) -> str:
        """Give the machine a further address, as text; its host is told by the network watch."""

        async def work(tx: Transaction) -> str:
            vm = await lock_machine(tx, self.vm_id)
            require_confirmed(vm)
            return await attach(tx, caller, vm, wanted)

        return await self._database.transact(work)

    async def detach_address(self, caller: Caller, ip: IPAddress) -> None:
        """Take an address from the machine: it is released once its host has let go of it."""

        async def work(tx: Transaction) -> None:
            vm = await lock_machine(tx, self.vm_id)
            require_confirmed(vm)
            await detach(tx, caller, vm, ip)

        await self._database.transact(work)

    async def set_rate(self, caller: Caller, rate_mbps: int | None) -> None:
        """Cap the machine's traffic, each way; None takes the cap away."""

        async def work(tx: Transaction) -> None:
            await set_rate(tx, caller, await lock_machine(tx, self.vm_id), rate_mbps)

        await self._database.transact(work)

    async def restore(self) -> Task | None:
        """Bring the machine to its desired power state, if it is not there: start it, or have a host that lost it
        define it again. Decided anew under the lock: an order, maintenance or a deletion that came first wins."""

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

        task = await self._database.transact(work)
        if task is not None:
            self._tasks.begin(task)
        return task

    async def recovered(self) -> None:
        """Forget earlier failures, if it has run for long enough."""

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
        """What the machine's host said outside of a task's outcome. False when this node does not host the machine, or
        the machine is gone: then nothing is written. `asked_at` (the database's clock) is given for an answer that
        describes the past, an inventory: what was heard since then is newer, unless the clock has been set back in
        between. What cannot be written (the database is away) is asked for again: this is told, so nobody else would.
        """

        async def work(tx: Transaction) -> bool:
            seen = {self.vm_id: Seen(node_id, state, reason, cause, rescue)}
            return bool(await record_observations(tx, seen, asked_at=asked_at, wait=True))

        try:
            return await self._database.transact(work)
        except ServiceError:
            self._recheck(node_id)
            raise

    async def task_ended(self, task: Task, ending: Ending) -> None:
        """Write a task's end and what it means for the machine; nothing when the task had ended before."""

        async def work(tx: Transaction) -> None:
            vm = await lock_machine(tx, self.vm_id, gone=True)
            if await end_task(tx, task.id, ending) is not None:
                await settle(tx, vm, task, ending)

        await self._database.transact(work)
        self._passwords.forget(task.id)
        if task.node_id is not None and rescue.may_differ(task, ending):
            self._recheck(task.node_id)
        if task.op in (_MAKES_NONE if ending.succeeded else _MAKES_ONE):
            # There is no Windows whose first boot could end.
            self._passwords.forget(self.vm_id)


_MAKES_ONE: Final = frozenset({"vm.create", Order.REINSTALL.op})
_MAKES_NONE: Final = frozenset({Order.DELETE.op})
"""Tasks after which a machine has a system that it had not before, or none."""
