"""A controller's machine side on a real database, with a gateway whose nodes are played by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from uuid import UUID, uuid4

import trio

from svc_actors.controller.gateway.gateway import NodeLost, NodeUnavailable, OperationFailed
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines.creation import Created, NewMachine, create_machine
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.machines.work import install_machines
from svc_actors.controller.networking.networks import NewPool, create_network, create_pool
from svc_actors.controller.tasks.runner import Task, TaskRunner, get_task
from svc_actors.runtime import ActorSystem
from svc_actors.runtime.actor import Ref
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Record
from svc_nodeagent.protocol import (
    CachedImage,
    CopiedDisk,
    DeleteResult,
    DiskSpec,
    DomainResult,
    DomainState,
    Done,
    FailureCode,
    ImageFormat,
    ImagePull,
    ImageResult,
    KeptMachine,
    MachineResult,
    NodeOperation,
    OperationId,
    OperationResult,
    Progress,
    SentDisks,
    SnapshotResult,
    VmCpuSet,
    VmCreate,
    VmCreateFromCopy,
    VmDelete,
    VmDescribe,
    VmForceStop,
    VmMigrate,
    VmReboot,
    VmReinstall,
    VmRescue,
    VmRescueEnd,
    VmReset,
    VmResize,
    VmSend,
    VmShutdown,
    VmSnapshotRestore,
    VmSnapshotTake,
    VmStart,
    VolumeAttach,
    VolumeDetach,
)
from tests.support.callers import ADMINISTRATOR
from tests.support.changes import Changes

DIGEST = "a" * 64
OnProgress = Callable[[Progress], Awaitable[None]]
Answer = Callable[["FakeGateway", UUID, OperationId, NodeOperation], Awaitable[OperationResult]]


@dataclass
class FakeGateway:
    """Nodes that do what they are told, unless the test scripts an answer for an operation's name.

    Like an agent's journal, it answers an operation id that it knows without doing it again. It outlives controllers.
    """

    answers: dict[str, Answer] = field(default_factory=dict)
    domains: dict[UUID, DomainState] = field(default_factory=dict)
    addresses: dict[UUID, tuple[str, ...]] = field(default_factory=dict)
    kept: dict[UUID, KeptMachine] = field(default_factory=dict)
    asked: list[NodeOperation] = field(default_factory=list)
    asked_ids: list[OperationId] = field(default_factory=list)
    asked_of: list[UUID] = field(default_factory=list)
    journal: dict[OperationId, OperationResult | OperationFailed] = field(default_factory=dict)
    done: list[OperationId] = field(default_factory=list)
    acknowledged: list[OperationId] = field(default_factory=list)
    cancelled: list[OperationId] = field(default_factory=list)
    cancellation: dict[OperationId, trio.Event] = field(default_factory=dict)
    away: dict[UUID, trio.Event] = field(default_factory=dict)
    """Nodes that are not connected; the event is their coming back."""
    lost: set[UUID] = field(default_factory=set)
    told: Changes = field(default_factory=Changes)
    """Of what nodes are asked, and of their going away."""
    under_way: list[trio.CancelScope] = field(default_factory=list)

    def is_online(self, node_id: UUID) -> bool:
        return node_id not in self.away

    async def until_online(self, node_id: UUID) -> None:
        await trio.lowlevel.checkpoint()
        while (back := self.away.get(node_id)) is not None:
            if node_id in self.lost:
                raise NodeLost
            await back.wait()

    def mark_lost(self, node_id: UUID) -> None:
        self.lost.add(node_id)
        back, self.away[node_id] = self.away[node_id], trio.Event()
        back.set()
        for scope in self.under_way:
            scope.cancel()

    def leave(self, node_id: UUID) -> None:
        self.away[node_id] = trio.Event()
        self.told.tell()

    def come_back(self, node_id: UUID) -> None:
        self.away.pop(node_id).set()

    async def perform(
        self,
        node_id: UUID,
        operation_id: OperationId,
        operation: NodeOperation,
        *,
        timeout: float,
        on_progress: OnProgress | None = None,
    ) -> OperationResult:
        self.asked.append(operation)
        self.asked_ids.append(operation_id)
        self.asked_of.append(node_id)
        self.told.tell()
        if operation_id not in self.journal:
            with trio.move_on_after(timeout) as under_way:
                self.under_way.append(under_way)
                await self._do(node_id, operation_id, operation, on_progress)
        if node_id in self.lost:
            raise NodeLost
        outcome = self.journal.get(operation_id)
        if outcome is None:
            raise NodeUnavailable("the node did not answer in time")
        if isinstance(outcome, OperationFailed):
            raise OperationFailed(outcome.code, outcome.message, outcome.hint)
        return outcome

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None:
        self.acknowledged.append(operation_id)

    async def cancel(self, node_id: UUID, operation_id: OperationId) -> None:
        self.cancelled.append(operation_id)
        self.cancellation.setdefault(operation_id, trio.Event()).set()

    @asynccontextmanager
    async def joined_streams(self, one: UUID, other: UUID) -> AsyncIterator[tuple[str, str]]:
        await trio.lowlevel.checkpoint()
        yield f"to {other}", f"from {one}"

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
        answer = self.answers.get(operation.op)
        if answer is None:
            raise NodeUnavailable("the node is offline")
        return await answer(self, node_id, OperationId("query"), operation)

    def hold(self, op: str) -> trio.Event:
        """From now on nodes carry this operation out once the event that is given is set."""
        let_go = trio.Event()

        async def held(gateway: FakeGateway, _: UUID, __: OperationId, operation: NodeOperation) -> OperationResult:
            await let_go.wait()
            return gateway.obey(operation)

        self.answers[op] = held
        return let_go

    async def until_cancelled(self, operation_id: OperationId) -> None:
        await self.cancellation.setdefault(operation_id, trio.Event()).wait()
        raise OperationFailed(FailureCode.CANCELLED, "given up", None)

    async def _do(
        self, node_id: UUID, operation_id: OperationId, operation: NodeOperation, on_progress: OnProgress | None
    ) -> None:
        try:
            if operation.op in self.answers:
                result = await self.answers[operation.op](self, node_id, operation_id, operation)
            else:
                if on_progress is not None:
                    await on_progress(Progress(id=operation_id, percent=40, message=f"{operation.op} under way"))
                result = self.obey(operation)
        except OperationFailed as failure:
            self.journal[operation_id] = failure
        else:
            self.journal[operation_id] = result
            self.done.append(operation_id)

    def obey(self, operation: NodeOperation) -> OperationResult:
        """What an honest host does at once."""
        match operation:
            case (
                VmCreate(machine=machine, image=image, start=start)
                | VmCreateFromCopy(machine=machine, image=image, start=start)
            ):
                state = DomainState.RUNNING if start else DomainState.STOPPED
                self.domains[machine.vm_id] = state
                self.kept[machine.vm_id] = KeptMachine(image_digest=image.digest, **dict(machine))
                self.addresses[machine.vm_id] = tuple(
                    str(address.interface.ip) for nic in machine.network.nics for address in nic.addresses
                )
                return DomainResult(vm_id=machine.vm_id, state=state)
            case VmRescue(vm_id=vm_id) | VmRescueEnd(vm_id=vm_id):
                self.domains[vm_id] = DomainState.RUNNING
                return DomainResult(vm_id=vm_id, state=DomainState.RUNNING)
            case VmStart(vm_id=vm_id) | VmReboot(vm_id=vm_id) | VmReset(vm_id=vm_id) | VmReinstall(vm_id=vm_id):
                self.domains[vm_id] = DomainState.RUNNING
                return DomainResult(vm_id=vm_id, state=DomainState.RUNNING)
            case VmResize(vm_id=vm_id) | VmCpuSet(vm_id=vm_id):
                return DomainResult(vm_id=vm_id, state=self.domains[vm_id])
            case VmShutdown(vm_id=vm_id) | VmForceStop(vm_id=vm_id):
                self.domains[vm_id] = DomainState.STOPPED
                return DomainResult(vm_id=vm_id, state=DomainState.STOPPED)
            case VmSnapshotTake(vm_id=vm_id, snapshot_id=snapshot_id):
                frozen = self.domains[vm_id] is DomainState.RUNNING
                return SnapshotResult(vm_id=vm_id, snapshot_id=snapshot_id, frozen=frozen)
            case VmSnapshotRestore(vm_id=vm_id):
                return DomainResult(vm_id=vm_id, state=self.domains[vm_id])
            case VolumeAttach(vm_id=vm_id) | VolumeDetach(vm_id=vm_id):
                self._change_disks(operation)
                return DomainResult(vm_id=vm_id, state=self.domains[vm_id])
            case VmDescribe(vm_id=vm_id):
                return MachineResult(machine=self.kept[vm_id])
            case VmSend(vm_id=vm_id) | VmMigrate(vm_id=vm_id):
                disk = CopiedDisk(index=0, size_bytes=4096, digest=DIGEST)
                return SentDisks(vm_id=vm_id, disks=(disk,))
            case VmDelete(vm_id=vm_id):
                self.domains.pop(vm_id, None)
                return DeleteResult(vm_id=vm_id, removed_addresses=self.addresses.pop(vm_id, ()), retained_disks=())
            case ImagePull(image=image):
                cached = CachedImage(
                    image_id=image.image_id,
                    format=ImageFormat.QCOW2,
                    size_bytes=1,
                    digest=image.digest,
                    pulled_at=datetime.now(UTC),
                )
                return ImageResult(image=cached)
            case _:
                return Done()

    def _change_disks(self, operation: VolumeAttach | VolumeDetach) -> None:
        kept, volume_id = self.kept[operation.vm_id], operation.volume_id
        disks = tuple(disk for disk in kept.disks if disk.volume_id != volume_id)
        if isinstance(operation, VolumeAttach):
            disk = DiskSpec(index=operation.index, size_gib=operation.size_gib, volume_id=volume_id)
            disks = tuple(sorted((*disks, disk), key=lambda each: each.index))
        self.kept[operation.vm_id] = kept.model_copy(update={"disks": disks})


@dataclass
class Service:
    """One life of a controller. `Service.open` again on the same database and gateway is a restart."""

    database: Database
    gateway: FakeGateway
    actors: ActorSystem
    tasks: TaskRunner
    sealer: Sealer
    rechecked: list[UUID]
    """Nodes that an inventory was asked of, because what they said could not be recorded."""
    passwords: WindowsPasswords

    def machine(self, vm_id: UUID) -> Ref[Machine]:
        return self.actors.ref(Machine, str(vm_id))

    async def create(self, new: NewMachine) -> Created:
        created = await create_machine(self.database, self.sealer, ADMINISTRATOR, new)
        self.tasks.start(created.task)
        return created

    async def ended(self, task: Task | UUID | None) -> Task:
        """The task once it has ended, as the database has it."""
        assert task is not None, "the message began no task"
        task_id = task.id if isinstance(task, Task) else task
        with trio.fail_after(60):
            while True:
                found = await get_task(self.database, task_id)
                assert found is not None
                if not found.status.open:
                    return found
                await trio.sleep(0.005)

    async def until_asked(self, op: str, count: int = 1) -> OperationId:
        """The id of the operation, once the node was asked for it `count` times."""
        await self.gateway.told.until(lambda: sum(operation.op == op for operation in self.gateway.asked) >= count)
        index = max(i for i, operation in enumerate(self.gateway.asked) if operation.op == op)
        return self.gateway.asked_ids[index]

    async def vm(self, vm_id: UUID) -> Record:
        row = await self.database.fetchrow("SELECT * FROM vms WHERE id = $1", vm_id)
        assert row is not None
        return row

    async def status(self, vm_id: UUID) -> str:
        return str((await self.vm(vm_id))["status"])


SEALER = Sealer(b"k" * 32)


@asynccontextmanager
async def open_service(
    database: Database, gateway: FakeGateway, *, prepare: Callable[[TaskRunner], None] = lambda _: None
) -> AsyncIterator[Service]:
    """A controller's life; leaving the block is its sudden death. `prepare` registers further work before it begins."""
    async with ActorSystem.open() as actors, trio.open_nursery() as nursery:
        tasks = TaskRunner(database, gateway, sweep_interval=0.2, cancel_interval=0.05)
        sources = ImageSources(database, lambda node_id, key: f"token-{key}")
        rechecked: list[UUID] = []
        passwords = WindowsPasswords()
        install_machines(database, SEALER, passwords, tasks, actors, sources, rechecked.append)
        prepare(tasks)
        await nursery.start(tasks.run)
        yield Service(database, gateway, actors, tasks, SEALER, rechecked, passwords)
        nursery.cancel_scope.cancel()


