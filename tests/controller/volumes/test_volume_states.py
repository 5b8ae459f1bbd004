"""The states of a volume: every order in every state, and the picture of them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from svc_actors.controller.volumes.states import MOVES, Finding, VolumeOrder, VolumeState, diagram
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.machines import MachineHarness, stage

PAGE = Path(__file__).parents[3] / "docs" / "volumes.md"
OF_A_MACHINE = {VolumeState.ATTACHING, VolumeState.IN_USE, VolumeState.DETACHING}
AT_REST = {VolumeState.AVAILABLE, VolumeState.IN_USE, VolumeState.FAILED}


def test_the_picture_in_the_documentation_is_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in PAGE.read_text()


def test_every_state_can_be_reached_and_left_and_only_findings_lead_to_rest() -> None:
    reached = {VolumeState.CREATING} | {target for moves in MOVES.values() for target in moves.values()}
    assert reached == set(VolumeState) == set(MOVES)
    for state, moves in MOVES.items():
        assert bool(moves) is (state is not VolumeState.DELETED)
        assert all(isinstance(event, Finding) or target not in AT_REST for event, target in moves.items())


async def test_every_order_in_every_state_is_taken_or_refused_by_the_table(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        held = [now.service.gateway.hold(order.op) for order in VolumeOrder]
        seen = {}
        for state in set(VolumeState) - {VolumeState.DELETED}:
            for order in VolumeOrder:
                volume_id = await recorded(now, database, state, vm_id if state in OF_A_MACHINE else None)
                seen[state, order] = await answer(now, order, volume_id, vm_id)
                after = await database.fetchval("SELECT state FROM volumes WHERE id = $1", volume_id)
                assert (after == MOVES[state].get(order, state)) is (seen[state, order] is None) or after == state
                await clear(database)
        taken = {(state, order) for (state, order), refusal in seen.items() if refusal is None}
        # One that has failed is detached only where a machine has it
        assert taken == {
            (state, order) for state, moves in MOVES.items() for order in moves if isinstance(order, VolumeOrder)
        } - {(VolumeState.FAILED, VolumeOrder.DETACH)}
        for (state, _), refusal in seen.items():
            if refusal is not None and state not in AT_REST:
                assert refusal in (ErrorCode.NOT_READY, ErrorCode.CONFLICT)
        for each in held:
            each.set()


async def recorded(now: MachineHarness, database: Database, state: VolumeState, vm_id: object) -> object:
    return await database.fetchval(
        """INSERT INTO volumes (name, project_id, node_id, size_gib, state, vm_id, disk_index, made_at)
           VALUES ($1, $2, $3, 1, $4, $5, $6, now()) RETURNING id""",
        f"v-{uuid4().hex[:8]}",
        now.world.project_id,
        now.world.node_id,
        state.value,
        vm_id,
        1 if vm_id else None,
    )


async def answer(now: MachineHarness, order: VolumeOrder, volume_id: object, vm_id: object) -> ErrorCode | None:
    name = (await now.customer("volume.show", id=volume_id)).name
    more: dict[VolumeOrder, dict[str, object]] = {
        VolumeOrder.ATTACH: {"vm_id": vm_id},
        VolumeOrder.DETACH: {},
        VolumeOrder.GROW: {"size_gib": 2},
        VolumeOrder.DELETE: {"confirm": name},
    }
    try:
        await now.customer(order.op, id=volume_id, **more[order])
    except ServiceError as refused:
        return refused.code
    return None


async def clear(database: Database) -> None:
    """What the order has begun is forgotten, and the machine is idle again."""
    await database.execute("UPDATE tasks SET status = 'cancelled', ended_at = now() WHERE ended_at IS NULL")
    await database.execute("DELETE FROM volumes")
