"""The Machine actor: the only one that changes a machine's status.

An order is decided here, written in one transaction (status, task, audit, event), and then acted on by the task runner.
When the task ends, the runner asks `task_ended`, which writes the end of the task together with what the last
observation makes of the machine. What a host says outside of a task arrives by `observed`.

Invariants:
- every status change is a move of the table in `states`;
- one open task at a time (also a constraint of the database); only `force_stop` supersedes, and says so in the task
  that it ends; a superseded task's outcome changes nothing any more;
- the row is locked while it is decided, so that two processes could not decide at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert
from svc_actors.controller.machines.network_attachment import NewAddress, attach, detach, set_rate
from svc_actors.controller.machines.records import MachineRow, announce_machine, announce_status, lock_machine
from svc_actors.controller.machines.spec import Seed
from svc_actors.controller.machines.states import (
    UNKNOWN_WHILE_AWAY,
    IllegalMove,
    MachineStatus,
    Observation,
    Order,
    move,
    observe,
    refusal_text,
    run_it_first,
)
from svc_actors.controller.networking.addresses import IPAddress, begin_release, free_removed, keep_addresses
from svc_actors.controller.networking.changes import call_watch, network_alert, network_applied, network_changed
from svc_actors.controller.networking.security_groups import leave_groups
from svc_actors.controller.placement.scheduler import lock_capacity, require_room
from svc_actors.controller.tasks.run import task_seconds
from svc_actors.controller.tasks.runner import (
    Ending,
    ResourceKind,
    Task,
    TaskRunner,
    TaskStatus,
    create_task,
    end_task,
    open_task_of,
)
from svc_actors.errors import ErrorCode, ServiceError, conflict, not_ready, unavailable
from svc_actors.runtime import Actor
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Transaction, UniqueViolationError, audit
from svc_nodeagent.protocol import FACTS, DeleteResult, DomainResult, DomainState

RELEASED: Final = "released"
"""The parameter of a deletion that names the addresses whose release began with it: the machine keeps these after all
if its host refuses to delete it."""

GENERATION: Final = "network_generation"
"""The parameter of a task that carries the machine's network: what generation its host has at least, once the task has
succeeded. The work may read a newer one; but after a restart, the node answers for what it was asked at first."""

_HEARD_SINCE: Final = "SELECT $1::timestamptz < $2::timestamptz AND $2 <= clock_timestamp()"


@dataclass(frozen=True)
class Changes:
    """What a machine may be changed in; None leaves it as it is. Sizes change only while it is stopped."""

    name: str | None = None
    vcpus: int | None = None
    memory_mib: int | None = None


class Machine(Actor):
    """Nothing is kept in memory: each message reads the row it decides on, locked. `recheck` has a node inventoried
    again soon, where what it said could not be recorded."""

    def __init__(self, database: Database, tasks: TaskRunner, sealer: Sealer, recheck: Callable[[UUID], None]) -> None:
        self._database = database
        self._tasks = tasks
        self._sealer = sealer
        self._recheck = recheck

    @property
    def vm_id(self) -> UUID:
        return UUID(self.key)

    async def start(self, caller: Caller) -> Task:
        return await self._order(caller, Order.START, "vm.start", carries_network=True)

    async def shutdown(self, caller: Caller) -> Task:
        return await self._order(caller, Order.SHUTDOWN, "vm.shutdown")

    async def reboot(self, caller: Caller) -> Task:
        return await self._order(caller, Order.REBOOT, "vm.reboot")

    async def force_stop(self, caller: Caller) -> Task:
        return await self._order(caller, Order.FORCE_STOP, "vm.force_stop")

    async def reset(self, caller: Caller) -> Task:
        return await self._order(caller, Order.RESET, "vm.reset")

    async def delete(self, caller: Caller, *, destroy_disks: bool) -> Task:
        """Taken while the node is away as well: the deletion is recorded, the addresses wait to be released (by the
        node's confirmation, or by force), and the task waits for the node to come back."""
        return await self._order(caller, Order.DELETE, "vm.delete", {"destroy_disks": destroy_disks})

    async def update(self, caller: Caller, changes: Changes) -> Task:
        """Change the record at once and the host's definition by a task; when that fails, the record is put back."""

        async def work(tx: Transaction) -> Task:
            vm = await self._idle(tx)
            grows = changes.vcpus is not None or changes.memory_mib is not None
            if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
                raise conflict(f"The machine is {vm.status.value} and cannot be changed.")
            if grows and vm.status is not MachineStatus.STOPPED:
                raise conflict("vcpus and memory change only while the machine is stopped.", hint="Shut it down first.")
            vcpus, memory_mib = changes.vcpus or vm.vcpus, changes.memory_mib or vm.memory_mib
            if grows and vm.node_id is not None:
                await require_room(tx, vm.node_id, vcpus=vcpus - vm.vcpus, memory_mib=memory_mib - vm.memory_mib)
            name = changes.name or vm.name
            before = {"name": vm.name, "vcpus": vm.vcpus, "memory_mib": vm.memory_mib}
            after = {"name": name, "vcpus": vcpus, "memory_mib": memory_mib}
            try:
                await self._write_definition(tx, name, vcpus, memory_mib)
            except UniqueViolationError:
                raise conflict(f"The project has a machine named {name} already.") from None
            task = await self._new_task(tx, caller, vm, "vm.update", {"before": before, "after": after})
            await announce_machine(tx, self.vm_id)
            return task

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def set_password(self, caller: Caller, password_hash: str) -> Task:
        """Have the guest agent set a password. The hash is sealed in the row until the task has ended."""

        async def work(tx: Transaction) -> Task:
            vm = await self._idle(tx)
            if vm.status is not MachineStatus.RUNNING:
                raise conflict(
                    f"A password is set through the guest's agent, and the machine is {vm.status.value}.",
                    hint=run_it_first(vm.status),
                    details={"status": vm.status.value},
                )
            await tx.execute(
                "UPDATE vms SET sealed_seed = $2 WHERE id = $1", self.vm_id, Seed(password_hash).sealed(self._sealer)
            )
            return await self._new_task(tx, caller, vm, "vm.set_password", {})

        task = await self._database.transact(work)
        self._tasks.begin(task)
        return task

    async def attach_address(self, caller: Caller, wanted: NewAddress) -> str:
        """Give the machine a further address, as text; its host is told by the network watch."""

        async def work(tx: Transaction) -> str:
            return await attach(tx, caller, await lock_machine(tx, self.vm_id), wanted)

        return await self._database.transact(work)

    async def detach_address(self, caller: Caller, ip: IPAddress) -> None:
        """Take an address from the machine: it is released once its host has let go of it."""

        async def work(tx: Transaction) -> None:
            await detach(tx, caller, await lock_machine(tx, self.vm_id), ip)

        await self._database.transact(work)

    async def set_rate(self, caller: Caller, rate_mbps: int | None) -> None:
        """Cap the machine's traffic, each way; None takes the cap away."""

        async def work(tx: Transaction) -> None:
            await set_rate(tx, caller, await lock_machine(tx, self.vm_id), rate_mbps)

        await self._database.transact(work)

    async def observed(
        self, node_id: UUID, state: DomainState, reason: str, *, asked_at: datetime | None = None
    ) -> bool:
        """What the machine's host said outside of a task's outcome. False when this node does not host the machine, or
        the machine is gone: then nothing is written. `asked_at` (the database's clock) is given for an answer that
        describes the past, an inventory: what was heard since then is newer, unless the clock has been set back in
        between. What cannot be written (the database is away) is asked for again: this is told, so nobody else would.
        """
        try:
            return await self._database.transact(lambda tx: self._observe(tx, node_id, state, reason, asked_at))
        except ServiceError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return False
            self._recheck(node_id)
            raise

    async def task_ended(self, task: Task, ending: Ending) -> None:
        """Write a task's end and what it means for the machine; nothing when the task had ended before."""

        async def work(tx: Transaction) -> None:
            vm = await lock_machine(tx, self.vm_id, gone=True)
            if await end_task(tx, task.id, ending) is None:
                return
            said = ending.result.state if isinstance(ending.result, DomainResult) else None
            built = task.op == "vm.create" and ending.succeeded
            forget_seed = task.op in ("vm.create", "vm.set_password")
            if said or built or forget_seed:
                await self._write_outcome(tx, said, built=built, forget_seed=forget_seed)
            observed = said or vm.observed_state
            match task.op:
                case "vm.delete" if isinstance(ending.result, DeleteResult):
                    await lock_capacity(tx, vm.node_id)
                    await begin_release(tx, self.vm_id)
                    await free_removed(tx, self.vm_id, ending.result.removed_addresses)
                    await close_alert(tx, network_alert(self.vm_id))
                    await leave_groups(tx, self.vm_id)
                    await call_watch(tx)
                    await self._move(tx, vm, Observation.DELETED, None)
                    return
                case "vm.delete":
                    await keep_addresses(tx, self.vm_id, task.parameters.get(RELEASED, ()))
                    await network_changed(tx, [self.vm_id])
                    observed = observed if vm.built_at is not None else None
                case "vm.update" if not ending.succeeded:
                    await self._put_back(tx, vm.name, **task.parameters["before"])
                case "vm.create" if not ending.succeeded:
                    observed = None
                    await lock_capacity(tx, vm.node_id)
                    await begin_release(tx, self.vm_id)
            if ending.succeeded and GENERATION in task.parameters:
                await network_applied(tx, self.vm_id, task.parameters[GENERATION])
            else:
                await call_watch(tx)
            observation = (observe(observed) if observed is not None else None) or _assumed_observation(vm.status)
            cause = None if ending.succeeded else f"{_failure_prefix(task.op)}: {ending.message}"
            await self._move(
                tx, vm, observation, cause if observation in (Observation.UNBUILT, Observation.LOST) else None
            )

        await self._database.transact(work)

    async def _observe(
        self, tx: Transaction, node_id: UUID, state: DomainState, reason: str, asked_at: datetime | None
    ) -> bool:
        vm = await lock_machine(tx, self.vm_id)
        if vm.node_id != node_id:
            return False
        if await tx.fetchval(_HEARD_SINCE, asked_at, vm.observed_at):
            return True
        await self._note(tx, state)
        observation = observe(state)
        if observation is None or await open_task_of(tx, ResourceKind.VM, self.vm_id) is not None:
            return True
        if vm.status is MachineStatus.FAILED and vm.built_at is None:
            return True
        await self._move(tx, vm, observation, _reason(state, reason))
        return True

    async def _order(
        self,
        caller: Caller,
        order: Order,
        op: str,
        parameters: dict[str, object] | None = None,
        *,
        carries_network: bool = False,
    ) -> Task:
        async def work(tx: Transaction) -> tuple[Task, Task | None]:
            given, superseded = parameters or {}, None
            vm = await lock_machine(tx, self.vm_id)
            if order is not Order.DELETE:
                _require_known(vm)
            under_way = await open_task_of(tx, ResourceKind.VM, self.vm_id)
            if under_way is not None:
                if order is not Order.FORCE_STOP or not FACTS[under_way.op].yields_to_force_stop:
                    raise _busy(under_way)
                superseded = under_way
            try:
                status = move(vm.status, order)
            except IllegalMove:
                raise conflict(
                    f"The machine is {vm.status.value} and cannot be {refusal_text(order)}.",
                    details={"status": vm.status.value},
                ) from None
            if order is Order.DELETE:
                given = {**given, RELEASED: await begin_release(tx, self.vm_id)}
                await network_changed(tx, [self.vm_id])
            if superseded is not None:
                words = f"Superseded: {caller.actor} ordered the machine to be forced to stop."
                await end_task(tx, superseded.id, Ending(TaskStatus.CANCELLED, words))
                given = {**given, "supersedes": str(superseded.id)}
            if carries_network:
                given = {**given, GENERATION: vm.net_wanted}
            task = await self._new_task(tx, caller, vm, op, given)
            await self._write_status(tx, status, None)
            return task, superseded

        task, superseded = await self._database.transact(work)
        if superseded is not None:
            self._tasks.abandon(superseded.id)
        self._tasks.begin(task)
        return task

    async def _idle(self, tx: Transaction) -> MachineRow:
        """The machine, locked, with no task under way and its node online."""
        vm = await lock_machine(tx, self.vm_id)
        _require_known(vm)
        under_way = await open_task_of(tx, ResourceKind.VM, self.vm_id)
        if under_way is not None:
            raise _busy(under_way)
        return vm

    async def _new_task(
        self, tx: Transaction, caller: Caller, vm: MachineRow, op: str, parameters: dict[str, object]
    ) -> Task:
        task = await create_task(
            tx,
            caller,
            op=op,
            resource_kind=ResourceKind.VM,
            resource_id=self.vm_id,
            resource_name=vm.name,
            node_id=vm.node_id,
            project_id=vm.project_id,
            parameters=parameters,
            timeout=None if op == "vm.delete" else task_seconds(op),
        )
        await audit.record(
            tx,
            caller,
            target_kind="vm",
            target_id=self.key,
            target_name=vm.name,
            project_id=vm.project_id,
            details={"task_id": str(task.id), **{name: parameters[name] for name in parameters if name != GENERATION}},
        )
        return task

    async def _move(self, tx: Transaction, vm: MachineRow, observation: Observation, reason: str | None) -> None:
        """Follow the table by the host's observation, and write it where it changes anything."""
        status = move(vm.status, observation)
        if status is MachineStatus.FAILED and vm.status is MachineStatus.FAILED:
            reason = vm.status_reason if observation is not Observation.UNBUILT else reason or vm.status_reason
        if status is MachineStatus.FAILED and reason is None:
            reason = "The host does not have the machine any more."
        if (status, reason) != (vm.status, vm.status_reason):
            await self._write_status(tx, status, reason)

    async def _write_status(self, tx: Transaction, status: MachineStatus, reason: str | None) -> None:
        vm = await tx.fetchone(
            """UPDATE vms SET status = $2, status_reason = $3,
                                  deleted_at = CASE WHEN $2 = 'deleted' THEN now() ELSE deleted_at END
                   WHERE id = $1 RETURNING name, project_id, node_id""",
            self.vm_id,
            status.value,
            reason,
        )
        await announce_status(tx, self.vm_id, vm["name"], vm["project_id"], vm["node_id"], status=status, reason=reason)

    async def _put_back(self, tx: Transaction, name_now: str, *, name: str, vcpus: int, memory_mib: int) -> None:
        """The host kept what it had. The name may be another machine's by now; then this one keeps the new name."""
        try:
            async with tx.savepoint():
                await self._write_definition(tx, name, vcpus, memory_mib)
        except UniqueViolationError:
            await self._write_definition(tx, name_now, vcpus, memory_mib)

    async def _write_definition(self, tx: Transaction, name: str, vcpus: int, memory_mib: int) -> None:
        await tx.execute(
            "UPDATE vms SET name = $2, vcpus = $3, memory_mib = $4 WHERE id = $1",
            self.vm_id,
            name,
            vcpus,
            memory_mib,
        )

    async def _write_outcome(
        self, tx: Transaction, said: DomainState | None, *, built: bool, forget_seed: bool
    ) -> None:
        """What the end of a task says of the machine beside its status: what its host saw last, that it was built, and
        that the seed is needed no more."""
        await tx.execute(
            """UPDATE vms SET observed_state = coalesce($2, observed_state),
                              observed_at = CASE WHEN $2 IS NULL THEN observed_at ELSE now() END,
                              built_at = CASE WHEN $3 THEN now() ELSE built_at END,
                              sealed_seed = CASE WHEN $4 THEN NULL ELSE sealed_seed END
               WHERE id = $1""",
            self.vm_id,
            said.value if said else None,
            built,
            forget_seed,
        )

    async def _note(self, tx: Transaction, state: DomainState) -> None:
        await tx.execute(
            "UPDATE vms SET observed_state = $2, observed_at = now() WHERE id = $1", self.vm_id, state.value
        )


def _assumed_observation(status: MachineStatus) -> Observation:
    """The observation to go by where the host has said nothing final: what the machine was before the order."""
    match status:
        case MachineStatus.CREATING | MachineStatus.DELETING | MachineStatus.FAILED:
            return Observation.UNBUILT
        case MachineStatus.STARTING | MachineStatus.STOPPED:
            return Observation.STOPPED
        case _:
            return Observation.RUNNING


def _require_known(vm: MachineRow) -> None:
    """Raises unavailable for a machine that is shown as `unknown`: whatever is ordered, the answer is the same."""
    if vm.node_id is not None and vm.node_state != "online" and vm.status in UNKNOWN_WHILE_AWAY:
        raise unavailable(
            "The machine's node is not online, so what the machine is now is not known; nothing was changed.",
            hint="Try again once the machine is not shown as unknown any more. Only a deletion is taken meanwhile.",
        )


def _busy(task: Task) -> ServiceError:
    return not_ready(
        f"The machine is busy with {task.op}.",
        hint="Wait for that task, or cancel it.",
        details={"task_id": str(task.id), "op": task.op},
    )


def _reason(state: DomainState, reason: str) -> str | None:
    match state:
        case DomainState.PAUSED:
            return f"The host has paused the guest: {reason}"
        case DomainState.CRASHED:
            return f"The guest crashed: {reason}"
        case DomainState.ABSENT:
            return "The host does not have the machine any more."
        case _:
            return None


def _failure_prefix(op: str) -> str:
    return {"vm.create": "Creation failed", "vm.delete": "Deletion failed"}.get(op, "The last task failed")
