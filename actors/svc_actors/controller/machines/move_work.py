"""The task of a move on its two nodes: the disks are transferred by streams that are joined here.

A running machine is shut down first, but as late as possible: the target has fetched the image by then. The task does
not start it again: its desired power is still `running`, so the power watch starts it on the node on which the task
leaves it. `live_work` does the parts that differ in a live migration.

Repeatable from its start, as all work: the nodes answer from their journals what they did. A transfer that was cut
short (an agent, the controller or a connection died) is repeated, after the target has removed its incomplete copy.

Rejected: connections from one agent to another. Each agent would need an open port and would have to trust every other
node. Instead both connect to the controller, which they trust already, and the disks pass through the controller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import trio

from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.images.own_images import disk_image
from svc_actors.controller.machines.live_work import LiveWork, follows
from svc_actors.controller.machines.media import MediaWork
from svc_actors.controller.machines.moving import LIVE, RESTART, TARGET
from svc_actors.controller.machines.spec import machine_disks, machine_spec
from svc_actors.controller.tasks.runner import HostRefused, LogLevel, LostWithNode, Task, TaskRun, TaskRunner
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import conflict
from svc_nodeagent.protocol import (
    CopiedDisk,
    CpuMode,
    DomainResult,
    DomainState,
    KeptMachine,
    MachineResult,
    NetworkSpec,
    NodeOperation,
    OperationResult,
    SentDisks,
    VmDelete,
    VmDescribe,
    VmMigrate,
    VmSend,
    VmShutdown,
)

MOST_ATTEMPTS: Final = 4  # The same number of attempts as for an operation that is repeated because its agent died.
SHUT_DOWN: Final = "shut down to be moved"
AT_ONCE: Final = 2
"""Less than a node's limit for transfers (4), so moves that wait for each other's nodes never fill a node's lane."""
_DESCRIBE_SECONDS: Final = 60.0
_OFF: Final = (DomainState.STOPPED, DomainState.CRASHED)
_CLEAR_SECONDS: Final = 120.0
_OTHER_ENDS_SECONDS: Final = 15.0
"""How long the second node may take to report its failure, once the first node's part of the transfer has failed."""


@dataclass(frozen=True)
class _Ready:
    """A machine that can move. Its image is on the target."""

    kept: KeptMachine
    image_id: UUID
    cpu_mode: CpuMode


