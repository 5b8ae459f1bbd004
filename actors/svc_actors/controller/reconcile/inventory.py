"""Where a node's inventory and the records of machines differ: a comparison of rows, and nothing else.

One statement reads every record that the inventory can concern, so an inventory that agrees with the records costs only
this statement and wakes no machine. A difference is delivered to its machine, which decides again under the lock of its
own row: the records read here may be older than reports that the machine has received since.

Rejected: a message to each machine of the node. Each was a transaction of its own, and one locked row delayed the whole
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.controller.machines.states import DesiredPower, MachineStatus, Observation, move, observe
from svc_actors.store import Queryable
from svc_nodeagent.protocol import DomainState, StateCause


@dataclass(frozen=True)
class RecordedMachine:
    """A machine as recorded. `built`: its host once reported it as created. `busy`: a task of the machine is open."""

    vm_id: UUID
    node_id: UUID | None
    moves_with: UUID | None
    """During a move: the other node that has, or may have, a part of the machine."""
    status: MachineStatus
    desired: DesiredPower
    observed_state: DomainState | None
    built: bool
    busy: bool
    rescue: bool = False


@dataclass(frozen=True)
class Difference:
    """A difference between host and record, to be delivered to the machine."""

    vm_id: UUID
    state: DomainState
    reason: str
    cause: StateCause | None = None
    rescue: bool | None = None


@dataclass(frozen=True)
class InventoryComparison:
    """`foreign`: machines that the inventory has and that are placed on another node."""

    differences: tuple[Difference, ...]
    foreign: tuple[UUID, ...]


# The condition uses two indexes: one for the node's machines, one for the machines that the inventory names, on any
# node.
_CONCERNED: Final = """
SELECT vms.id, vms.node_id, coalesce(vms.moved_from, vms.moving_to) AS moves_with,
       vms.status, vms.desired_power, vms.observed_state, vms.built_at IS NOT NULL AS built,
       vms.rescue_since IS NOT NULL AS rescue,
       EXISTS (SELECT FROM tasks WHERE resource_kind = 'vm' AND resource_id = vms.id
                                   AND tasks.status IN ('queued', 'running')) AS busy
FROM vms WHERE (vms.node_id = $1 OR vms.id = ANY($2::uuid[])) AND vms.deleted_at IS NULL"""


async def concerned_machines(
    queryable: Queryable, node_id: UUID, reported: Iterable[UUID]
) -> tuple[RecordedMachine, ...]:
    """The records of the machines that are placed on the node, and of those that it reports."""
    rows = await queryable.fetch(_CONCERNED, node_id, list(reported))
    return tuple(
        RecordedMachine(
            vm_id=row["id"],
            node_id=row["node_id"],
            moves_with=row["moves_with"],
            status=MachineStatus(row["status"]),
            desired=DesiredPower(row["desired_power"]),
            observed_state=DomainState(row["observed_state"]) if row["observed_state"] else None,
            built=row["built"],
            busy=row["busy"],
            rescue=row["rescue"],
        )
        for row in rows
    )


@dataclass(frozen=True)
class ReportedMachine:
    """An inventory's report about one machine."""

    state: DomainState
    cause: StateCause | None = None
    rescue: bool = False


def compare(
    node_id: UUID, recorded: Iterable[RecordedMachine], reported: Mapping[UUID, ReportedMachine]
) -> InventoryComparison:
    """`reported`: the machines in the inventory, by id. A machine without a record is ignored: it was deleted, or never
    ours."""
    differences: list[Difference] = []
    foreign: list[UUID] = []
    for machine in recorded:
        found = reported.get(machine.vm_id)
        if machine.node_id != node_id:
            # During a move both nodes may report the machine; a report from a third node is false.
            if machine.moves_with != node_id:
                foreign.append(machine.vm_id)
        elif found is not None:
            if _differs(machine, found.state) or (machine.rescue is not found.rescue and not machine.busy):
                differences.append(Difference(machine.vm_id, found.state, "inventory", found.cause, found.rescue))
        # A machine that was never built may be absent: its creation may still be on its way to the host.
        elif machine.built and _differs(machine, DomainState.ABSENT):
            differences.append(Difference(machine.vm_id, DomainState.ABSENT, "not in the host's inventory"))
    return InventoryComparison(tuple(differences), tuple(foreign))


def _differs(machine: RecordedMachine, state: DomainState) -> bool:
    """Whether the machine would write anything if this report were delivered to it."""
    if machine.observed_state is not state:
        return True
    if machine.busy or (machine.status is MachineStatus.FAILED and not machine.built):
        return False
    # The observed state is recorded already, but the desired state differs: somebody has started the guest on its host.
    observation = observe(state)
    if observation is Observation.RUNNING and machine.desired is DesiredPower.STOPPED:
        return True
    return observation is not None and move(machine.status, observation) is not machine.status
