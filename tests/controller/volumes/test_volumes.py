"""Volumes over the API: made, attached, detached, grown and deleted; by whom, how many, and by one at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from svc.registry.principal import Principal
from svc.registry.registry import authorise
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import (
    DeleteResult,
    DomainState,
    FailureCode,
    OperationResult,
    VmDelete,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
)
from tests.controller.machines.test_snapshots import refusing
from tests.support.machine_api import REGISTRY
from tests.support.machine_service import FakeGateway, make_node
from tests.support.machines import MachineHarness, refusal, stage


async def made(now: MachineHarness, vm_id: UUID | None = None, **values: Any) -> Any:
    """Of a machine, by its customer; else free, by staff. As it is once its task has ended."""
    wanted = {"name": f"data-{uuid4().hex[:6]}", "size_gib": 5} | values
    if vm_id is not None:
        answer = await now.customer("volume.create", vm_id=vm_id, **wanted)
    else:
        place = {"project_id": now.world.project_id, "node_id": now.world.node_id} | values
        answer = await now.staff("volume.create", **wanted | place)
    assert (await now.service.ended(answer.task.id)).status == "succeeded"
    return await now.customer("volume.show", id=answer.volume.id)


async def done(now: MachineHarness, op: str, /, **values: object) -> Any:
    return await now.service.ended((await now.customer(op, **values)).id)


async def state(now: MachineHarness, volume_id: UUID) -> str:
    return str((await now.customer("volume.show", id=volume_id)).state)


async def promised(database: Database) -> int:
    promised: int = await database.fetchval("SELECT sum(promised_disk_gib)::int FROM node_capacity")
    return promised


async def test_one_is_made_for_a_machine_handed_to_another_grown_and_deleted(database: Database) -> None:
    async with stage(database) as now:
        one, other = (await now.created()).vm.id, (await now.created(name="other")).vm.id
        before = await promised(database)
        volume = await made(now, one, name="data", labels={"env": "test"})
        assert (volume.state, volume.vm_id, volume.vm_name, volume.size_gib) == ("in_use", one, "web", 5)
        assert volume.device == f"/dev/disk/by-id/virtio-{volume.id.hex[:20]}"
        assert volume.node_id is None  # placement is not a customer's to see
        assert await promised(database) == before + 5

        busy = await refusal(now.customer, "volume.attach", id=volume.id, vm_id=other)
        assert (busy.code, busy.hint) == (ErrorCode.CONFLICT, "Detach it first.")
        assert (await done(now, "volume.detach", id=volume.id)).status == "succeeded"
        assert await state(now, volume.id) == "available"
        assert (await done(now, "volume.attach", id=volume.id, vm_id=other)).status == "succeeded"
        assert (await done(now, "volume.grow", id=volume.id, size_gib=8)).status == "succeeded"
        assert await promised(database) == before + 8
        await done(now, "volume.detach", id=volume.id)
        assert (await done(now, "volume.grow", id=volume.id, size_gib=9)).status == "succeeded"
        kept = await refusal(now.customer, "volume.delete", id=volume.id, confirm="other")
        assert kept.code is not ErrorCode.NOT_FOUND
        assert (await done(now, "volume.delete", id=volume.id, confirm="data")).status == "succeeded"
        assert (await now.customer("volume.list")).total == 0
        assert await promised(database) == before

        asked = [each for each in now.service.gateway.asked if each.op.startswith("volume.")]
        assert asked == [
            VolumeCreate(volume_id=volume.id, size_gib=5),
            VolumeAttach(vm_id=one, volume_id=volume.id, index=1, size_gib=5),
            VolumeDetach(vm_id=one, volume_id=volume.id),
            VolumeAttach(vm_id=other, volume_id=volume.id, index=1, size_gib=5),
            VolumeGrow(volume_id=volume.id, vm_id=other, size_gib=8),
            VolumeDetach(vm_id=other, volume_id=volume.id),
            VolumeGrow(volume_id=volume.id, vm_id=None, size_gib=9),
            VolumeDelete(volume_id=volume.id),
        ]
        audited = await database.fetch("SELECT operation FROM audit WHERE operation LIKE 'volume.%' ORDER BY id")
        assert [row["operation"] for row in audited] == [
            "volume.create",
            "volume.detach",
            "volume.attach",
            "volume.grow",
            "volume.detach",
            "volume.grow",
            "volume.delete",
        ]


async def test_it_is_found_by_project_machine_node_state_and_label(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        attached, free = await made(now, vm_id, labels={"env": "test"}), await made(now)
        for filters, found in (
            ({"vm": vm_id}, [attached.id]),
            ({"state": "available"}, [free.id]),
            ({"label": "env=test"}, [attached.id]),
            ({"project": now.world.project_id}, [free.id, attached.id]),
            ({"project": uuid4()}, []),
            ({"q": attached.name}, [attached.id]),
        ):
            assert [each.id for each in (await now.customer("volume.list", **filters)).items] == found, filters
        assert (await now.staff("volume.list", node=now.world.node_id)).total == 2
        assert (await now.customer("volume.list", node=now.world.node_id)).total == 0


async def test_of_64_attachments_at_once_one_wins(database: Database) -> None:
    async with stage(database) as now:
        # The machines need no room of their own: 16 of them, each asked four times
        machines = [(await now.created(name=f"m{number}")).vm.id for number in range(16)]
        volume = await made(now)
        won, refused = [], []

        async def attach(vm_id: UUID) -> None:
            try:
                won.append(await now.customer("volume.attach", id=volume.id, vm_id=vm_id))
            except ServiceError as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            for vm_id in machines * 4:
                nursery.start_soon(attach, vm_id)
        assert (len(won), len(refused)) == (1, 63)
        assert set(refused) <= {ErrorCode.NOT_READY, ErrorCode.CONFLICT}
        assert (await now.service.ended(won[0].id)).status == "succeeded"
        shown = await now.customer("volume.show", id=volume.id)
        assert (shown.state, shown.vm_id) == ("in_use", won[0].resource_id)
        asked = [each.vm_id for each in now.service.gateway.asked if isinstance(each, VolumeAttach)]
        assert asked == [won[0].resource_id]


async def test_parallel_orders_never_take_more_than_the_project_may_have(database: Database) -> None:
    async with stage(database) as now:
        await now.administrator("settings.update", most_volumes=50, most_volume_gib=12)
        machines = [(await now.created(name=f"m{number}")).vm.id for number in range(8)]
        refused = []

        async def create(vm_id: UUID) -> None:
            try:
                answer = await now.customer("volume.create", vm_id=vm_id, name=f"v-{vm_id}", size_gib=3)
                await now.service.ended(answer.task.id)
                await now.service.ended((await now.customer("volume.grow", id=answer.volume.id, size_gib=4)).id)
            except ServiceError as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            for vm_id in machines:
                nursery.start_soon(create, vm_id)
        has = await database.fetchone("SELECT count(*) AS number, sum(size_gib)::int AS gib FROM volumes")
        assert has["gib"] <= 12
        assert set(refused) == {ErrorCode.CAPACITY}
        # Staff are not bound by it, and a customer is told what it is
        await made(now, size_gib=100)
        told = await refusal(now.customer, "volume.create", vm_id=machines[0], name="more", size_gib=1)
        assert (told.code, told.details and told.details["limit_gib"]) == (ErrorCode.CAPACITY, 12)
        await now.administrator("settings.update", most_volumes=0, most_volume_gib=1000)
        forbidden = await refusal(now.customer, "volume.create", vm_id=machines[0], name="more", size_gib=1)
        assert (forbidden.code, forbidden.details) == (ErrorCode.CAPACITY, {"limit": 0})


async def test_no_more_is_promised_of_a_node_than_it_has(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await now.administrator("settings.update", most_volume_gib=10_000)
        volume = await made(now, vm_id, size_gib=600)
        for order in (
            ("volume.create", {"vm_id": vm_id, "name": "too-large", "size_gib": 400}),
            ("volume.grow", {"id": volume.id, "size_gib": 1000}),
        ):
            assert (await refusal(now.customer, order[0], **order[1])).code is ErrorCode.CAPACITY
        await done(now, "volume.grow", id=volume.id, size_gib=999)
        full = await refusal(now.customer, "vm.create", **now.order(name="none-left"))
        assert full.code is ErrorCode.CAPACITY


async def test_strangers_do_not_see_it_and_tokens_and_support_sessions_act_as_they_may(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        volume = await made(now, vm_id)
        strangers = await database.fetchval("INSERT INTO projects (name) VALUES ('theirs') RETURNING id")
        await database.execute(
            "INSERT INTO project_members (project_id, user_id) VALUES ($1, $2)",
            strangers,
            now.stranger.principal.user_id,
        )
        theirs = (await now.created(now.stranger, project_id=strangers)).vm.id
        for name, more in (
            ("volume.show", {}),
            ("volume.update", {"name": "mine"}),
            ("volume.attach", {"vm_id": theirs}),
            ("volume.detach", {}),
            ("volume.grow", {"size_gib": 9}),
            ("volume.delete", {"confirm": volume.name}),
        ):
            assert (await refusal(now.stranger, name, id=volume.id, **more)).code is ErrorCode.NOT_FOUND, name
        create = {"name": "x", "size_gib": 1}
        assert (await refusal(now.stranger, "volume.create", vm_id=vm_id, **create)).code is ErrorCode.NOT_FOUND
        assert (await now.stranger("volume.list")).total == 0
        # Nor is one attached across projects, whoever asks
        free = await made(now)
        apart = await refusal(now.staff, "volume.attach", id=free.id, vm_id=theirs)
        assert (apart.code, "different projects" in apart.message) == (ErrorCode.CONFLICT, True)
        place = {"project_id": now.world.project_id, "node_id": now.world.node_id}
        assert (await refusal(now.customer, "volume.create", **create | place)).code is ErrorCode.INVALID
        to_them = {"id": free.id, "project_id": strangers}
        assert (await refusal(now.staff, "volume.update", **to_them)).code is ErrorCode.FORBIDDEN
        assert (await now.administrator("volume.update", **to_them)).project_id == strangers

        reads = replace(now.customer.principal, scopes=frozenset({"read"}))
        support = replace(now.customer.principal, impersonation_id=uuid4(), impersonator_id=uuid4())
        for principal in (reads, support):
            assert allowed(principal, "volume.list")
            assert allowed(principal, "volume.show")
            acts = ("create", "update", "attach", "detach", "grow", "delete")
            assert not any(allowed(principal, f"volume.{each}") for each in acts)


def allowed(principal: Principal, name: str) -> bool:
    try:
        authorise(REGISTRY[name], principal, REGISTRY.realm)
    except ServiceError as refused:
        return refused.code is not ErrorCode.FORBIDDEN
    return True


async def test_it_is_attached_only_on_its_own_node_and_eight_at_most(database: Database) -> None:
    async with stage(database) as now:
        beta = await make_node(database, now.world.location_id, "beta")
        await database.execute("UPDATE pools SET node_ids = '{}'")
        vm_id = (await now.created()).vm.id
        away = await made(now, node_id=beta)
        apart = await refusal(now.customer, "volume.attach", id=away.id, vm_id=vm_id)
        assert (apart.code, "different nodes" in apart.message) == (ErrorCode.CONFLICT, True)
        await now.administrator("settings.update", most_volumes=100)
        for _ in range(8):
            await made(now, vm_id, size_gib=1)
        full = await refusal(now.customer, "volume.create", vm_id=vm_id, name="ninth", size_gib=1)
        assert (full.code, full.details) == (ErrorCode.CONFLICT, {"limit": 8})


async def test_the_same_key_makes_one_and_a_name_is_taken_once(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        order = {"vm_id": vm_id, "name": "data", "size_gib": 1, "idempotency_key": "one"}
        first = await now.customer("volume.create", **order)
        await now.service.ended(first.task.id)
        again = await now.customer("volume.create", **order)
        assert (again.volume.id, again.replayed, now.customer.effects.status) == (first.volume.id, True, 200)
        taken = await refusal(now.customer, "volume.create", **order | {"idempotency_key": "two"})
        assert (taken.code, "named data already" in taken.message) == (ErrorCode.CONFLICT, True)
        other = await made(now, vm_id)
        assert (await refusal(now.customer, "volume.update", id=other.id, name="data")).code is ErrorCode.CONFLICT
        for _ in range(2):  # The first answer may have been lost.
            renamed = await now.customer("volume.update", id=other.id, name="logs", labels={"a": "b"}, protected=True)
            assert (renamed.name, renamed.labels, renamed.protected) == ("logs", {"a": "b"}, True)


async def test_what_fails_leaves_it_where_it_was(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        answers = now.service.gateway.answers
        attached, free = await made(now, vm_id), await made(now)
        before = await promised(database)
        for op, volume, more, words in (
            ("volume.detach", attached, {}, "still attached"),
            ("volume.grow", attached, {"size_gib": 50}, "no room"),
            ("volume.grow", free, {"size_gib": 50}, "no room"),
            ("volume.attach", free, {"vm_id": vm_id}, "no free slot"),
            ("volume.delete", free, {"confirm": free.name}, "the host said no"),
        ):
            answers[op] = refusing(FailureCode.TIMED_OUT if op == "volume.detach" else FailureCode.HOST, words)
            task = await done(now, op, id=volume.id, **more)
            assert (task.status, words in task.error_message) == ("failed", True)
            assert (await now.customer("volume.show", id=volume.id)) == volume
            del answers[op]
        assert await promised(database) == before
        assert (await now.customer("vm.show", id=vm_id)).status == "running"

        # One that could not be made holds nothing, and is deleted, of an agent that knows none as well
        for op in ("volume.create", "volume.delete"):
            answers[op] = refusing(FailureCode.UNSUPPORTED, "unknown operation")
        never = await now.customer("volume.create", vm_id=vm_id, name="never", size_gib=3)
        failed = never.volume
        await now.service.ended(never.task.id)
        shown = await now.customer("volume.show", id=failed.id)
        assert (shown.state, shown.vm_id, shown.error) == ("failed", None, "unknown operation")
        assert await promised(database) == before
        assert (await done(now, "volume.delete", id=failed.id, confirm="never")).status == "succeeded"


async def test_a_machine_of_one_task_at_a_time_and_a_node_that_is_away(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        volume, free = await made(now, vm_id), await made(now)
        let_go = now.service.gateway.hold("volume.detach")
        task = await now.customer("volume.detach", id=volume.id)
        await now.service.until_asked("volume.detach")
        for caller, name, values in (
            (now.staff, "vm.backup", {"id": vm_id}),
            (now.customer, "vm.snapshot.take", {"id": vm_id, "name": "x"}),
            (now.customer, "volume.attach", {"id": free.id, "vm_id": vm_id}),
            (now.customer, "vm.delete", {"id": vm_id, "confirm": "web"}),
        ):
            assert (await refusal(caller, name, **values)).code is ErrorCode.NOT_READY, name
        final = await refusal(now.customer, "task.cancel", id=task.id)
        assert final.code is ErrorCode.CONFLICT
        let_go.set()
        await now.service.ended(task.id)

        await database.execute("UPDATE nodes SET state = 'offline'")
        now.service.gateway.leave(now.world.node_id)
        for name, values in (
            ("volume.attach", {"id": free.id, "vm_id": vm_id}),
            ("volume.grow", {"id": free.id, "size_gib": 9}),
            ("volume.create", {"vm_id": vm_id, "name": "x", "size_gib": 1}),
        ):
            assert (await refusal(now.customer, name, **values)).code is ErrorCode.UNAVAILABLE, name
        # A deletion waits for the node
        task = await now.customer("volume.delete", id=free.id, confirm=free.name)
        assert await state(now, free.id) == "deleting"
        now.service.gateway.come_back(now.world.node_id)
        assert (await now.service.ended(task.id)).status == "succeeded"


async def test_on_a_lost_node_it_can_only_be_deleted(database: Database) -> None:
    async with stage(database) as now:
        free = await made(now)
        await database.execute("UPDATE nodes SET state = 'offline', lost_at = now()")
        now.service.gateway.leave(now.world.node_id)
        now.service.gateway.mark_lost(now.world.node_id)
        lost = await refusal(now.customer, "volume.grow", id=free.id, size_gib=9)
        assert (lost.code, lost.hint) == (ErrorCode.CONFLICT, "It can only be deleted.")
        assert (await done(now, "volume.delete", id=free.id, confirm=free.name)).status == "succeeded"


async def test_volumes_outlive_their_machine_unless_they_are_to_go_with_it(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        stays, goes = await made(now, vm_id), await made(now, vm_id, delete_with_machine=True)
        await done(now, "vm.delete", id=vm_id, confirm="web", destroy_disks=True)
        assert [each.id for each in (await now.customer("volume.list")).items] == [stays.id]
        assert await state(now, stays.id) == "available"
        [deletion] = [each for each in now.service.gateway.asked if isinstance(each, VmDelete)]
        assert deletion.destroy_volumes == (goes.id,)

        vm_id = (await now.created(name="second")).vm.id
        await done(now, "volume.attach", id=stays.id, vm_id=vm_id)
        await now.customer("volume.update", id=stays.id, protected=True)
        order = {"id": vm_id, "confirm": "second", "destroy_volumes": True}
        kept = await refusal(now.customer, "vm.delete", **order)
        assert (kept.code, "protected" in kept.message) == (ErrorCode.CONFLICT, True)
        await now.customer("volume.update", id=stays.id, protected=False)
        await done(now, "vm.delete", **order)
        assert (await now.customer("volume.list")).total == 0


async def test_a_disk_that_is_kept_is_a_volume_of_its_project_and_counts_until_it_is_removed(
    database: Database,
) -> None:
    async with stage(database) as now:
        await now.administrator("settings.update", most_volumes=1)
        vm_id, other = (await now.created()).vm.id, (await now.created(name="other")).vm.id
        await made(now, other)
        before = await promised(database)
        name = f"retained/{vm_id}/disk-0.qcow2"

        async def keeps(gateway: FakeGateway, _: UUID, __: object, operation: Any) -> OperationResult:
            gateway.domains.pop(vm_id)
            return DeleteResult(vm_id=vm_id, removed_addresses=(), retained_disks=(name,))

        now.service.gateway.answers["vm.delete"] = keeps
        await done(now, "vm.delete", id=vm_id, confirm="web")
        [kept] = (await now.customer("volume.list", state="available")).items
        assert (kept.name, kept.size_gib, kept.kept_of) == ("web", 1, vm_id)
        assert await promised(database) == before

        assert (await done(now, "volume.attach", id=kept.id, vm_id=other)).status == "succeeded"
        asked = [each for each in now.service.gateway.asked if isinstance(each, VolumeAttach)]
        assert (asked[-1].kept, asked[-1].index) == (name, 2)
        await done(now, "volume.detach", id=kept.id)
        await done(now, "volume.delete", id=kept.id, confirm="web")
        assert now.service.gateway.asked[-1] == VolumeDelete(volume_id=kept.id, kept=name)
        assert await promised(database) == before - 1


@pytest.mark.parametrize("state_before", [DomainState.RUNNING, DomainState.STOPPED])
async def test_it_moves_with_its_machine(database: Database, state_before: DomainState) -> None:
    async with stage(database) as now:
        beta = await make_node(database, now.world.location_id, "beta")
        vm_id = (await now.created(start=state_before is DomainState.RUNNING)).vm.id
        volume = await made(now, vm_id)
        task = await now.administrator("vm.migrate", id=vm_id, node_id=beta, restart=True)
        assert (await now.service.ended(task.id)).status == "succeeded"
        moved = await now.administrator("volume.show", id=volume.id)
        assert (moved.node_id, moved.state, moved.vm_id) == (beta, "in_use", vm_id)
        [migration] = [each for each in now.service.gateway.asked if each.op == "vm.migrate"]
        assert [disk.volume_id for disk in migration.machine.disks] == [None, volume.id]
        # Both nodes hold its room until the first has removed what is left there
        rows = await database.fetch("SELECT promised_disk_gib FROM node_capacity ORDER BY node_name")
        assert [row["promised_disk_gib"] for row in rows] == [6, 6]
