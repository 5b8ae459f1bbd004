"""An inventory wakes the machines that differ from their records, and no other."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from svc_actors.controller.machines.states import DesiredPower, MachineStatus
from svc_actors.controller.reconcile.inventory import (
    Difference,
    RecordedMachine,
    ReportedMachine,
    compare,
    concerned_machines,
)
from svc_actors.store import Database
from svc_nodeagent.protocol import DomainState
from tests.support.machine_records import record_machines
from tests.support.machine_service import make_fleet, make_node

HERE, ELSEWHERE = UUID(int=1), UUID(int=2)
VM = UUID(int=3)
RUNNING, STOPPED, ABSENT, PAUSED = DomainState.RUNNING, DomainState.STOPPED, DomainState.ABSENT, DomainState.PAUSED


def recorded(
    status: MachineStatus = MachineStatus.RUNNING,
    observed: DomainState | None = RUNNING,
    *,
    node_id: UUID = HERE,
    built: bool = True,
    busy: bool = False,
    desired: DesiredPower = DesiredPower.RUNNING,
) -> RecordedMachine:
    return RecordedMachine(VM, node_id, None, status, desired, observed, built, busy)


@pytest.mark.parametrize(
    ("machine", "reported", "told"),
    [
        (recorded(), {VM: RUNNING}, None),
        (recorded(MachineStatus.STOPPED, STOPPED), {VM: STOPPED}, None),
        (recorded(), {VM: STOPPED}, STOPPED),
        (recorded(observed=None), {VM: RUNNING}, RUNNING),
        (recorded(), {VM: PAUSED}, PAUSED),
        (recorded(observed=PAUSED), {VM: PAUSED}, None),
        (recorded(), {}, ABSENT),
        (recorded(MachineStatus.FAILED, ABSENT), {}, None),
        (recorded(MachineStatus.FAILED, RUNNING), {VM: RUNNING}, RUNNING),
        (recorded(MachineStatus.CREATING, None, built=False, busy=True), {}, None),
        (recorded(MachineStatus.FAILED, RUNNING, built=False), {VM: RUNNING}, None),
        (recorded(MachineStatus.STOPPING, RUNNING, busy=True), {VM: RUNNING}, None),
        (recorded(MachineStatus.STOPPING, RUNNING, busy=True), {VM: STOPPED}, STOPPED),
        (recorded(desired=DesiredPower.STOPPED), {VM: RUNNING}, RUNNING),
        (recorded(desired=DesiredPower.STOPPED, busy=True), {VM: RUNNING}, None),
    ],
)
def test_a_machine_is_told_what_would_change_its_record(
    machine: RecordedMachine, reported: Mapping[UUID, DomainState], told: DomainState | None
) -> None:
    compared = compare(HERE, [machine], {vm_id: ReportedMachine(state) for vm_id, state in reported.items()})

    assert [difference.state for difference in compared.differences] == ([] if told is None else [told])
    assert compared.foreign == ()


def test_a_machine_of_another_node_is_told_nothing_and_named() -> None:
    compared = compare(HERE, [recorded(node_id=ELSEWHERE)], {VM: ReportedMachine(STOPPED)})

    assert compared.differences == ()
    assert compared.foreign == (VM,)


async def test_the_records_that_an_inventory_concerns_are_read_together(database: Database) -> None:
    world = await make_fleet(database)
    other = await make_node(database, world.location_id, "other")
    here, foreign, gone = UUID(int=10), UUID(int=11), UUID(int=12)
    await record_machines(database, world.node_id, [here, gone])
    await record_machines(database, other, [foreign])
    await database.execute("UPDATE vms SET deleted_at = now() WHERE id = $1", gone)

    machines = await concerned_machines(database, world.node_id, [foreign, gone])

    compared = compare(world.node_id, machines, {foreign: ReportedMachine(RUNNING), gone: ReportedMachine(RUNNING)})
    assert compared.differences == (Difference(here, ABSENT, "not in the host's inventory"),)
    assert compared.foreign == (foreign,)