class MoveWork:
    """`seen`, `commit_move` and `gone_back` as in `LiveWork`."""

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        tasks: TaskRunner,
        images: ImageSources,
        media: MediaWork,
        seen: Callable[[UUID, UUID, DomainState, str], Awaitable[object]],
        commit_move: Callable[[Task], Awaitable[bool]],
        gone_back: Callable[[Task], Awaitable[bool]],
    ) -> None:
        self._live = LiveWork(database, sealer, tasks, images, seen, commit_move, gone_back)
        self._database = database
        self._sealer = sealer
        self._tasks = tasks
        self._images = images
        self._media = media
        self._seen = seen
        self._under_way = trio.CapacityLimiter(AT_ONCE)

    async def migrate(self, run: TaskRun) -> OperationResult | None:
        try:
            return await self._moved(run)
        except LostWithNode as lost:
            if not run.task.parameters.get(LIVE):
                raise
            return await self._live.without_the_lost(run, lost)

    async def _moved(self, run: TaskRun) -> OperationResult | None:
        # The controller was restarted after the record had changed. The transfer is over and only the target must
        # resume the guest, so this waits for no turn among the moves.
        if run.task.parameters.get(LIVE) and await self._live.has_gone_over(run):
            return await self._live.finish(run)
        if self._under_way.available_tokens == 0:
            await run.log("Waiting for other moves to end.")
        async with self._under_way:
            if run.task.parameters[RESTART]:
                await self._shut_down(run)
            for attempt in range(1, MOST_ATTEMPTS + 1):
                try:
                    if run.task.parameters.get(LIVE):
                        ready = await self._ready(run, attempt)
                        return await self._live.attempt(run, attempt, (ready.kept, ready.image_id, ready.cpu_mode))
                    await self._attempt(run, attempt)
                    break
                except HostRefused as refusal:
                    # Only a refusal that says "the other end has gone" leads to another attempt; a refusal with a cause
                    # of its own would come again.
                    if run.cancel_requested or not follows(refusal) or attempt == MOST_ATTEMPTS:
                        raise
                    await run.log("The transfer was cut short; trying again.", level=LogLevel.WARNING)
                    volumes = [disk.volume_id for disk in await machine_disks(self._database, run.task.resource_id)]
                    if not await _cleared(run, attempt, tuple(each for each in volumes if each is not None)):
                        raise
        return None

    async def _shut_down(self, run: TaskRun) -> None:
        # Before the guest is shut down: everything that may refuse the move, and fetching the image, which may take
        # minutes.
        await self._ready(run, 0)
        vm_id, node_id = run.task.resource_id, run.task.node_id
        assert node_id is not None
        result = await run.perform(VmShutdown(vm_id=vm_id), step="shutdown")
        if not isinstance(result, DomainResult):
            raise TypeError(f"vm.shutdown was answered with {result.kind}")
        await self._seen(vm_id, node_id, result.state, SHUT_DOWN)

    async def _ready(self, run: TaskRun, attempt: int) -> _Ready:
        """Have the target fetch the image. Raises conflict for a machine that cannot move."""
        vm_id = run.task.resource_id
        kept = await self._described(run, vm_id, attempt)
        vm = await self._database.fetchone(
            "SELECT image_id, coalesce(cpu_next_mode, cpu_mode) AS cpu_mode FROM vms WHERE id = $1", vm_id
        )
        image_id = await disk_image(self._database, vm["image_id"])
        digest = await self._database.fetchval("SELECT digest FROM images WHERE id = $1", image_id)
        if kept.image_digest != digest:
            raise conflict(
                "The machine's disk is based on an earlier version of its image, which no other node can fetch; the "
                "machine was not moved.",
                hint="Reinstall it, or restore a backup of it to a machine on the other node.",
            )
        if kept.disks != await machine_disks(self._database, vm_id):
            raise conflict(
                "The machine's disks differ from their records; it was not moved.",
                hint="Check the machine on its node.",
            )
        await self._images.pull(run, image_id, _target(run), span=(0, 10))
        return _Ready(kept, image_id, CpuMode(vm["cpu_mode"]))

    async def _attempt(self, run: TaskRun, attempt: int) -> None:
        vm_id = run.task.resource_id
        ready = await self._ready(run, attempt)
        spec = await machine_spec(self._database, self._sealer, vm_id)
        # No network: the source still carries the addresses, so the target must not answer for them. Disks, seed and
        # platform are those that the source has recorded: the controller does not keep the secret of a first boot.
        kept = {
            "network": NetworkSpec(nics=()),
            "disks": ready.kept.disks,
            "seed": ready.kept.seed,
            "platform": ready.kept.platform,
        }
        machine = spec.model_copy(update=kept)
        image = await self._images.spec(ready.image_id, _target(run))
        gateway = self._tasks.gateway
        assert run.task.node_id is not None
        async with gateway.joined_streams(run.task.node_id, _target(run)) as (source_token, target_token):
            outcome = await _both(
                run,
                attempt,
                VmSend(vm_id=vm_id, stream_token=source_token),
                VmMigrate(machine=machine, image=image, cpu_mode=ready.cpu_mode, stream_token=target_token),
            )
        # Raised outside the block, because its nursery would wrap it in an exception group.
        if isinstance(outcome, HostRefused | LostWithNode):
            raise outcome
        if len(set(outcome)) > 1:
            raise conflict(
                "The disks that arrived differ from those that were sent; the machine was not moved.",
                hint="Check the agents' logs on both nodes, then try again.",
            )
        await self._media.carry(run, _target(run), attempt=attempt)
        # The last check: if somebody has started the guest on the source by hand, it writes to its disks and the copy
        # is outdated.
        seen: str | None = await self._database.fetchval("SELECT observed_state FROM vms WHERE id = $1", vm_id)
        if seen not in _OFF:
            raise conflict("The machine was started on its host meanwhile; it was not moved and keeps running.")

    async def _described(self, run: TaskRun, vm_id: UUID, attempt: int) -> KeptMachine:
        """The machine as its own node has recorded it: the controller does not keep the data of its first boot."""
        result = await run.perform(VmDescribe(vm_id=vm_id), step=f"describe-{attempt}", timeout=_DESCRIBE_SECONDS)
        if not isinstance(result, MachineResult):
            raise TypeError(f"vm.describe was answered with {result.kind}")
        return result.machine


def _target(run: TaskRun) -> UUID:
    return UUID(run.task.parameters[TARGET])


async def _cleared(run: TaskRun, attempt: int, volumes: tuple[UUID, ...]) -> bool:
    """Have the target remove its incomplete copy of the machine. False if the target does not confirm in time."""
    remove = VmDelete(vm_id=run.task.resource_id, destroy_disks=True, destroy_volumes=volumes)
    try:
        await run.perform(remove, step=f"clear-{attempt}", timeout=_CLEAR_SECONDS, node_id=_target(run))
    except HostRefused:
        return False
    return True


async def _both(
    run: TaskRun, attempt: int, send: VmSend, take_in: VmMigrate
) -> list[tuple[CopiedDisk, ...]] | HostRefused | LostWithNode:
    """Have the source send and the target receive; returns the disks as each node has them. When one node fails, the
    other gets some time to fail, too. Of the two reasons the better one is returned: one that says more than that the
    other end has gone."""
    disks: list[tuple[CopiedDisk, ...]] = []
    refusals: list[HostRefused | LostWithNode] = []

    async def run_step(step: str, operation: NodeOperation, node_id: UUID | None, span: tuple[int, int]) -> None:
        try:
            result = await run.perform(operation, step=f"{step}-{attempt}", node_id=node_id, span=span)
            if not isinstance(result, SentDisks):
                raise TypeError(f"{operation.op} was answered with {result.kind}")
            disks.append(result.disks)
        except (HostRefused, LostWithNode) as refusal:
            refusals.append(refusal)
            nursery.cancel_scope.deadline = trio.current_time() + _OTHER_ENDS_SECONDS

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_step, "send", send, None, (10, 100))
        nursery.start_soon(run_step, "receive", take_in, _target(run), (10, 100))
    if refusals:
        await run.withdraw()
        return min(refusals, key=follows)
    return disks
