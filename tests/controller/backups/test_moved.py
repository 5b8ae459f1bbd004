"""Copies of a machine that has moved: each is asked of the node at whose target it lies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from svc_actors.controller.backups import watch
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.traffic.periods import utc_now
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    Done,
    FailureCode,
    NodeOperation,
    OperationResult,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
)
from tests.controller.backups.test_backups import asked, planned
from tests.support.machine_service import make_node
from tests.support.machines import MachineHarness, stage


async def done(gateway: Any, node_id: UUID, operation_id: str, operation: NodeOperation) -> OperationResult:
    assert isinstance(operation, VmBackupsForget | VmBackupsRemove)
    return Done()


async def no_target(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.CONFLICT, "This node has no target for backups.", None)


async def not_there(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.NOT_FOUND, "The target has no backup of this machine.", None)


@dataclass
class Moved:
    """A machine with two copies made on alpha, which is on beta now; its plan keeps two."""

    now: MachineHarness
    database: Database
    vm_id: UUID
    alpha: UUID
    beta: UUID
    copies: list[UUID]

    async def back_up(self) -> UUID:
        task = await self.now.service.ended((await self.now.staff("vm.backup", id=self.vm_id)).id)
        assert task.status == "succeeded"
        return UUID(str(task.id))

    async def look(self) -> None:
        await watch.remove_due(self.database, self.now.service.actors, utc_now())
        for row in await self.database.fetch("SELECT id FROM tasks WHERE status IN ('queued', 'running')"):
            await self.now.service.ended(row["id"])

    async def an_hour_passes(self) -> None:
        await self.database.execute("UPDATE tasks SET ended_at = ended_at - interval '61 minutes'")

    async def listed(self) -> dict[UUID, bool]:
        return {each.id: each.elsewhere for each in await self.now.customer("vm.backups", id=self.vm_id)}

    def asked_of(self, kind: type[Any]) -> list[UUID]:
        gateway = self.now.service.gateway
        return [node for node, each in zip(gateway.asked_of, gateway.asked, strict=True) if isinstance(each, kind)]

    async def delete(self) -> None:
        task = await self.now.customer("vm.delete", id=self.vm_id, confirm="web", destroy_disks=True)
        assert (await self.now.service.ended(task.id)).status == "succeeded"
        await self.now.administrator("backup.discard", id=self.vm_id, confirm="web")


@asynccontextmanager
async def a_moved_machine(database: Database) -> AsyncIterator[Moved]:
    async with stage(database) as now:
        plan_id, vm_id = await planned(now, database)
        now.service.gateway.answers |= {"vm.backups.forget": done, "vm.backups.remove": done}
        await now.administrator("plan.backups", id=plan_id, backup_schedule="daily", backup_keep=2)
        beta = await make_node(database, now.world.location_id, "beta")
        moved = Moved(now, database, vm_id, now.world.node_id, beta, [])
        moved.copies = [await moved.back_up(), await moved.back_up()]
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)
        task = await now.administrator("vm.migrate", id=vm_id, node_id=beta)
        assert (await now.service.ended(task.id)).status == "succeeded"
        # The node that it has left has removed what was there of it
        await database.execute("UPDATE vms SET moved_from = NULL WHERE id = $1", vm_id)
        yield moved


async def test_copies_that_the_machine_has_left_are_listed_as_such(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        first, second = moved.copies
        assert await moved.listed() == {first: True, second: True}
        third = await moved.back_up()
        assert await moved.listed() == {first: True, second: True, third: False}
        by_staff = {each.id: each.node_name for each in await moved.now.staff("vm.backups", id=moved.vm_id)}
        assert (by_staff[first], by_staff[third]) == (await name_of(moved, moved.alpha), "beta")
        assert {each.node_name for each in await moved.now.customer("vm.backups", id=moved.vm_id)} == {None}


async def test_a_restore_says_at_which_nodes_target_the_copy_lies(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        now, order = moved.now, {"id": moved.vm_id, "backup_id": moved.copies[0], "confirm": "web"}
        assert (await now.service.ended((await now.customer("vm.restore", **order)).id)).status == "succeeded"

        now.service.gateway.answers["vm.restore"] = not_there
        failed = await now.service.ended((await now.customer("vm.restore", **order)).id)
        assert (failed.status, failed.error_code) == ("failed", ErrorCode.NOT_FOUND)
        assert failed.error_message is not None
        assert "at the target of the machine's earlier node" in failed.error_message
        assert "the machine was not changed" in failed.error_message

        # A copy of its own node is missing for another reason
        own = await moved.back_up()
        lost = await now.service.ended((await now.customer("vm.restore", **order | {"backup_id": own})).id)
        assert lost.error_message == "The target has no backup of this machine."


async def test_the_node_that_has_a_superseded_copy_removes_it(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        first, second = moved.copies
        await moved.look()
        assert moved.asked_of(VmBackupsForget) == []

        third = await moved.back_up()
        # Its new node is not asked for what it does not have, and the copy stays listed until it is removed
        assert asked(moved.now, VmBackup)[-1].forget == ()
        assert set(await moved.listed()) == {first, second, third}
        await moved.look()
        assert moved.asked_of(VmBackupsForget) == [moved.alpha]
        [forgotten] = asked(moved.now, VmBackupsForget)
        assert (forgotten.copies, forgotten.password) == ((first,), asked(moved.now, VmBackup)[0].password)
        assert set(await moved.listed()) == {second, third}
        assert (await moved.now.customer("vm.show", id=moved.vm_id)).status == "stopped"
        # Once
        await moved.an_hour_passes()
        await moved.look()
        assert len(moved.asked_of(VmBackupsForget)) == 1

        await moved.back_up()
        await moved.back_up()
        assert asked(moved.now, VmBackup)[-1].forget == (third,)


async def test_a_superseded_copy_stays_listed_until_its_node_has_removed_it(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        await moved.back_up()
        await database.execute("UPDATE nodes SET state = 'offline' WHERE id = $1", moved.alpha)
        await moved.look()
        assert (moved.asked_of(VmBackupsForget), len(await moved.listed())) == ([], 3)

        await database.execute("UPDATE nodes SET state = 'online' WHERE id = $1", moved.alpha)
        moved.now.service.gateway.answers["vm.backups.forget"] = no_target
        await moved.look()
        alert = await database.fetchone("SELECT message FROM alerts WHERE closed_at IS NULL")
        assert "no target for backups" in alert["message"]
        assert len(await moved.listed()) == 3
        # Not within the hour
        await moved.look()
        assert len(moved.asked_of(VmBackupsForget)) == 1

        await moved.an_hour_passes()
        moved.now.service.gateway.answers["vm.backups.forget"] = done
        await moved.look()
        assert len(await moved.listed()) == 2
        assert await database.fetchval("SELECT count(*) FROM alerts WHERE closed_at IS NULL") == 0


async def test_a_superseded_copy_at_a_lost_node_leaves_the_list_and_the_audit_says_where_it_is(
    database: Database,
) -> None:
    async with a_moved_machine(database) as moved:
        await moved.back_up()
        await database.execute("UPDATE nodes SET state = 'offline', lost_at = now() WHERE id = $1", moved.alpha)
        await moved.look()
        assert (moved.asked_of(VmBackupsForget), len(await moved.listed())) == ([], 2)
        details = await database.fetchval("SELECT details FROM audit WHERE operation = 'vm.backups.forget'")
        assert details["left_at_the_target_of"] == await name_of(moved, moved.alpha)
        assert details["copies"] == [str(moved.copies[0])]


async def test_each_node_removes_what_it_has_of_a_deleted_machine(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        await moved.back_up()
        await moved.delete()
        [kept] = (await moved.now.administrator("backup.deleted")).items
        assert kept.node_names == sorted(["beta", await name_of(moved, moved.alpha)])

        await database.execute("UPDATE nodes SET state = 'offline' WHERE id = $1", moved.alpha)
        await moved.look()
        await moved.look()
        assert moved.asked_of(VmBackupsRemove) == [moved.beta]
        [kept] = (await moved.now.administrator("backup.deleted")).items
        assert (kept.copies, kept.node_names) == (2, [await name_of(moved, moved.alpha)])

        await database.execute("UPDATE nodes SET state = 'online' WHERE id = $1", moved.alpha)
        await moved.look()
        assert moved.asked_of(VmBackupsRemove) == [moved.beta, moved.alpha]
        assert (await moved.now.administrator("backup.deleted")).total == 0


async def test_of_a_deleted_machine_only_what_a_lost_node_has_is_left(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        await moved.back_up()
        await moved.delete()
        await database.execute("UPDATE nodes SET state = 'offline', lost_at = now() WHERE id = $1", moved.alpha)
        await moved.look()
        await moved.look()
        assert moved.asked_of(VmBackupsRemove) == [moved.beta]
        assert (await moved.now.administrator("backup.deleted")).total == 0
        told = await database.fetch(
            "SELECT details FROM audit WHERE operation = 'vm.backups.remove' AND details ? 'left_at_the_target_of'"
        )
        assert [row["details"]["left_at_the_target_of"] for row in told] == [await name_of(moved, moved.alpha)]


async def name_of(moved: Moved, node_id: UUID) -> str:
    name: str = await moved.database.fetchval("SELECT name FROM nodes WHERE id = $1", node_id)
    return name
