"""The watch that brings machines to their desired power state, after a power cut of their host or a crash of their own.

Level-triggered: each round reads from the records what is to be done, so a restart of the controller forgets nothing.
Nothing is done twice, either: the machine's actor decides, under the lock of its row, whether to start it.

Invariants:
- only nodes that are managed, online and not in maintenance are touched;
- networks come first: an agent restores them before it connects, and a start carries the machine's own;
- a host starts only a limited number of machines at once, the oldest machine first. Starts that people order count as
  well.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import structlog
import trio

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.power import AWAITING, RECOVERED
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database, LoopAlert, keep_repeating

INTERVAL: Final = 2.0
_AT_ONCE: Final = 16
"""The most machines, of all nodes together, that are asked at the same time; each is a transaction of its actor."""
log = structlog.get_logger(__name__)

# One row for each machine that awaits a start, with its place in its node's queue. A host that has come back reports
# its machines one after the other. As long as it does (a report about a machine came within the last second), but for
# ten seconds at most, no machine is started on it, so that the oldest one is the first to start. A host gets half as
# many concurrent starts as it has processors, at least two and at most eight.
_DUE: Final = f"""
WITH waiting AS (
    SELECT vms.id, vms.node_id, vms.created_at,
           greatest(2, least(8, coalesce((nodes.capacity->>'cpus')::int, 0) / 2)) AS bears,
           row_number() OVER (PARTITION BY vms.node_id ORDER BY vms.created_at, vms.id) AS turn,
           max(vms.observed_at) OVER (PARTITION BY vms.node_id) AS last_heard,
           min(vms.observed_at) OVER (PARTITION BY vms.node_id) AS first_heard
    FROM vms JOIN nodes ON nodes.id = vms.node_id WHERE {AWAITING}
)
SELECT waiting.id FROM waiting LEFT JOIN (
    SELECT node_id, count(*) AS number FROM tasks
    WHERE resource_kind = 'vm' AND op = 'vm.start' AND status IN ('queued', 'running') GROUP BY node_id
) starting ON starting.node_id = waiting.node_id
WHERE turn <= bears - coalesce(starting.number, 0)
  AND (last_heard IS NULL OR NOT last_heard BETWEEN now() - interval '1 second' AND now()
       OR first_heard < now() - interval '10 seconds')
ORDER BY waiting.created_at, waiting.id"""
_RECOVERED: Final = f"SELECT id FROM vms WHERE {RECOVERED} ORDER BY id"


class PowerWatch:
    """One per process; `run` runs in the composer's nursery."""

    def __init__(
        self, database: Database, actors: ActorSystem, *, interval: float = INTERVAL, alert: LoopAlert | None = None
    ) -> None:
        self._alert = alert
        self._database = database
        self._actors = actors
        self._interval = interval

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await keep_repeating("power watch", self._interval, self.look, self._alert)

    async def look(self) -> None:
        """Ask the actor of every machine that is due to bring it to its desired state."""
        at_once = trio.CapacityLimiter(_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for row in await self._database.fetch(_DUE):
                nursery.start_soon(self._restore, row["id"], at_once)
            for row in await self._database.fetch(_RECOVERED):
                nursery.start_soon(self._recovered, row["id"], at_once)

    async def _restore(self, vm_id: UUID, at_once: trio.CapacityLimiter) -> None:
        """Ask one machine. A machine that does not answer delays no other; the next round asks it again."""
        async with at_once:
            try:
                task = await self._actors.ref(Machine, str(vm_id)).ask(Machine.restore)
            except DomainError as error:
                log.warning("power_watch.not_restored", vm_id=str(vm_id), error=str(error))
                return
        if task is not None:
            log.info("power_watch.restoring", vm_id=str(vm_id), task_id=str(task.id), op=task.op)

    async def _recovered(self, vm_id: UUID, at_once: trio.CapacityLimiter) -> None:
        async with at_once:
            try:
                await self._actors.ref(Machine, str(vm_id)).ask(Machine.recovered)
            except DomainError as error:
                log.warning("power_watch.not_settled", vm_id=str(vm_id), error=str(error))
