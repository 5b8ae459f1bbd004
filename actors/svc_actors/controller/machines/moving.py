"""A machine moves to another node: the decision, and the one transaction that says where the machine is.

The record decides where a machine is. Until the task of its move has succeeded, the machine is on `node_id`, and the
parts of it that the target (`moving_to`) has are ignored. The transaction that ends the task names the target as
`node_id`; from then on the parts that the source (`moved_from`) still has are ignored. Ignored parts are removed,
however late (`reconcile.remains_watch`), and their room stays reserved until then. So a crash at any point leaves a
machine on exactly one node.

Invariants:
- a machine moves while it is off, or live (`live_work`). With `restart` the task shuts a running machine down; its
  desired power stays `running`, so the power watch starts it again on the node on which the task leaves it;
- as long as an earlier move has left parts of a machine on another node, the machine does not move;
- a guest that moved live continues at the target once the record names the target (`commit_move`), before its task
  ends;
- the target is judged under the lock of its capacity. Both nodes' capacities are locked in the order of their ids;
- the target carries the machine's addresses only once the source has released them. Before that, the machine is not
  started there, its network is not applied, and no address is freed.

Why the record changes last: otherwise a target that died half-way would be the machine's node, without a complete disk.

Why: docs/decisions/0029-migration.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.controller.machines import admission
from svc_actors.controller.machines.migration_targets import MigrationMode, migration_targets
from svc_actors.controller.machines.records import MachineRow, announce_machine
from svc_actors.controller.machines.states import MachineStatus, Order, refusal_text
from svc_actors.controller.networking.changes import call_watch, network_changed
from svc_actors.controller.placement.scheduler import lock_capacity
from svc_actors.controller.tasks.runner import Task, lift_deadline
from svc_actors.store import Queryable, Record, Transaction, audit, service_itself
from svc_common.errors import conflict, not_found, not_ready
from svc_nodeagent.protocol import DomainState

OP: Final = Order.MIGRATE.op
TARGET: Final = "target_node_id"
"""The parameter of a task that names the target node."""
RESTART: Final = "restart"
"""The parameter of a task: the machine is running and is shut down before the move."""
LIVE: Final = "live"
"""The parameter of a task: the guest keeps running (a live migration)."""


@dataclass(frozen=True)
class Move:
    """`order` identifies the order, so that a repeat is recognised. `restart`: a running machine is shut down for the
    move; without it, it moves live."""

    node_id: UUID
    order: str | None = None
    restart: bool = False


async def start_move(tx: Transaction, vm: MachineRow, move: Move) -> tuple[dict[str, object], MachineStatus | None]:
    """Reserve room on the target; returns the task's parameters, and the machine's new status if it changes. Raises
    conflict, not_found, not_ready."""
    if move.node_id == vm.node_id:
        raise conflict(f"The machine is on node {vm.node_name} already; nothing was changed.")
    admission.require_not_in_rescue(vm, refusal_text(Order.MIGRATE))
    await require_nothing_left(tx, vm)
    runs = vm.status is MachineStatus.RUNNING
    if vm.status is not MachineStatus.STOPPED and not runs:
        raise conflict(
            f"The machine is {vm.status.value}, and moves only while it runs or is off; nothing was changed.",
            details={"status": vm.status.value},
        )
    # In the order of their ids, as everywhere: otherwise the moves of two machines that swap nodes would deadlock.
    for node_id in sorted(each for each in (vm.node_id, move.node_id) if each is not None):
        await lock_capacity(tx, node_id)
    # Judged again under the locks: room that the caller was shown may be taken by now.
    found = [each for each in await migration_targets(tx, vm.id) if each.node_id == move.node_id]
    if not found:
        raise not_found("There is no such node.")
    if found[0].mode is None:
        raise conflict(
            f"Node {found[0].node_name} cannot take the machine: {'; '.join(found[0].reasons)}.",
            hint="See `svc vm migration-targets`.",
            details={"reasons": list(found[0].reasons)},
        )
    live = runs and not move.restart
    if live and found[0].mode is not MigrationMode.LIVE:
        raise conflict(
            f"The machine runs, and cannot move to node {found[0].node_name} while it does:"
            f" {'; '.join(found[0].reasons)}. Nothing was changed.",
            hint="With `restart` it is shut down, moved, and started again there.",
            details={"reasons": list(found[0].reasons)},
        )
    # While `moving_to` is set, a trigger counts the machine at both nodes, so the room on the target is promised to
    # nothing else.
    await tx.execute("UPDATE vms SET moving_to = $2 WHERE id = $1", vm.id, move.node_id)
    restart = runs and not live
    parameters: dict[str, object] = {TARGET: str(move.node_id), "order": move.order, RESTART: restart, LIVE: live}
    return parameters, admission.moved(vm, Order.MIGRATE) if restart else None


async def commit_move(tx: Transaction, vm: MachineRow, task: Task) -> None:
    """Record that the guest has left the source and is complete at the target: from now on the record names the
    target."""
    # Nothing is done if the record names the target already: this is then a repeat, because the controller was
    # restarted between this commit and the task's end.
    if vm.node_id != UUID(task.parameters[TARGET]):
        await moved(tx, vm, task, DomainState.PAUSED)
        # The guest is paused at the target. If the deadline passed now, the task would end with the guest still paused,
        # and the source's copy would be removed as remains. So the deadline is lifted: the task waits for the target's
        # answer, however late.
        await lift_deadline(tx, task.id)


async def revert_move(tx: Transaction, vm: MachineRow, task: Task) -> None:
    """The target is lost, and the source has all of the machine, switched off: the record names the source again.
    Changes that the guest made at the target are lost."""
    if vm.node_id != UUID(task.parameters[TARGET]):
        return  # The record names the source already: an earlier run changed it before a restart of the controller.
    for node_id in sorted(each for each in (vm.node_id, task.node_id) if each is not None):
        await lock_capacity(tx, node_id)
    # `moved_from` is NULL once the source's copy was removed. There is nothing to go back to then, and the record
    # stays.
    at = await tx.fetchval(
        """UPDATE vms SET node_id = moved_from, moved_from = NULL, observed_state = $2, observed_cause = NULL,
                          observed_at = now()
           WHERE id = $1 AND moved_from IS NOT NULL RETURNING node_id""",
        vm.id,
        DomainState.STOPPED.value,
    )
    if at is not None:
        await _tell_where(tx, vm, task, at)


async def moved(tx: Transaction, vm: MachineRow, task: Task, state: DomainState = DomainState.STOPPED) -> None:
    """Record that the target has all of the machine, in this state: from now on the record names the target."""
    target = UUID(task.parameters[TARGET])
    for node_id in sorted(each for each in (vm.node_id, target) if each is not None):
        await lock_capacity(tx, node_id)
    await tx.execute(
        """UPDATE vms SET node_id = moving_to, moved_from = node_id, moving_to = NULL, observed_state = $3,
                          observed_cause = NULL, observed_at = now()
           WHERE id = $1 AND moving_to = $2""",
        vm.id,
        target,
        state.value,
    )
    await _tell_where(tx, vm, task, target)


async def _tell_where(tx: Transaction, vm: MachineRow, task: Task, at: UUID) -> None:
    """Write everything that follows from the new node: a new generation of the network, the audit row, the event."""
    await network_changed(tx, [vm.id])
    # The audit record contains the nodes' names, because a node may no longer exist when the record is read.
    names = await tx.fetch("SELECT id, name FROM nodes WHERE id = ANY($1::uuid[])", [vm.node_id, at])
    called = {row["id"]: row["name"] for row in names}
    details = {"task_id": str(task.id), "from": called.get(vm.node_id), "to": called.get(at)}
    await audit.record(tx, service_itself(task.op), vm.target, details)
    await announce_machine(tx, vm.id)


async def require_nothing_left(tx: Transaction, vm: MachineRow) -> None:
    """Raises not_ready while a node still has to remove what a move has left on it."""
    node = await tx.fetchval(
        """SELECT nodes.name FROM vms JOIN nodes ON nodes.id = coalesce(vms.moved_from, vms.moving_to)
           WHERE vms.id = $1""",
        vm.id,
    )
    if node is not None:
        raise _left_at(node)


async def require_released(tx: Transaction, vm: MachineRow) -> None:
    """Raises not_ready while the machine's former node may still carry its addresses."""
    node = await tx.fetchval(
        "SELECT nodes.name FROM vms JOIN nodes ON nodes.id = vms.moved_from WHERE vms.id = $1", vm.id
    )
    if node is not None:
        raise _left_at(node)


