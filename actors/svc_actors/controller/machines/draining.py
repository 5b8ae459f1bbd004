"""Drain a node in maintenance: each of its machines moves to the emptiest node that can take it, a few at a time.

Level-triggered: each round reads which machines are still on the node, so the drain continues after a restart of the
controller, and a machine that was busy in one round gets its turn in the next. A machine whose move has failed is not
tried again. The rounds end when a round has moved no machine; the machines that stay are named, each with its reason.

Moves are tasks of their machines. A drain that is cancelled, or whose maintenance has ended, starts no further moves;
those under way continue to their end.

Why not a plan of all moves at the start: each move changes which node is the emptiest, and what a busy machine or a
full node refuses now may be possible a round later.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import trio

from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.migration_targets import MigrationMode, MigrationTarget, migration_targets
from svc_actors.controller.machines.move_work import AT_ONCE
from svc_actors.controller.machines.moving import OP as MOVE
from svc_actors.controller.machines.moving import Move
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.tasks.runner import (
    LogLevel,
    ResourceKind,
    Task,
    TaskRun,
    TaskRunner,
    TaskStatus,
    create_task,
    get_task,
    open_task_of,
)
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Caller, Database, Record, Target, Transaction, audit, service_itself
from svc_common.errors import ServiceError, conflict, not_found

OP: Final = "node.drain"
RESTART: Final = "restart"
_TOTAL: Final = "machines"
_LOOK_SECONDS: Final = 0.5
_MOST_NAMED: Final = 10

_MACHINES: Final = """
SELECT id, name, status FROM vms WHERE node_id = $1 AND deleted_at IS NULL ORDER BY created_at, id"""
_EMPTIEST: Final = """
SELECT node_id FROM node_capacity WHERE node_id = ANY($1::uuid[]) ORDER BY free_share DESC, node_name LIMIT 1"""


async def start_drain(tx: Transaction, caller: Caller, node_id: UUID, *, restart: bool) -> Task:
    """Running machines move live. `restart`: machines that cannot move live are shut down, moved and started on the
    target; without it, they stay. Raises not_found, and conflict if new machines could still be placed on the node or
    it is already being drained."""
    node = await tx.fetchrow(
        "SELECT name, maintenance FROM nodes WHERE id = $1 AND deleted_at IS NULL FOR NO KEY UPDATE", node_id
    )
    if node is None:
        raise not_found("There is no such node.")
    if not node["maintenance"]:
        raise conflict(
            f"Node {node['name']} is not in maintenance, so new machines would be placed on it; nothing was changed.",
            hint="Put it into maintenance first.",
        )
    if await tx.fetchval(
        "SELECT EXISTS (SELECT FROM tasks WHERE op = $1 AND node_id = $2 AND status IN ('queued', 'running'))",
        OP,
        node_id,
    ):
        raise conflict(f"Node {node['name']} is already being drained.")
    machines = len(await tx.fetch(_MACHINES, node_id))
    task = await create_task(
        tx,
        caller,
        op=OP,
        resource_kind=ResourceKind.NODE,
        resource_id=node_id,
        resource_name=node["name"],
        node_id=node_id,
        project_id=None,
        parameters={RESTART: restart, _TOTAL: machines},
        # The drain takes as long as the disks take to copy. It needs no deadline of its own: the task of each machine
        # has one.
        timeout=None,
    )
    ordered = {"task_id": str(task.id), RESTART: restart, _TOTAL: machines}
    await audit.record(tx, caller, Target("node", node_id, node["name"]), ordered)
    return task


class DrainWork:
    def __init__(self, database: Database, actors: ActorSystem) -> None:
        self._database = database
        self._actors = actors

    def install(self, tasks: TaskRunner) -> None:
        tasks.handles(OP, self.drain)

    async def drain(self, run: TaskRun) -> None:
        node_id = run.task.resource_id
        in_the_way: dict[UUID, str] = {}
        failed: set[UUID] = set()
        # A round tries to move each machine that is left, and notes why one does not move. As long as a round has moved
        # a machine, another round follows: the moved machine's room or task may have kept others from moving.
        while here := await self._database.fetch(_MACHINES, node_id):
            tried = [row for row in here if row["id"] not in failed]
            in_the_way |= await self._round(run, tried, failed)
            if all(row["id"] in in_the_way for row in tried):
                raise _stay(run, [f"{row['name']} ({in_the_way[row['id']]})" for row in here])
            in_the_way = {vm_id: reason for vm_id, reason in in_the_way.items() if vm_id in failed}
        # A machine that was moved with a restart is started on its target only after this node has removed its copy.
        while await self._database.fetchval("SELECT EXISTS (SELECT FROM vms WHERE moved_from = $1)", node_id):
            await run.log("Waiting for the node to remove migrated machines.")
            await trio.sleep(_LOOK_SECONDS)

    async def _round(self, run: TaskRun, machines: list[Record], failed: set[UUID]) -> dict[UUID, str]:
        """Try to move each of these machines; returns, for each that stays, why. Adds machines whose move has failed to
        `failed`."""
        turns = trio.CapacityLimiter(AT_ONCE)
        in_the_way: dict[UUID, str] = {}

        async def move_one(vm: Record) -> None:
            async with turns:
                try:
                    if not await self._moved(run, vm):
                        failed.add(vm["id"])
                        in_the_way[vm["id"]] = "its move has failed"
                except DomainError as refusal:
                    in_the_way[vm["id"]] = _words(refusal)

        async with trio.open_nursery() as nursery:
            for vm in machines:
                nursery.start_soon(move_one, vm)
        return in_the_way

    async def _moved(self, run: TaskRun, vm: Record) -> bool:
        """Move the machine, or wait for the end of a move that is under way. False if the move failed. Raises
        `DomainError` if no move can be started."""
        # Checked before each move, so that an administrator stops the drain by ending the maintenance.
        if not await self._database.fetchval("SELECT maintenance FROM nodes WHERE id = $1", run.task.resource_id):
            raise conflict("the node's maintenance has ended")
        task = await self._move_of(run, vm)
        while task.status.open:
            await trio.sleep(_LOOK_SECONDS)
            task = await get_task(self._database, task.id) or task
        if task.status is not TaskStatus.SUCCEEDED:
            reason = task.error_message or f"the move was {task.status.value}."
            await run.log(f"{vm['name']} was not moved: {reason}", level=LogLevel.WARNING)
            return False
        left = len(await self._database.fetch(_MACHINES, run.task.resource_id))
        total = max(run.task.parameters[_TOTAL], left, 1)
        await run.log(f"{vm['name']} has moved; {left} to go.", percent=100 * (total - left) // total)
        return True

    async def _move_of(self, run: TaskRun, vm: Record) -> Task:
        """The task of the machine's move. Raises `DomainError` with the reason why there is none."""
        # A move of this machine may be under way already: ordered by this drain before a restart of the controller, or
        # by somebody else. The drain waits for it.
        async with self._database.transaction() as tx:
            under_way = await open_task_of(tx, ResourceKind.VM, vm["id"])
        if under_way is not None and under_way.op == MOVE:
            return under_way
        targets = await migration_targets(self._database, vm["id"])
        fit = [target.node_id for target in targets if target.mode is not None]
        if not fit:
            raise conflict(_why_nowhere(targets))
        runs = vm["status"] == MachineStatus.RUNNING
        live = [target.node_id for target in targets if target.mode is MigrationMode.LIVE]
        if runs and not live and not run.task.parameters[RESTART]:
            raise conflict(
                f"it runs, cannot move live, and the drain was ordered without `restart`: {_why_not_live(targets)}"
            )
        # The emptiest node at this moment, read without a lock. The machine's actor judges the node again; if it
        # refuses, the next round tries again.
        target: UUID = await self._database.fetchval(_EMPTIEST, live or fit)
        move = Move(target, restart=runs and not live)
        return await self._actors.ref(Machine, str(vm["id"])).ask(Machine.migrate, service_itself(OP), move)


def _words(refusal: DomainError) -> str:
    return (refusal.message if isinstance(refusal, ServiceError) else str(refusal)).rstrip(".")


def _why_nowhere(targets: list[MigrationTarget]) -> str:
    if not targets:
        return "there is no other node"
    return "; ".join(f"{target.node_name}: {target.reasons[0]}" for target in targets[:3])


def _why_not_live(targets: list[MigrationTarget]) -> str:
    able = [target for target in targets if target.mode is not None]
    return "; ".join(f"{target.node_name}: {target.reasons[0]}" for target in able[:3])


def _stay(run: TaskRun, left: list[str]) -> ServiceError:
    named = ", ".join(left[:_MOST_NAMED])
    more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
    stay = "1 machine stays" if len(left) == 1 else f"{len(left)} machines stay"
    return conflict(
        f"{stay} on node {run.task.resource_name}: {named}{more}.",
        hint="See `svc vm migration-targets` of each, then drain the node again.",
    )
