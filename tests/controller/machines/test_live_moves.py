"""A running machine moves live: it runs once whatever fails, and the record says where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import FACTS, FailureCode, LivePlace, VmLiveFinish, VmLiveReceive
from tests.controller.machines.test_migration_targets import know
from tests.controller.machines.test_moves import Move
from tests.support.live_nodes import At, LiveNodes, cut_short
from tests.support.machine_service import make_node, open_service
from tests.support.machines import refusal, stage


@dataclass
class Live(Move):
    nodes: LiveNodes

    async def runs_at(self) -> UUID:
        """Where it runs, once what is left of the move is removed and what shall run is started; the record says the
        same."""
        database = self.now.service.database
        await self.settled()
        await self.now.powered()
        assert await self.now.service.status(self.vm_id) == "running"
        here: UUID = await database.fetchval("SELECT node_id FROM vms WHERE id = $1", self.vm_id)
        assert self.nodes.running == {here}
        assert self.nodes.places == {here: LivePlace.HERE}
        return here

    def starts(self) -> int:
        return sum(each.op == "vm.start" for each in self.now.service.gateway.asked)


@asynccontextmanager
async def a_live_move(database: Database) -> AsyncIterator[Live]:
    """A running machine on alpha, and beta, alike."""
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        beta = await make_node(database, now.world.location_id, "beta")
        for node_id in (now.world.node_id, beta):
            await know(database, node_id)
        nodes = LiveNodes(now.service.gateway, now.world.node_id, vm_id)
        now.service.gateway.asked_of[:] = []
        now.service.gateway.asked[:] = []
        now.service.gateway.asked_ids[:] = []
        yield Live(now, vm_id, now.world.node_id, beta, nodes)


async def test_it_goes_on_at_the_other_node_and_is_not_restarted(database: Database) -> None:
    async with a_live_move(database) as move:
        task = await move.order()
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "running"
        ended = await move.now.service.ended(task.id)

        assert (ended.status, ended.error_message) == ("succeeded", None)
        assert await move.runs_at() == move.beta
        assert move.starts() == 0
        assert await move.promised() == {"alpha": 0, "beta": 1}
        assert await database.fetchval("SELECT count(*) FROM alerts") == 0


async def test_the_other_node_carries_its_network_before_it_goes_on(database: Database) -> None:
    async with a_live_move(database) as move:
        await move.ended()
        [finish] = [each for each in move.now.service.gateway.asked if isinstance(each, VmLiveFinish)]
        [receive] = [each for each in move.now.service.gateway.asked if isinstance(each, VmLiveReceive)]
        assert finish.network.nics == receive.machine.network.nics != ()


async def test_the_record_decides_before_it_goes_on(database: Database) -> None:
    recorded: list[UUID | None] = []

    async with a_live_move(database) as move:
        go_on = move.now.service.gateway.answers["vm.live.finish"]

        async def finish(*asked: object) -> object:
            recorded.append((await move.where())[0])
            return await go_on(*asked)  # type: ignore[arg-type]

        move.now.service.gateway.answers["vm.live.finish"] = finish  # type: ignore[assignment]
        await move.ended()
    assert recorded == [move.beta]


async def test_one_that_cannot_go_live_is_refused_with_what_is_in_the_way(database: Database) -> None:
    async with a_live_move(database) as move:
        await know(database, move.beta, cpu_model="EPYC 9124")
        refused = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.beta)

        assert refused.code is ErrorCode.CONFLICT
        assert "cpu: it has an EPYC 9124" in refused.message
        assert "With `restart`" in (refused.hint or "")
        assert await move.where() == (move.alpha, None, None)


@pytest.mark.parametrize("op", ["vm.live.receive", "vm.live.send"])
async def test_a_move_that_fails_leaves_it_running_where_it_is_and_the_next_one_goes(
    database: Database, op: str
) -> None:
    async with a_live_move(database) as move:
        move.nodes.refuses[op] = OperationFailed(FailureCode.HOST, "The disk broke.", None)
        move.nodes.hold = True

        ended = await move.ended()

        assert (ended.status, ended.error_message) == ("failed", "The disk broke.")
        assert await move.runs_at() == move.alpha
        assert move.starts() == 0
        move.nodes.hold = False
        assert (await move.ended()).status == "succeeded"
        assert await move.runs_at() == move.beta


async def test_one_that_is_cut_short_is_tried_again(database: Database) -> None:
    async with a_live_move(database) as move:
        move.nodes.refuses["vm.live.send"] = cut_short()
        ended = await move.ended()

        assert (ended.status, await move.runs_at()) == ("succeeded", move.beta)
        assert move.removed_at() == [move.beta, move.alpha]


async def test_one_that_is_cancelled_leaves_it_running_where_it_is(database: Database) -> None:
    async with a_live_move(database) as move:
        move.nodes.hold = True
        task = await move.order()
        await move.now.service.until_asked("vm.live.send")
        await move.now.administrator("task.cancel", id=task.id)

        assert (await move.now.service.ended(task.id)).status == "cancelled"
        assert await move.runs_at() == move.alpha
        assert move.starts() == 0
        move.nodes.hold = False
        assert (await move.ended()).status == "succeeded"


@pytest.mark.parametrize("at", list(At))
async def test_the_controller_dies_at_each_step_and_its_next_life_ends_the_move(database: Database, at: At) -> None:
    died = trio.Event()
    async with a_live_move(database) as move:
        move.nodes.points[at] = died.set
        task = await move.order()
        with trio.fail_after(20):
            await died.wait()
    async with open_service(database, move.now.service.gateway) as service:
        ended = await service.ended(task.id)
        move.now.service = service

        assert (ended.status, ended.error_message) == ("succeeded", None)
        assert await move.runs_at() == move.beta
        assert move.starts() == 0


@pytest.mark.parametrize("node", ["alpha", "beta"])
@pytest.mark.parametrize("at", [At.OVER, At.TOLD])
async def test_a_node_that_goes_away_once_the_guest_has_left_is_waited_for(
    database: Database, at: At, node: str
) -> None:
    async with a_live_move(database) as move:
        gateway = move.now.service.gateway
        goes = move.alpha if node == "alpha" else move.beta

        def leave() -> None:
            gateway.leave(goes)

        move.nodes.points[at] = leave
        task = await move.order()
        await gateway.told.until(lambda: goes in gateway.away)
        gateway.come_back(goes)

        assert (await move.now.service.ended(task.id)).status == "succeeded"
        assert await move.runs_at() == move.beta


async def test_a_guest_that_the_other_node_has_lost_is_started_where_it_was(database: Database) -> None:
    async with a_live_move(database) as move:
        move.nodes.hold = False
        for _ in range(4):
            move.nodes.points[At.TOLD] = lambda: None
        move.nodes.points[At.OVER] = lambda: move.nodes.loses(move.beta)
        task = await move.order()
        await move.nodes.told.until(lambda: move.nodes.lost)
        await move.now.administrator("task.cancel", id=task.id)
        ended = await move.now.service.ended(task.id)

        assert ended.status in ("failed", "cancelled")
        assert await move.runs_at() == move.alpha
        assert move.starts() == 1


async def test_once_it_has_gone_over_the_other_node_is_waited_for_beyond_the_deadline(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FACTS, "vm.migrate", replace(FACTS["vm.migrate"], task_seconds=1.0))
    async with a_live_move(database) as move:
        gateway, let_go = move.now.service.gateway, trio.Event()
        go_on = gateway.answers["vm.live.finish"]

        async def finish(*asked: object) -> object:
            await let_go.wait()
            return await go_on(*asked)  # type: ignore[arg-type]

        gateway.answers["vm.live.finish"] = finish  # type: ignore[assignment]
        task = await move.order()
        # Asked anew by the task that is taken up again
        await move.now.service.until_asked("vm.live.finish", 2)
        assert await move.where() == (move.beta, None, move.alpha)
        let_go.set()

        assert (await move.now.service.ended(task.id)).status == "succeeded"
        assert await move.runs_at() == move.beta
        assert move.starts() == 0


@pytest.mark.parametrize("protocol", [None, 4])
async def test_an_agent_that_knows_no_live_moves_is_named(database: Database, protocol: int | None) -> None:
    async with a_live_move(database) as move:
        await database.execute("UPDATE nodes SET agent_protocol = $2 WHERE id = $1", move.beta, protocol)
        await database.execute("UPDATE nodes SET agent_protocol = 5 WHERE id = $1", move.alpha)
        refused = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.beta)
        assert "agent: it speaks protocol" in refused.message


async def test_a_machine_with_snapshots_moves_with_a_restart_alone(database: Database) -> None:
    async with a_live_move(database) as move:
        await database.execute(
            "INSERT INTO machine_snapshots (id, vm_id, name, state) VALUES (gen_random_uuid(), $1, 'a', 'ready')",
            move.vm_id,
        )
        refused = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.beta)
        assert "snapshots: the machine has 1" in refused.message