def _left_at(node: str) -> Exception:
    return not_ready(
        f"Node {node} still has to remove remains of an earlier move of the machine; nothing was changed.",
        hint="Try again in a moment; an offline node does it once it is back, or is declared lost.",
    )


@dataclass(frozen=True)
class Remains:
    """What a node has to remove of a machine that is on another node. `lost`: the node is lost and will never remove
    it."""

    vm_id: UUID
    node_id: UUID
    lost: bool


async def remains(queryable: Queryable) -> list[Remains]:
    """All remains that are due for removal: those of moves whose task has ended."""
    return [_as_remains(row) for row in await queryable.fetch(_REMAINS)]


async def removed(tx: Transaction, left: Remains) -> bool:
    """Record that the node has no part of the machine left. False if the removal is no longer due."""
    row = await tx.fetchrow(
        "SELECT node_id, moving_to, moved_from FROM vms WHERE id = $1 FOR NO KEY UPDATE", left.vm_id
    )
    # Read again under the row's lock: while the node was asked, it may have been declared lost, or its remains removed.
    if row is None or left not in await remains(tx):
        return False
    for node_id in sorted(each for each in row.values() if each is not None):
        await lock_capacity(tx, node_id)
    await tx.execute("UPDATE vms SET moving_to = NULL, moved_from = NULL WHERE id = $1", left.vm_id)
    await call_watch(tx)
    await announce_machine(tx, left.vm_id)
    return True


_REMAINS: Final = """
SELECT vms.id AS vm_id, nodes.id AS node_id, nodes.lost_at IS NOT NULL OR nodes.deleted_at IS NOT NULL AS lost
FROM vms JOIN nodes ON nodes.id = coalesce(vms.moved_from, vms.moving_to)
WHERE (vms.moving_to IS NOT NULL OR vms.moved_from IS NOT NULL)
  AND NOT EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id AND op = 'vm.migrate'
                                      AND tasks.status IN ('queued', 'running'))
ORDER BY vms.id"""


def _as_remains(row: Record) -> Remains:
    return Remains(row["vm_id"], row["node_id"], row["lost"])