@dataclass(frozen=True)
class Fleet:
    """Rows that machines need: a project, an image, a node, the default network with one pool."""

    project_id: UUID
    image_id: UUID
    node_id: UUID
    network_id: UUID
    pool_id: UUID
    location_id: UUID

    def machine(self, name: str = "web", **changes: object) -> NewMachine:
        values: dict[str, object] = {
            "name": name,
            "hostname": name,
            "project_id": self.project_id,
            "image_id": self.image_id,
            "plan_id": None,
            "vcpus": 1,
            "memory_mib": 256,
            "disk_gib": 1,
            "access_mode": "root_password",
            "ssh_keys": (),
            "password_hash": None,
            "generated": None,
            "start": True,
            "bounded": False,
        }
        return NewMachine(**(values | changes))  # type: ignore[arg-type]


async def make_fleet(
    database: Database, *, cidr: str = "10.77.0.0/16", first: str | None = None, last: str | None = None
) -> Fleet:
    location = await database.fetchval("INSERT INTO locations (name) VALUES ('default') RETURNING id")
    project = await database.fetchval("INSERT INTO projects (name) VALUES ('default') RETURNING id")
    image = await database.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, digest, custom)
           VALUES ('demo', 'Demo', 'linux', 'demo', '1', 'debian', 'qcow2', 'file', $1, true) RETURNING id""",
        DIGEST,
    )
    wanted = NewPool(
        name="nat",
        location_id=location,
        cidr=IPv4Network(cidr),
        range_start=IPv4Address(first) if first else None,
        range_end=IPv4Address(last) if last else None,
    )
    async with database.transaction() as tx:
        network = (await create_network(tx, "nat", default=True))["id"]
        pool = (await create_pool(tx, network, wanted))["id"]
    node = await make_node(database, location, "alpha")
    return Fleet(project, image, node, network, pool, location)


async def make_node(
    database: Database, location_id: UUID, name: str, *, cpus: int = 16, memory_mib: int = 65536, disk_gib: int = 1000
) -> UUID:
    capacity = {
        "cpus": cpus,
        "memory_mib": memory_mib,
        "memory_free_mib": memory_mib,
        "disk_gib": disk_gib,
        "disk_free_gib": disk_gib,
        "load_1m": 0.0,
    }
    node_id: UUID = await database.fetchval(
        """INSERT INTO nodes (name, location_id, state, host_uuid, capacity) VALUES ($1, $2, 'online', $3, $4)
           RETURNING id""",
        name,
        location_id,
        uuid4(),
        capacity,
    )
    return node_id
