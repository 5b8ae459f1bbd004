"""What the task of a live move does on its two nodes: the guest goes over while it runs, by streams joined here.

After each attempt, well or not, both nodes are asked what is true (`_settled`): the node that sends ends what is under
way and has the guest go on if it is there still. Only where the guest has left it and is complete at the other does the
record change, and only then does the other node let it go on: so it runs once, and the record says where. Who cancels
the task has the nodes give up what they do; where the guest is has to be said all the same.

Where one of the two nodes is declared lost, the machine goes on at the other if that has all of it
(`without_the_lost`).

Repeatable from its beginning: whatever a life of this controller before has done, the nodes are asked first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final
from uuid import UUID, uuid4

import trio

from svc_actors.controller.gateway.gateway import NodeLost, NodeUnavailable, OperationFailed
from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines.moving import TARGET
from svc_actors.controller.machines.spec import machine_spec, network_spec
from svc_actors.controller.tasks.runner import HostRefused, Level, LostWithNode, Task, TaskRun, TaskRunner
from svc_actors.errors import ErrorCode, conflict
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_nodeagent.protocol import (
    CpuMode,
    DomainState,
    FailureCode,
    KeptMachine,
    LivePlace,
    LiveResult,
    LiveStreams,
    NodeOperation,
    OperationId,
    OperationResult,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
)

_OTHER_ENDS_SECONDS: Final = 15.0
"""How long the one node may take to say why, once the other has."""
_ASK_SECONDS: Final = 90.0
_PAUSE_SECONDS: Final = 1.0

Prepared = tuple[KeptMachine, UUID, CpuMode]


class LiveWork:
    """`seen` records what the machine's node has said of it within a step; `gone_over` that its guest is at the other
    node now, and `gone_back` that it is where it was after all; both say False where the task has ended."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        tasks: TaskRunner,
        images: ImageSources,
        seen: Callable[[UUID, UUID, DomainState, str], Awaitable[object]],
        gone_over: Callable[[Task], Awaitable[bool]],
        gone_back: Callable[[Task], Awaitable[bool]],
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._tasks = tasks
        self._images = images
        self._seen = seen
        self._gone_over = gone_over
        self._gone_back = gone_back

    async def has_gone_over(self, run: TaskRun) -> bool:
        """A life of this controller before has recorded it."""
        here: UUID | None = await self._database.fetchval("SELECT node_id FROM vms WHERE id = $1", run.task.resource_id)
        return here == _target(run)

    async def attempt(self, run: TaskRun, attempt: int, prepared: Prepared) -> OperationResult:
        """Raises `HostRefused`, `LostWithNode`, conflict: then the guest is where it was."""
        with run.uninterrupted():
            failure = await self._carry(run, attempt, prepared)
            if await self._settled(run):
                return await self.finish(run)
        raise failure or _not_settled()

    async def finish(self, run: TaskRun) -> OperationResult:
        """The record says that it is at the other node: have it go on there, whoever cancels meanwhile."""
        with run.uninterrupted():
            return await self._finished(run, run.task.resource_id)

    async def without_the_lost(self, run: TaskRun, lost: LostWithNode) -> OperationResult:
        """One of the nodes was declared lost: have the machine go on at the other, if that has all of it. Raises `lost`
        where it does not go on at the node that it was to move to."""
        with run.uninterrupted():
            try:
                if await self.has_gone_over(run):
                    await self._take_back(run)
                    raise lost
                look = VmLiveLook(vm_id=run.task.resource_id)
                arrived = (await self._asked_where(run, _target(run), look)).place is LivePlace.ARRIVED
            except LostWithNode:
                raise lost from None
            if not arrived or not await self._gone_over(run.task):
                raise lost
            await run.log(
                "Its node was declared lost; the other node has all of the machine, which continues there.",
                level=Level.WARNING,
            )
            return await self.finish(run)

    async def _take_back(self, run: TaskRun) -> None:
        """The node that the record names is lost: the one before has the machine's disks as they were when it left."""
        vm_id, source = run.task.resource_id, run.task.node_id
        assert source is not None
        word = await self._asked_where(run, source, VmLiveSettle(vm_id=vm_id))
        if word.place is not LivePlace.ABSENT and await self._gone_back(run.task):
            await run.log(
                "The other node was declared lost before it said that the guest goes on: the machine is where it was,"
                " with its disks as they were when it left.",
                level=Level.WARNING,
            )
            await self._seen(vm_id, source, word.state, "asked after its other node was lost")

    async def _finished(self, run: TaskRun, vm_id: UUID) -> OperationResult:
        operation = VmLiveFinish(vm_id=vm_id, network=await network_spec(self._database, vm_id))
        try:
            return await self._ask(run, _target(run), operation)
        except NodeLost as lost:
            raise LostWithNode(lost) from lost

    async def _carry(self, run: TaskRun, attempt: int, prepared: Prepared) -> HostRefused | LostWithNode | None:
        """Have the one node send and the other receive; gives why it came to nothing, where it did."""
        vm_id, source, target = run.task.resource_id, run.task.node_id, _target(run)
        assert source is not None
        kept, image_id, cpu_mode = prepared
        spec = await machine_spec(self._database, self._sealer, vm_id)
        machine = spec.model_copy(update={"disks": kept.disks, "seed": kept.seed})
        image = await self._images.spec(image_id, target)
        failures: list[HostRefused | LostWithNode] = []
        async with AsyncExitStack() as stack:
            joined = [
                await stack.enter_async_context(self._tasks.gateway.joined_streams(source, target))
                for _ in range(2 + len(kept.disks))
            ]
            sending, receiving = (
                LiveStreams(libvirt=words, memory=memory, disks=tuple(disks))
                for words, memory, *disks in zip(*joined, strict=True)
            )

            async def have(step: str, operation: NodeOperation, node_id: UUID | None) -> None:
                try:
                    await run.perform(operation, step=f"{step}-{attempt}", node_id=node_id, span=(10, 100))
                except (HostRefused, LostWithNode) as refusal:
                    failures.append(refusal)
                    nursery.cancel_scope.deadline = trio.current_time() + _OTHER_ENDS_SECONDS

            receive = VmLiveReceive(machine=machine, image=image, cpu_mode=cpu_mode, streams=receiving)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(have, "live-send", VmLiveSend(vm_id=vm_id, streams=sending), None)
                nursery.start_soon(have, "live-receive", receive, target)
            if failures:
                await run.withdraw()
        return min(failures, key=follows) if failures else None

    async def _settled(self, run: TaskRun) -> bool:
        """Ask what is true. True where the guest is at the other node, which is recorded then; else it is where it was.
        Raises `LostWithNode` where the machine's own node is lost."""
        vm_id, source = run.task.resource_id, run.task.node_id
        assert source is not None
        word = await self._asked_where(run, source, VmLiveSettle(vm_id=vm_id))
        if word.place is LivePlace.LEFT:
            try:
                arrived = (await self._asked_where(run, _target(run), VmLiveLook(vm_id=vm_id))).place
            except LostWithNode:
                arrived = LivePlace.ABSENT
            if arrived is LivePlace.ARRIVED and await self._gone_over(run.task):
                return True
            await run.log("The other node has lost the guest; it is started on the original node.", level=Level.WARNING)
        await self._seen(vm_id, source, word.state, "asked after a live move")
        return False

    async def _asked_where(self, run: TaskRun, node_id: UUID, operation: NodeOperation) -> LiveResult:
        try:
            result = await self._ask(run, node_id, operation)
        except NodeLost as lost:
            raise LostWithNode(lost) from lost
        if not isinstance(result, LiveResult):
            raise TypeError(f"{operation.op} was answered with {result.kind}")
        return result

    async def _ask(self, run: TaskRun, node_id: UUID, operation: NodeOperation) -> OperationResult:
        """Of what is true or done at this moment, each time under an id of its own, until the node answers."""
        gateway = self._tasks.gateway
        while True:
            await gateway.until_online(node_id)
            operation_id = OperationId(f"live:{uuid4()}")
            try:
                return await gateway.perform(node_id, operation_id, operation, timeout=_ASK_SECONDS)
            except NodeUnavailable:
                await gateway.cancel(node_id, operation_id)
            except OperationFailed as failure:
                if failure.code in (FailureCode.UNSUPPORTED, FailureCode.NOT_FOUND, FailureCode.INVALID):
                    raise conflict(failure.message, hint=failure.hint) from failure
                await run.log(failure.message, level=Level.WARNING)
            await trio.sleep(_PAUSE_SECONDS)


def follows(refusal: HostRefused | LostWithNode) -> bool:
    """Whether it only says that the other end has gone."""
    return isinstance(refusal, HostRefused) and refusal.failure in (FailureCode.INTERRUPTED, None)


def _target(run: TaskRun) -> UUID:
    return UUID(run.task.parameters[TARGET])


def _not_settled() -> HostRefused:
    return HostRefused(
        ErrorCode.UNAVAILABLE,
        "The live migration failed: the nodes disagree whether the guest has migrated; it stays on its original node.",
        hint="Try again.",
        failure=FailureCode.INTERRUPTED,
    )
