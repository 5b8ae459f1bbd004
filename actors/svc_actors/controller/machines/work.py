"""The work of each order's task on the node. No status is decided here: the outcome goes to the Machine actor.

Invariant: a work function can be repeated from its start. It reads the records again, and every step has the same
operation id as before, so for a step that is done already the agent repeats its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from svc_actors.controller.backups.records import (
    FORGET,
    copied_disks,
    copied_state,
    of_system,
    place_of_copy,
    place_of_task,
    store_password,
    superseded_copies,
)
from svc_actors.controller.backups.targets import place_at, tell_failed
from svc_actors.controller.backups.temporary_keys import need_of
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.images.images import ImageWork
from svc_actors.controller.images.own_images import disk_image
from svc_actors.controller.machines import platforms
from svc_actors.controller.machines.copy_files import CopyFilesWork
from svc_actors.controller.machines.draining import DrainWork
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.media import ISO, MediaWork
from svc_actors.controller.machines.move_work import MoveWork
from svc_actors.controller.machines.outcomes import DESTROYED
from svc_actors.controller.machines.rescue import RescueWork
from svc_actors.controller.machines.snapshots import SnapshotWork
from svc_actors.controller.machines.spec import Seed, account_name, machine_spec, network_spec, seed_spec
from svc_actors.controller.machines.states import Order
from svc_actors.controller.machines.windows import ACCOUNT, WindowsPasswords
from svc_actors.controller.tasks.run import has_node_answer, retry_until_final, task_seconds
from svc_actors.controller.tasks.runner import (
    Ending,
    HostRefused,
    LogLevel,
    LostWithNode,
    ResourceKind,
    Task,
    TaskRun,
    TaskRunner,
    Work,
    operation_id,
)
from svc_actors.controller.volumes.records import attached_disks
from svc_actors.controller.volumes.states import OPS
from svc_actors.controller.volumes.work import IRREVOCABLE, VolumeWork
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import conflict, not_found
from svc_nodeagent.protocol import (
    PLAIN,
    CopiedDisk,
    CpuMode,
    DeleteResult,
    DomainState,
    FailureCode,
    ImageSpec,
    MachineSize,
    MachineSpec,
    NodeOperation,
    OperationResult,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
    VmCpuSet,
    VmCreate,
    VmCreateFromCopy,
    VmDelete,
    VmForceStop,
    VmReinstall,
    VmResize,
    VmRestore,
    VmSetPassword,
    VmStart,
    VmUpdate,
    VmWindowsPassword,
)

HOST_STEP: Final = "host"
"""The step of every order that consists of one node operation. `force_stop` uses this name to cancel the step of the
task that it supersedes."""
_MOST_NAMED: Final = 3
"""The most disks that a message names: a host may report a thousand."""

_NOT_THERE: Final = "The password to set has expired; set it again."

_IRREVOCABLE: Final = {
    "vm.delete": "A deletion that has started cannot be cancelled.",
    "vm.reinstall": "A reinstallation that has started cannot be cancelled.",
} | dict.fromkeys(OPS, IRREVOCABLE)
_OPERATION: Final = TypeAdapter[NodeOperation](NodeOperation)


class MachineWork:
    """Registers itself with a task runner and an actor system; see `install_machines`."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        passwords: WindowsPasswords,
        tasks: TaskRunner,
        actors: ActorSystem,
        images: ImageSources,
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._passwords = passwords
        self._tasks = tasks
        self._actors = actors
        self._images = images
        self._media = MediaWork(database, images)
        self._moves = MoveWork(
            database, sealer, tasks, images, self._media, self._seen, self._gone_over, self._gone_back
        )
        self._volumes = VolumeWork(database)

    def install(self) -> None:
        works: dict[str, Work] = {order.op: self.carry_out for order in Order} | {
            "vm.create": self.create,
            "vm.start": self.start,
            "vm.force_stop": self.force_stop,
            "vm.update": self.update,
            "vm.resize": self.resize,
            "vm.cpu.set": self.set_processor,
            "vm.reinstall": self.reinstall,
            "vm.set_password": self.set_password,
            "vm.delete": self.delete,
            "vm.backup": self.back_up,
            "vm.restore": self.restore_copy,
            "vm.backups.forget": self.forget_copies,
            "vm.backups.remove": self.remove_copies,
            "vm.migrate": self._moves.migrate,
        }
        works |= SnapshotWork(self._database).works
        works |= CopyFilesWork(self._database, self._sealer, self._images, self._at).works
        works |= self._media.works
        works |= RescueWork(self._database, self._sealer, self._images).works
        works |= self._volumes.works
        for op, work in works.items():
            self._tasks.handles(op, work, end=self.ended, irrevocable=_IRREVOCABLE.get(op))

    async def _seen(self, vm_id: UUID, node_id: UUID, state: DomainState, reason: str) -> None:
        await self._actors.ref(Machine, str(vm_id)).ask(Machine.observed, node_id, state, reason)

    async def _gone_over(self, task: Task) -> bool:
        return await self._actors.ref(Machine, str(task.resource_id)).ask(Machine.commit_move, task)

    async def _gone_back(self, task: Task) -> bool:
        return await self._actors.ref(Machine, str(task.resource_id)).ask(Machine.gone_back, task)

    async def ended(self, task: Task, ending: Ending) -> None:
        if task.resource_kind is ResourceKind.VOLUME:
            await self._volumes.ended(task, ending)
            return
        match ending.result:
            case DeleteResult(vm_id=vm_id, retained_disks=disks) if disks:
                kept = "1 disk is" if len(disks) == 1 else f"{len(disks)} disks are"
                named = ", ".join(disks[:_MOST_NAMED])
                message = f"Deleted; {kept} kept on its node, in retained/{vm_id}: {named}."
                ending = replace(ending, message=message, hint="It is now a volume: attach or delete it.")
        await self._actors.ref(Machine, str(task.resource_id)).ask(Machine.task_ended, task, ending)

    async def create(self, run: TaskRun) -> OperationResult:
        spec = await machine_spec(self._database, self._sealer, run.task.resource_id)
        vm = await self._database.fetchone("SELECT image_id, iso_image_id FROM vms WHERE id = $1", spec.vm_id)
        iso = await self._media.installer(run, vm["iso_image_id"])
        image_id = await disk_image(self._database, vm["image_id"])
        image, fetched = await self._images.of_task(run, image_id, span=(40 if iso else 0, 50))
        if fetched:
            await run.log("Building the machine.")
        if "copy_id" in run.task.parameters:
            return await self._create_from_copy(run, spec, image, span=(50, 100) if fetched else (0, 100))
        return await run.perform(
            VmCreate(machine=spec, image=image, start=bool(run.task.parameters["start"]), iso=iso),
            step=HOST_STEP,
            span=(50, 100) if fetched or iso else (0, 100),
        )

    async def _create_from_copy(
        self, run: TaskRun, spec: MachineSpec, image: ImageSpec, *, span: tuple[int, int]
    ) -> OperationResult:
        source_id, copy_id = (UUID(run.task.parameters[name]) for name in ("source_id", "copy_id"))
        at = await place_of_copy(self._database, copy_id)
        restoration = VmRestore(
            vm_id=spec.vm_id,
            copy_id=copy_id,
            password=store_password(self._sealer, source_id),
            disks=of_system(await copied_disks(self._database, source_id, copy_id)),
            source_id=source_id,
            place=await place_at(
                self._database, self._sealer, at.target_id, need_of(VmCreateFromCopy.facts, source_id, reads_only=True)
            ),
            state=await copied_state(self._database, copy_id),
        )
        operation = VmCreateFromCopy(
            machine=spec, image=image, start=bool(run.task.parameters["start"]), restoration=restoration
        )
        return await self._at(at.target_id, run.perform(operation, step=HOST_STEP, span=span))

    async def start(self, run: TaskRun) -> OperationResult:
        vm_id = run.task.resource_id
        operation = VmStart(vm_id=vm_id, network=await network_spec(self._database, vm_id))
        return await run.perform(operation, step=HOST_STEP)

    async def carry_out(self, run: TaskRun) -> OperationResult:
        """Execute an order that needs only the machine's id: the node operation of the same name."""
        operation: NodeOperation = _OPERATION.validate_python({"op": run.task.op, "vm_id": run.task.resource_id})
        return await run.perform(operation, step=HOST_STEP)

    async def force_stop(self, run: TaskRun) -> OperationResult:
        superseded = run.task.parameters.get("supersedes")
        node_id = run.task.node_id
        if superseded is not None and node_id is not None:
            # The runner cancels it, too, but not after a restart of the controller: it has no memory of the superseded
            # task then.
            await self._tasks.gateway.cancel(node_id, operation_id(UUID(superseded), HOST_STEP))
        operation = VmForceStop(vm_id=run.task.resource_id)
        return await run.perform(operation, step=HOST_STEP)

    async def delete(self, run: TaskRun) -> OperationResult:
        """Delete the machine on its node. While the node is away nothing is sent and nothing fails: time counts only
        while the node is online. An attempt that the node leaves unanswered is cancelled on the node, and another one
        follows with its own id; deleting twice is harmless. A lost node is not waited for: nobody can report which
        addresses it has released, so the machine's addresses stay `releasing`."""
        operation = VmDelete(
            vm_id=run.task.resource_id,
            destroy_disks=bool(run.task.parameters["destroy_disks"]),
            destroy_volumes=run.task.parameters.get(DESTROYED, ()),
        )

        def final(refusal: HostRefused) -> bool:
            return refusal.failure is not None or run.node_online

        try:
            return await retry_until_final(run, operation, final, step=HOST_STEP)
        except LostWithNode:
            await run.log("The node was declared lost: its data of the machine stays there.", level=LogLevel.WARNING)
            return DeleteResult(vm_id=run.task.resource_id, removed_addresses=(), retained_disks=())

    async def update(self, run: TaskRun) -> OperationResult:
        after = run.task.parameters["after"]
        operation = VmUpdate(
            vm_id=run.task.resource_id, name=after["name"], vcpus=after["vcpus"], memory_mib=after["memory_mib"]
        )
        return await run.perform(operation, step=HOST_STEP)

    async def resize(self, run: TaskRun) -> OperationResult:
        before, after = run.task.parameters["before"], run.task.parameters["after"]
        operation = VmResize(
            vm_id=run.task.resource_id,
            vcpus=after["vcpus"],
            memory_mib=after["memory_mib"],
            disk_gib=after["disk_gib"],
            before=MachineSize.model_validate({name: before[name] for name in MachineSize.model_fields}),
            restart=run.task.parameters["restart"],
        )
        return await run.perform(operation, step=HOST_STEP)

    async def set_processor(self, run: TaskRun) -> OperationResult:
        parameters = run.task.parameters
        operation = VmCpuSet(
            vm_id=run.task.resource_id,
            cpu_mode=CpuMode(parameters["cpu_mode"]),
            before=CpuMode(parameters["before"]),
            restart=parameters["restart"],
        )
        return await run.perform(operation, step=HOST_STEP)

    async def reinstall(self, run: TaskRun) -> OperationResult:
        """The task's id is the new system's instance id, so a repeated attempt is the same reinstallation.

        At some point of the work the old system is gone, and only the host knows whether this point was reached. So an
        attempt without an answer, or during which the agent crashed, is repeated; time counts only while the node is
        online."""
        vm_id, parameters = run.task.resource_id, run.task.parameters
        image_id = UUID(parameters["image_id"])
        vm = await self._database.fetchone(
            """SELECT vms.hostname, vms.sealed_seed, images.login_user FROM vms, images
               WHERE vms.id = $1 AND images.id = $2""",
            vm_id,
            image_id,
        )
        account = account_name(parameters["access_mode"], vm["login_user"])
        secret = Seed.unsealed(self._sealer, vm["sealed_seed"])
        iso_id = parameters.get(ISO)
        iso = await self._media.installer(run, iso_id and UUID(iso_id))
        disk_id = await disk_image(self._database, image_id)
        image, fetched = await self._images.of_task(run, disk_id, span=(40 if iso else 0, 50))
        operation = VmReinstall(
            vm_id=vm_id,
            image=image,
            seed=seed_spec(str(run.task.id), vm["hostname"], account, parameters["ssh_keys"], secret),
            network=await network_spec(self._database, vm_id),
            platform=platforms.of_task(run.task) or PLAIN,
            iso=iso,
        )
        span = (50, 100) if fetched or iso else (0, 100)
        return await retry_until_final(run, operation, has_node_answer, step=HOST_STEP, span=span)

    async def back_up(self, run: TaskRun) -> OperationResult:
        vm_id, at = run.task.resource_id, place_of_task(run.task)
        # The copies to remove are those that the order recorded, even if the plan has changed: if the operation is sent
        # again, the node answers for the first request.
        told = run.task.parameters.get(FORGET)
        if told is None:  # The order was recorded by a release that did not record the copies yet.
            told = map(str, await superseded_copies(self._database, vm_id, at))
        operation = VmBackup(
            vm_id=vm_id,
            copy_id=run.task.id,
            password=store_password(self._sealer, vm_id),
            forget=tuple(map(UUID, told)),
            place=await place_at(self._database, self._sealer, at.target_id, need_of(VmBackup.facts, vm_id)),
        )
        return await self._at(at.target_id, run.perform(operation, step=HOST_STEP))

    async def restore_copy(self, run: TaskRun) -> OperationResult:
        vm_id, copy_id = run.task.resource_id, UUID(run.task.parameters["copy_id"])
        at = await place_of_copy(self._database, copy_id)
        operation = VmRestore(
            vm_id=vm_id,
            copy_id=copy_id,
            password=store_password(self._sealer, vm_id),
            platform=platforms.of_task(run.task),
            place=await place_at(
                self._database, self._sealer, at.target_id, need_of(VmRestore.facts, vm_id, reads_only=True)
            ),
            disks=await self._still_there(run, await copied_disks(self._database, vm_id, copy_id)),
            state=await copied_state(self._database, copy_id),
        )
        try:
            return await self._at(at.target_id, run.perform(operation, step=HOST_STEP))
        except HostRefused as refusal:
            if refusal.failure is not FailureCode.NOT_FOUND:
                raise
            if at.target_id is not None or at.node_id == run.task.node_id:
                raise
            raise not_found(
                "The backup is at the target of the machine's earlier node, and the target of its current node does "
                "not have it; the machine was not changed.",
                hint="Choose a backup made since the machine moved, or ask your provider to mount the same target.",
            ) from refusal

    async def _still_there(self, run: TaskRun, copied: tuple[CopiedDisk, ...]) -> tuple[CopiedDisk, ...]:
        """The disks of a copy that the machine still has. A volume that was detached since is not restored, and one
        that was attached since is left as it is."""
        has = {disk.volume_id for disk in await attached_disks(self._database, run.task.resource_id)}
        left = tuple(disk for disk in copied if disk.volume_id is None or disk.volume_id in has)
        if (apart := len(copied) - len(left)) > 0:
            said = "1 volume" if apart == 1 else f"{apart} volumes"
            await run.log(f"The backup holds {said} that the machine no longer has: left out.")
        return left

    async def forget_copies(self, run: TaskRun) -> OperationResult:
        vm_id, at = run.task.resource_id, place_of_task(run.task)
        operation = VmBackupsForget(
            vm_id=vm_id,
            password=store_password(self._sealer, vm_id),
            copies=run.task.parameters["copies"],
            place=await place_at(self._database, self._sealer, at.target_id, need_of(VmBackupsForget.facts, vm_id)),
        )
        return await self._at(at.target_id, run.perform(operation, step=HOST_STEP))

    async def remove_copies(self, run: TaskRun) -> OperationResult:
        vm_id, at = run.task.resource_id, place_of_task(run.task)
        operation = VmBackupsRemove(vm_id=vm_id)
        if at.target_id is not None:
            operation = VmBackupsRemove(
                vm_id=vm_id,
                place=await place_at(self._database, self._sealer, at.target_id, need_of(VmBackupsRemove.facts, vm_id)),
                password=store_password(self._sealer, vm_id),
            )
        return await self._at(at.target_id, run.perform(operation, step=HOST_STEP))

    async def _at(self, target_id: UUID | None, performed: Awaitable[OperationResult]) -> OperationResult:
        """Await an operation at a backup target, and raise the target's alert if the target is at fault."""
        try:
            return await performed
        except HostRefused as refusal:
            if target_id is not None and refusal.failure is FailureCode.TARGET:
                await self._database.transact(partial(tell_failed, target_id=target_id, why=refusal.message))
            raise

    async def set_password(self, run: TaskRun) -> OperationResult:
        vm = await self._database.fetchone(
            """SELECT vms.access_mode, vms.sealed_seed, images.login_user, images.os_family
                   FROM vms JOIN images ON images.id = vms.image_id WHERE vms.id = $1""",
            run.task.resource_id,
        )
        if vm["os_family"] == "windows":
            return await self._set_windows_password(run)
        seed = Seed.unsealed(self._sealer, vm["sealed_seed"])
        if seed.password_hash is None:
            raise conflict(_NOT_THERE)
        operation = VmSetPassword(
            vm_id=run.task.resource_id,
            account=account_name(vm["access_mode"], vm["login_user"]),
            password_hash=seed.password_hash,
        )
        return await run.perform(operation, step=HOST_STEP)

    async def _set_windows_password(self, run: TaskRun) -> OperationResult:
        password = self._passwords.of(run.task.id)
        if password is None:
            raise conflict(_NOT_THERE)
        operation = VmWindowsPassword(vm_id=run.task.resource_id, account=ACCOUNT, password=password)
        return await run.perform(operation, step=HOST_STEP, timeout=task_seconds(run.task.op))


def install_machines(
    database: Database,
    sealer: Sealer,
    passwords: WindowsPasswords,
    tasks: TaskRunner,
    actors: ActorSystem,
    images: ImageSources,
    recheck: Callable[[UUID], None],
) -> None:
    """Register the Machine actor, and the work of machine, image and drain tasks; call it once, before any of them
    runs."""
    actors.register(Machine, lambda _: Machine(database, tasks, sealer, passwords, recheck))
    MachineWork(database, sealer, passwords, tasks, actors, images).install()
    ImageWork(database, images).install(tasks)
    DrainWork(database, actors).install(tasks)
