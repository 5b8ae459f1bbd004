"""A machine moves to another node: who may, what is refused, and where it is after a failure at any step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.reconcile.inventory import ReportedMachine, compare, concerned_machines
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    CopiedDisk,
    CpuMode,
    DomainState,
    FailureCode,
    NodeOperation,
    OperationResult,
    SentDisks,
    VmDelete,
    VmMigrate,
)
from tests.support.machine_service import make_node
from tests.support.machines import MachineHarness, refusal, stage


@dataclass
class Move:
    """A machine on alpha that is off, and beta, which could take it."""

    now: MachineHarness
    vm_id: UUID
    alpha: UUID
    beta: UUID

    async def order(self, **values: object) -> Any:
        return await self.now.administrator("vm.migrate", id=self.vm_id, **({"node_id": self.beta} | values))

    async def ended(self, **values: object) -> Any:
        return await self.now.service.ended((await self.order(**values)).id)

    async def where(self) -> tuple[UUID, UUID | None, UUID | None]:
        vm = await self.now.service.vm(self.vm_id)
        return vm["node_id"], vm["moving_to"], vm["moved_from"]

    async def promised(self) -> dict[str, int]:
        rows = await self.now.service.database.fetch("SELECT node_name, promised_vcpus FROM node_capacity")
        return {row["node_name"]: row["promised_vcpus"] for row in rows}

    def removed_at(self) -> list[UUID]:
        gateway = self.now.service.gateway
        return [node for node, each in zip(gateway.asked_of, gateway.asked, strict=True) if isinstance(each, VmDelete)]

    async def settled(self) -> None:
        """Nodes have been asked to remove what is left on them, and have."""
        await self.now.tidied()
        _, moving_to, moved_from = await self.where()
        assert (moving_to, moved_from) == (None, None)


@asynccontextmanager
async def a_move(database: Database) -> AsyncIterator[Move]:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)
        beta = await make_node(database, now.world.location_id, "beta")
        yield Move(now, vm_id, now.world.node_id, beta)


async def test_only_administrators_move_machines(database: Database) -> None:
    async with a_move(database) as move:
        now = move.now
        for api in (now.customer, now.stranger, now.staff):
            refused = await refusal(api, "vm.migrate", id=move.vm_id, node_id=move.beta)
            assert refused.code is ErrorCode.FORBIDDEN
        assert await move.where() == (move.alpha, None, None)


async def test_a_machine_moves_with_all_that_is_its_own(database: Database) -> None:
    async with a_move(database) as move:
        before = await move.now.customer("vm.show", id=move.vm_id)

        ended = await move.ended()

        assert (ended.op, ended.status) == ("vm.migrate", "succeeded")
        assert await move.where() == (move.beta, None, move.alpha)
        assert await move.promised() == {"alpha": 1, "beta": 1}
        await move.settled()
        assert move.removed_at() == [move.alpha]
        assert await move.promised() == {"alpha": 0, "beta": 1}
        after = await move.now.customer("vm.show", id=move.vm_id)
        same = {"node_id", "node_name", "updated_at", "facts", "network"}
        assert after.model_dump(exclude=same) == before.model_dump(exclude=same)
        [taken] = [each for each in move.now.service.gateway.asked if isinstance(each, VmMigrate)]
        assert (taken.cpu_mode, taken.machine.network.nics) == (CpuMode.DEFAULT, ())
        assert taken.machine.seed == move.now.service.gateway.kept[move.vm_id].seed

        await move.now.service.ended((await move.now.customer("vm.start", id=move.vm_id)).id)
        assert move.now.service.gateway.asked_of[-1] == move.beta
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "running"


async def test_while_it_moves_room_is_held_on_both_and_it_takes_no_other_order(database: Database) -> None:
    async with a_move(database) as move:
        go = move.now.service.gateway.hold("vm.send")
        task = await move.order()
        await move.now.service.until_asked("vm.send")

        assert await move.promised() == {"alpha": 1, "beta": 1}
        refused = [
            (await refusal(move.now.customer, name, id=move.vm_id, **values)).code
            for name, values in (("vm.start", {}), ("vm.delete", {"confirm": "web"}))
        ]
        assert refused == [ErrorCode.NOT_READY] * 2
        go.set()
        assert (await move.now.service.ended(task.id)).status == "succeeded"


async def test_what_runs_and_what_the_node_cannot_take_is_refused(database: Database) -> None:
    async with a_move(database) as move:
        database_ = move.now.service.database
        here = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.alpha)
        nowhere = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.vm_id)
        await database_.execute("UPDATE nodes SET maintenance = true WHERE id = $1", move.beta)
        unfit = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.beta)
        await database_.execute("UPDATE nodes SET maintenance = false WHERE id = $1", move.beta)
        await move.now.service.ended((await move.now.customer("vm.start", id=move.vm_id)).id)
        runs = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.beta)

        assert (here.code, nowhere.code, unfit.code, runs.code) == (
            ErrorCode.CONFLICT,
            ErrorCode.NOT_FOUND,
            ErrorCode.CONFLICT,
            ErrorCode.CONFLICT,
        )
        assert "in maintenance" in unfit.message
        assert "With `restart`" in (runs.hint or "")
        assert await move.where() == (move.alpha, None, None)


@pytest.mark.parametrize("step", ["vm.describe", "image.pull", "vm.send", "vm.migrate"])
async def test_a_step_that_fails_leaves_it_where_it_was_and_nothing_at_the_other(database: Database, step: str) -> None:
    async def fail(*_: Any) -> OperationResult:
        raise OperationFailed(FailureCode.HOST, "The disk broke.", None)

    async with a_move(database) as move:
        move.now.service.gateway.answers[step] = fail

        ended = await move.ended()

        assert (ended.status, ended.error_message) == ("failed", "The disk broke.")
        assert (await move.where())[0] == move.alpha
        await move.settled()
        assert await move.where() == (move.alpha, None, None)
        assert set(move.removed_at()) == {move.beta}
        assert await move.promised() == {"alpha": 1, "beta": 0}
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "stopped"


async def test_a_transfer_that_is_cut_short_is_made_again_from_its_beginning(database: Database) -> None:
    cut = 0

    async def once(gateway: Any, _: UUID, __: object, operation: NodeOperation) -> OperationResult:
        nonlocal cut
        cut += 1
        if cut == 1:
            raise OperationFailed(FailureCode.INTERRUPTED, "The agent was restarted.", None)
        return gateway.obey(operation)  # type: ignore[no-any-return]

    async with a_move(database) as move:
        move.now.service.gateway.answers["vm.migrate"] = once

        ended = await move.ended()

        assert ended.status == "succeeded"
        assert (await move.where())[0] == move.beta
        assert move.removed_at() == [move.beta]  # between the two


async def test_disks_that_are_not_those_that_were_sent_are_not_taken(database: Database) -> None:
    async def other(_: Any, __: UUID, ___: object, operation: Any) -> OperationResult:
        return SentDisks(vm_id=operation.vm_id, disks=(CopiedDisk(index=0, size_bytes=4096, digest="b" * 64),))

    async with a_move(database) as move:
        move.now.service.gateway.answers["vm.migrate"] = other

        ended = await move.ended()

        assert ended.status == "failed"
        assert (await move.where())[0] == move.alpha


async def test_a_move_that_is_cancelled_leaves_the_machine_where_it_was(database: Database) -> None:
    async def until_cancelled(gateway: Any, _: UUID, operation_id: Any, __: object) -> OperationResult:
        return await gateway.until_cancelled(operation_id)  # type: ignore[no-any-return]

    async with a_move(database) as move:
        gateway = move.now.service.gateway
        gateway.answers["vm.send"] = gateway.answers["vm.migrate"] = until_cancelled
        task = await move.order()
        await move.now.service.until_asked("vm.send")
        await move.now.service.until_asked("vm.migrate")

        await move.now.administrator("task.cancel", id=task.id)

        assert (await move.now.service.ended(task.id)).status == "cancelled"
        await move.settled()
        assert await move.where() == (move.alpha, None, None)
        assert set(move.removed_at()) == {move.beta}


async def test_one_that_was_started_on_its_host_meanwhile_stays_there(database: Database) -> None:
    async with a_move(database) as move:

        async def started(gateway: Any, _: UUID, __: object, operation: NodeOperation) -> OperationResult:
            seen = (move.alpha, DomainState.RUNNING, "started by hand")
            await move.now.service.machine(move.vm_id).ask(Machine.observed, *seen)
            return gateway.obey(operation)  # type: ignore[no-any-return]

        move.now.service.gateway.answers["vm.send"] = started

        ended = await move.ended()

        assert ended.status == "failed"
        assert (await move.where())[0] == move.alpha
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "running"


async def test_neither_copy_is_foreign_or_believed_while_it_moves(database: Database) -> None:
    async with a_move(database) as move:
        store = move.now.service.database

        async def differences(node_id: UUID, seen: DomainState) -> tuple[int, int]:
            found = compare(
                node_id, await concerned_machines(store, node_id, [move.vm_id]), {move.vm_id: ReportedMachine(seen)}
            )
            return len(found.differences), len(found.foreign)

        assert await differences(move.beta, DomainState.STOPPED) == (0, 1)
        await move.ended()
        # The old node has it still, as something that is to be removed; the new one's word counts
        assert await differences(move.alpha, DomainState.STOPPED) == (0, 0)
        assert await differences(move.beta, DomainState.STOPPED) == (0, 0)
        seen = (move.alpha, DomainState.RUNNING, "started by hand")
        assert not await move.now.service.machine(move.vm_id).ask(Machine.observed, *seen)
        assert (await move.now.customer("vm.show", id=move.vm_id)).status == "stopped"


async def test_until_its_old_node_has_let_go_it_is_neither_started_nor_deleted(database: Database) -> None:
    async with a_move(database) as move:
        gateway = move.now.service.gateway
        await move.ended()
        gateway.leave(move.alpha)
        await move.now.tidied()
        refused = [
            (await refusal(move.now.customer, name, id=move.vm_id, **values)).code
            for name, values in (("vm.start", {}), ("vm.delete", {"confirm": "web"}))
        ]
        again = await refusal(move.now.administrator, "vm.migrate", id=move.vm_id, node_id=move.alpha)
        assert [*refused, again.code] == [ErrorCode.NOT_READY] * 3
        assert await move.where() == (move.beta, None, move.alpha)
        gateway.come_back(move.alpha)
        await move.settled()

        assert await move.where() == (move.beta, None, None)
        assert (await move.ended(node_id=move.alpha)).status == "succeeded"


async def test_a_node_that_is_lost_is_not_waited_for(database: Database) -> None:
    async with a_move(database) as move:
        await move.ended()
        move.now.service.gateway.leave(move.alpha)
        await database.execute("UPDATE nodes SET lost_at = now(), state = 'offline' WHERE id = $1", move.alpha)
        await move.settled()
        assert await move.where() == (move.beta, None, None)
        assert move.removed_at() == []


async def test_the_same_key_moves_once(database: Database) -> None:
    async with a_move(database) as move:
        first = await move.order(idempotency_key="k")
        await move.now.service.ended(first.id)
        second = await move.order(idempotency_key="k")

        assert second.id == first.id
        assert (await move.where())[0] == move.beta
