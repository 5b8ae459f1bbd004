"""Remove the parts of a machine that a move has left on another node, however late.

Invariant: a node is asked to remove a machine only while the record names another node as the machine's, and no move of
the machine is under way. `moved_from` is cleared when the node has confirmed that nothing is left, or is lost.

Why not within the move's task: a source that is away would keep that task open. The record says which removals are due,
so a crash forgets none.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol
from uuid import UUID, uuid4

import structlog
import trio

from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_actors.controller.machines.moving import Remains, remains, removed
from svc_actors.controller.machines.spec import machine_disks
from svc_actors.runtime import DomainError
from svc_actors.store import Database, LoopAlert, keep_repeating
from svc_nodeagent.protocol import DeleteResult, NodeOperation, OperationId, OperationResult, VmDelete

# Every two seconds, because the machine is neither started nor reachable on its new node before its remains are
# removed.
LOOK_SECONDS: Final = 2.0
_REMOVE_SECONDS: Final = 600.0
_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 120.0
log = structlog.get_logger(__name__)


class RemainsGateway(Protocol):
    """The part of the gateway that the watch uses."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def perform(
        self, node_id: UUID, operation_id: OperationId, operation: NodeOperation, *, timeout: float
    ) -> OperationResult: ...

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None: ...

    async def cancel(self, node_id: UUID, operation_id: OperationId) -> None: ...


class RemainsWatch:
    """One per process; `run` runs in the composer's nursery."""

    def __init__(
        self,
        database: Database,
        gateway: RemainsGateway,
        *,
        interval: float = LOOK_SECONDS,
        alert: LoopAlert | None = None,
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._interval = interval
        self._alert = alert
        self._under_way: set[Remains] = set()
        self._resting: dict[Remains, tuple[float, float]] = {}
        """For remains that could not be removed: the time of the next attempt, and the length of the current pause in
        seconds."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            look = partial(self._look, nursery)
            await keep_repeating("remains of moves", self._interval, look, self._alert)

    async def round(self) -> None:
        """A single round, for tests and callers that wait: the nodes asked have answered when it returns."""
        async with trio.open_nursery() as nursery:
            await self._look(nursery)

    async def _look(self, nursery: trio.Nursery) -> None:
        due = await remains(self._database)
        self._resting = {left: rest for left, rest in self._resting.items() if left in due}
        for left in due:
            rested = self._resting.get(left, (0.0, 0.0))[0] <= trio.current_time()
            if left not in self._under_way and rested and (left.lost or self._gateway.is_online(left.node_id)):
                self._under_way.add(left)
                nursery.start_soon(self._remove, left)

    async def _remove(self, left: Remains) -> None:
        done = False
        try:
            if left.lost or await self._removed_by_its_node(left):
                await self._database.transact(lambda tx: removed(tx, left))
                log.info("move.remains_removed", node_id=str(left.node_id), vm_id=str(left.vm_id), lost=left.lost)
            done = True
        except (DomainError, OperationFailed) as error:
            log.warning("move.remains_left", node_id=str(left.node_id), vm_id=str(left.vm_id), error=str(error))
        except Exception:
            # A defect in handling this machine must not end the work on the others, or the controller.
            log.exception("move.remains_failed", node_id=str(left.node_id), vm_id=str(left.vm_id))
        finally:
            self._under_way.discard(left)
            if not done:
                pause = min(_LONGEST_PAUSE, 2 * self._resting.get(left, (0.0, _FIRST_PAUSE / 2))[1])
                self._resting[left] = (trio.current_time() + pause, pause)

    async def _removed_by_its_node(self, left: Remains) -> bool:
        operation_id = OperationId(f"remains:{left.vm_id}:{uuid4()}")
        volumes = [disk.volume_id for disk in await machine_disks(self._database, left.vm_id)]
        operation = VmDelete(
            vm_id=left.vm_id,
            destroy_disks=True,
            destroy_volumes=tuple(volume_id for volume_id in volumes if volume_id is not None),
        )
        try:
            result = await self._gateway.perform(left.node_id, operation_id, operation, timeout=_REMOVE_SECONDS)
        except NodeUnavailable:
            # The removal is asked again, under a new id, as long as it is due. This operation must not be done later:
            # it destroys disks, and the machine may be back on that node by then.
            await self._gateway.cancel(left.node_id, operation_id)
            raise
        except OperationFailed:
            await self._gateway.acknowledge(left.node_id, operation_id)
            raise
        await self._gateway.acknowledge(left.node_id, operation_id)
        return isinstance(result, DeleteResult)
