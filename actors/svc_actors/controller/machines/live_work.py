"""The task of a live migration on its two nodes: the running guest is transferred by streams that are joined here.

After each attempt, successful or not, both nodes are asked what is true (`_settled`). The source ends what is under way
and resumes the guest if it is still there. Only if the guest has left the source and is complete at the target does the
record change, and only then does the target resume it. So the guest runs once, and the record says where. Cancelling
the task makes the nodes give up the transfer; where the guest is must be established all the same.

If one of the two nodes is declared lost, the machine continues on the other node, provided that this node has the
complete machine (`without_the_lost`).

Repeatable from its start: after a restart of the controller the nodes are asked first, whatever was done before.

Rejected:
- libvirt deciding where the guest continues. When the target's last word is lost, libvirt resumes the source, and the
  guest runs on both;
- believing the results of `live-send` and `live-receive`. Either can be lost, or say only that the other end has gone,
  with the guest complete at the target. The questions of `_settled` are about the present, so they can be repeated.
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
from svc_actors.controller.tasks.runner import HostRefused, LogLevel, LostWithNode, Task, TaskRun, TaskRunner
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import ErrorCode, conflict
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
"""How long the second node may take to report its failure after the first has failed."""
# Longer than the 60 s within which the agent ends a job (`live_sending.SETTLE_SECONDS`), so the answer still arrives.
_ASK_SECONDS: Final = 90.0
_PAUSE_SECONDS: Final = 1.0

Prepared = tuple[KeptMachine, UUID, CpuMode]


class LiveWork:
    """`seen` records what the machine's node reported about the machine within a step. `commit_move` records that the
    guest is at the target, `gone_back` that it is at the source after all; both return False if the task has ended."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        tasks: TaskRunner,
        images: ImageSources,
        seen: Callable[[UUID, UUID, DomainState, str], Awaitable[object]],
        commit_move: Callable[[Task], Awaitable[bool]],
        gone_back: Callable[[Task], Awaitable[bool]],
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._tasks = tasks
        self._images = images
        self._seen = seen
        self._commit_move = commit_move
        self._gone_back = gone_back

    async def has_gone_over(self, run: TaskRun) -> bool:
        """Whether the record names the target already, because a run before a restart of the controller changed it."""
        here: UUID | None = await self._database.fetchval("SELECT node_id FROM vms WHERE id = $1", run.task.resource_id)
        return here == _target(run)

    async def attempt(self, run: TaskRun, attempt: int, prepared: Prepared) -> OperationResult:
        """One attempt at the live migration. Raises `HostRefused`, `LostWithNode`, conflict; in each case the guest is
        at the source."""
        # `TaskRun` passes a cancellation on to the nodes. Here it must not cancel this task after the guest has left
        # the source and before the record names the target.
        with run.uninterrupted():
            failure = await self._carry(run, attempt, prepared)
            if await self._settled(run):
                return await self.finish(run)
        raise failure or _not_settled()

    async def finish(self, run: TaskRun) -> OperationResult:
        """The record names the target: have the guest resumed there, even if the task is cancelled meanwhile."""
        with run.uninterrupted():
            return await self._finished(run, run.task.resource_id)

    async def without_the_lost(self, run: TaskRun, lost: LostWithNode) -> OperationResult:
        """One of the two nodes was declared lost: the machine continues on the other node, provided that this node has
        the complete machine. Raises `lost` unless the machine continues on the target."""
        with run.uninterrupted():
            try:
                # If the record names the target already, only the target still had to answer, so the lost node is the
                # target. The source keeps its copy until the task has ended.
                if await self.has_gone_over(run):
                    await self._take_back(run)
                    raise lost
                # The record names the source. If the source is the lost node, the target is asked whether it has the
                # complete guest. If the target is lost, asking it raises `LostWithNode`, and the guest is at the
                # source.
                look = VmLiveLook(vm_id=run.task.resource_id)
                arrived = (await self._asked_where(run, _target(run), look)).place is LivePlace.ARRIVED
            except LostWithNode:
                raise lost from None
            if not arrived or not await self._commit_move(run.task):
                raise lost
            await run.log(
                "The machine's node was declared lost; the other node has the whole machine, which continues there.",
                level=LogLevel.WARNING,
            )
            return await self.finish(run)

    async def _take_back(self, run: TaskRun) -> None:
        """The target, which the record names, is lost. Go back to the source, which has the disks as they were when the
        guest left."""
        vm_id, source = run.task.resource_id, run.task.node_id
        assert source is not None
        # LEFT suffices here: the source's guest has ended, and its disks are complete.
        word = await self._asked_where(run, source, VmLiveSettle(vm_id=vm_id))
        if word.place is not LivePlace.ABSENT and await self._gone_back(run.task):
            await run.log(
                "The target node was declared lost before it confirmed the migration: the machine is on its original "
                "node, with its disks as they were before.",
                level=LogLevel.WARNING,
            )
            await self._seen(vm_id, source, word.state, "asked after its other node was lost")

    async def _finished(self, run: TaskRun, vm_id: UUID) -> OperationResult:
        operation = VmLiveFinish(vm_id=vm_id, network=await network_spec(self._database, vm_id))
        try:
            return await self._ask(run, _target(run), operation)
        except NodeLost as lost:
            raise LostWithNode(lost) from lost

    async def _carry(self, run: TaskRun, attempt: int, prepared: Prepared) -> HostRefused | LostWithNode | None:
        """Have the source send and the target receive; returns why it failed, or None."""
        vm_id, source, target = run.task.resource_id, run.task.node_id, _target(run)
        assert source is not None
        kept, image_id, cpu_mode = prepared
        spec = await machine_spec(self._database, self._sealer, vm_id)
        machine = spec.model_copy(update={"disks": kept.disks, "seed": kept.seed})
        image = await self._images.spec(image_id, target)
        failures: list[HostRefused | LostWithNode] = []
        async with AsyncExitStack() as stack:
            # One stream for libvirt's messages, one for the memory, and one for each disk.
            joined = [
                await stack.enter_async_context(self._tasks.gateway.joined_streams(source, target))
                for _ in range(2 + len(kept.disks))
            ]
            sending, receiving = (
                LiveStreams(libvirt=words, memory=memory, disks=tuple(disks))
                for words, memory, *disks in zip(*joined, strict=True)
            )

            async def run_step(step: str, operation: NodeOperation, node_id: UUID | None) -> None:
                try:
                    await run.perform(operation, step=f"{step}-{attempt}", node_id=node_id, span=(10, 100))
                except (HostRefused, LostWithNode) as refusal:
                    failures.append(refusal)
                    # The first failure is often only the broken stream. The other node may still report the cause, so
                    # it gets some more time.
                    nursery.cancel_scope.deadline = trio.current_time() + _OTHER_ENDS_SECONDS

            receive = VmLiveReceive(machine=machine, image=image, cpu_mode=cpu_mode, streams=receiving)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_step, "live-send", VmLiveSend(vm_id=vm_id, streams=sending), None)
                nursery.start_soon(run_step, "live-receive", receive, target)
            if failures:
                await run.withdraw()
        return min(failures, key=follows) if failures else None

    async def _settled(self, run: TaskRun) -> bool:
        """Ask the nodes where the guest is. Returns True if it is at the target, and records that; otherwise the guest
        is at the source. Raises `LostWithNode` if the source is lost."""
        vm_id, source = run.task.resource_id, run.task.node_id
        assert source is not None
        # The source is asked first, because asking it ends the transfer. In the other order, the target could answer
        # "absent" while the transfer goes on, and the guest could arrive afterwards.
        word = await self._asked_where(run, source, VmLiveSettle(vm_id=vm_id))
        if word.place is LivePlace.LEFT:
            try:
                arrived = (await self._asked_where(run, _target(run), VmLiveLook(vm_id=vm_id))).place
            except LostWithNode:
                # The target was declared lost after the guest had arrived there. The source has the disks as they were
                # when the guest left.
                arrived = LivePlace.ABSENT
            if arrived is LivePlace.ARRIVED and await self._commit_move(run.task):
                return True
            await run.log(
                "The other node has lost the guest; it is started on the original node.", level=LogLevel.WARNING
            )
        # HERE: the source has resumed the guest. LEFT: the guest is off at the source, and is started because its
        # desired power is on.
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
        """Ask until the node answers, under a new id each time: the present state counts, and under the same id the
        node would repeat an old answer."""
        gateway = self._tasks.gateway
        while True:
            await gateway.until_online(node_id)
            operation_id = OperationId(f"live:{uuid4()}")
            try:
                return await gateway.perform(node_id, operation_id, operation, timeout=_ASK_SECONDS)
            except NodeUnavailable:
                await gateway.cancel(node_id, operation_id)
            except OperationFailed as failure:
                # With these codes a repeat would get the same answer. Any other failure may pass, so the question is
                # repeated: the controller must know where the guest is.
                if failure.code in (FailureCode.UNSUPPORTED, FailureCode.NOT_FOUND, FailureCode.INVALID):
                    raise conflict(failure.message, hint=failure.hint) from failure
                await run.log(failure.message, level=LogLevel.WARNING)
            await trio.sleep(_PAUSE_SECONDS)


def follows(refusal: HostRefused | LostWithNode) -> bool:
    """Whether the refusal says only that the other end has gone. The other end's reason is then the better one: as a
    key of `min`, False comes first."""
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
