"""What a node's inventory makes of volumes: what it has lost, what it has besides, and what was kept before volumes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.controller.reconcile.restored import record_restoration
from svc_actors.controller.retention import remove_deleted_machines
from svc_actors.controller.volumes.observing import record_volumes
from svc_actors.store import Database, Record
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import InventoryResult, KeptDisk, ObservedVolume
from svc_nodeagent.simulated import SimulatedHost
from tests.controller.volumes.test_volumes import done, made
from tests.support.machine_service import make_node, open_service
from tests.support.machines import MachineHarness, refusal, stage

GIB = 1024**3


def has(volume_id: UUID, vm_id: UUID | None = None, *, index: int | None = None, gib: float = 5) -> ObservedVolume:
    place = index if index is not None or vm_id is None else 1
    return ObservedVolume(volume_id=volume_id, vm_id=vm_id, index=place, size_bytes=int(gib * GIB))


async def inventoried(
    now: MachineHarness,
    *volumes: ObservedVolume,
    kept: tuple[KeptDisk, ...] = (),
    node_id: UUID | None = None,
    before: float = 0.0,
) -> None:
    """The node says this, of so many seconds ago."""
    async with SimulatedHost("simulated", uuid4()) as host:
        plain = InventoryResult(facts=await host.facts(), capacity=await host.capacity(), domains=(), images=())
    result = plain.model_copy(update={"volumes": volumes, "kept_disks": kept})
    database = now.service.database
    asked_at = await database.fetchval("SELECT clock_timestamp()") - timedelta(seconds=before)
    node = node_id or now.world.node_id
    await database.transact(partial(record_volumes, node_id=node, inventory=result, asked_at=asked_at))


async def row(database: Database, volume_id: UUID) -> Record:
    return await database.fetchone("SELECT * FROM volumes WHERE id = $1", volume_id)


async def alerts(database: Database) -> list[str]:
    rows = await database.fetch("SELECT key FROM alerts WHERE closed_at IS NULL AND key LIKE 'volume-missing:%'")
    return [row["key"] for row in rows]


async def test_one_whose_file_is_gone_has_failed_and_is_back_with_its_file(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        attached, free = await made(now, vm_id), await made(now)
        await inventoried(now, has(attached.id, vm_id), has(free.id))
        assert await alerts(database) == []
        # As a file system that is not mounted: the machine's record still names its volume
        await inventoried(now, has(attached.id, vm_id, gib=0))
        shown = [await now.customer("volume.show", id=each.id) for each in (attached, free)]
        assert [(each.state, each.error is not None, each.vm_id) for each in shown] == [
            ("failed", True, vm_id),
            ("failed", True, None),
        ]
        assert len(await alerts(database)) == 2
        assert (await refusal(now.customer, "volume.grow", id=free.id, size_gib=9)).code is ErrorCode.CONFLICT

        await inventoried(now, has(attached.id, vm_id), has(free.id))
        assert [(await row(database, each.id))["state"] for each in (attached, free)] == ["in_use", "available"]
        assert await alerts(database) == []
        await inventoried(now, has(attached.id, vm_id))
        assert (await done(now, "volume.delete", id=free.id, confirm=free.name)).status == "succeeded"
        assert await alerts(database) == []


async def test_the_node_says_who_has_it_and_how_large_it_is(database: Database) -> None:
    async with stage(database) as now:
        one, other = (await now.created()).vm.id, (await now.created(name="other")).vm.id
        volume = await made(now, one)
        await inventoried(now, has(volume.id, other, index=3, gib=6.5))
        found = await row(database, volume.id)
        assert (found["vm_id"], found["disk_index"], found["state"], found["size_gib"]) == (other, 3, "in_use", 7)
        await inventoried(now, has(volume.id, gib=7))
        assert (await row(database, volume.id))["state"] == "available"


async def test_what_was_decided_since_or_is_under_way_is_not_overruled(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        volume = await made(now, vm_id)
        await inventoried(now, has(volume.id), before=60)
        assert (await row(database, volume.id))["state"] == "in_use"
        let_go = now.service.gateway.hold("volume.detach")
        task = await now.customer("volume.detach", id=volume.id)
        await inventoried(now, before=-60)
        assert (await row(database, volume.id))["state"] == "detaching"
        let_go.set()
        await now.service.ended(task.id)
        await done(now, "volume.delete", id=volume.id, confirm=volume.name)
        # Asked for before the deletion, answered after it
        await inventoried(now, has(volume.id))
        assert (await now.customer("volume.list")).total == 0
        # A node that it is not on has no say
        other = await made(now)
        beta = await make_node(database, now.world.location_id, "beta")
        await inventoried(now, has(other.id, gib=50), node_id=beta)
        assert (await row(database, other.id))["size_gib"] == 5


async def test_a_disk_kept_before_volumes_were_is_its_projects_or_an_administrators(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await done(now, "vm.delete", id=vm_id, confirm="web", destroy_disks=True)
        known = KeptDisk(name=f"retained/{vm_id}/disk-0.qcow2", vm_id=vm_id, vm_name="web", size_bytes=GIB)
        stranger = uuid4()
        unknown = KeptDisk(name=f"retained/{stranger}/disk-0.qcow2", vm_id=stranger, vm_name="old", size_bytes=2 * GIB)
        for _ in range(2):
            await inventoried(now, kept=(known, unknown))
        [theirs] = (await now.customer("volume.list")).items
        assert (theirs.name, theirs.kept_of, theirs.state) == ("web", vm_id, "available")
        [nobodys] = [each for each in (await now.administrator("volume.list")).items if each.project_id is None]
        assert (nobodys.name, nobodys.kept_of, nobodys.size_gib) == ("old", stranger, 2)
        assert await database.fetchval("SELECT promised_disk_gib FROM node_capacity") == 3
        other = (await now.created(name="other")).vm.id
        unowned = await refusal(now.administrator, "volume.attach", id=nobodys.id, vm_id=other)
        assert (unowned.code, "belongs to no project" in unowned.message) == (ErrorCode.CONFLICT, True)
        await now.administrator("volume.update", id=nobodys.id, project_id=now.world.project_id)
        assert (await done(now, "volume.attach", id=nobodys.id, vm_id=other)).status == "succeeded"
        # Taken over, its file is a volume's; the record of what it was stays
        await inventoried(now, has(nobodys.id, other, gib=2), kept=(known,))
        assert (await row(database, nobodys.id))["state"] == "in_use"
        await done(now, "volume.delete", id=theirs.id, confirm="web")
        await inventoried(now, has(nobodys.id, other, gib=2), kept=(known,))
        assert [each.id for each in (await now.customer("volume.list")).items] == [nobodys.id]


@pytest.mark.parametrize("op", ["volume.create", "volume.attach", "volume.detach", "volume.grow", "volume.delete"])
async def test_after_a_restored_controller_the_nodes_say_what_there_is(database: Database, op: str) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        volume = await made(now, vm_id if op == "volume.detach" else None)
        orders: dict[str, dict[str, Any]] = {
            "volume.create": {"name": "new", "size_gib": 5, "vm_id": vm_id},
            "volume.attach": {"id": volume.id, "vm_id": vm_id},
            "volume.detach": {"id": volume.id},
            "volume.grow": {"id": volume.id, "size_gib": 8},
            "volume.delete": {"id": volume.id, "confirm": volume.name},
        }
        now.service.gateway.hold(op)
        answer = await now.customer(op, **orders[op])
        volume_id = answer.volume.id if op == "volume.create" else volume.id
        await now.service.until_asked(op, 2 if op == "volume.create" else 1)
        taken_at = datetime.now(UTC) - timedelta(hours=1)
        await database.transact(partial(record_restoration, taken_at=taken_at, release="0.1.0"))
        # Of what may be attached nobody else is given it
        assert (await row(database, volume_id))["state"] == {
            "volume.create": "failed",
            "volume.attach": "in_use",
            "volume.detach": "in_use",
            "volume.grow": "available",
            "volume.delete": "failed",
        }[op]
        await inventoried(now, has(volume_id, gib=8), before=-1)
        found = await row(database, volume_id)
        assert (found["state"], found["vm_id"], found["size_gib"]) == ("available", None, 8)
        made_since, attached_since = uuid4(), uuid4()
        await inventoried(now, has(volume_id, gib=8), has(made_since), has(attached_since, vm_id, index=2), before=-1)
        assert (await row(database, made_since))["project_id"] is None
        since = await row(database, attached_since)
        assert (since["project_id"], since["vm_id"], since["disk_index"]) == (now.world.project_id, vm_id, 2)


@pytest.mark.parametrize("op", ["volume.create", "volume.attach", "volume.detach", "volume.grow", "volume.delete"])
async def test_a_controller_that_dies_over_one_goes_on_with_the_same_operation(database: Database, op: str) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        volume = await made(now, vm_id if op == "volume.detach" else None)
        gateway = now.service.gateway
        orders: dict[str, dict[str, Any]] = {
            "volume.create": {"name": "new", "size_gib": 5, "vm_id": vm_id},
            "volume.attach": {"id": volume.id, "vm_id": vm_id},
            "volume.detach": {"id": volume.id},
            "volume.grow": {"id": volume.id, "size_gib": 8},
            "volume.delete": {"id": volume.id, "confirm": volume.name},
        }
        let_go = gateway.hold(op)
        answer = await now.customer(op, **orders[op])
        task = answer.task if op == "volume.create" else answer
        volume_id = answer.volume.id if op == "volume.create" else volume.id
        first = await now.service.until_asked(op, 2 if op == "volume.create" else 1)
    let_go.set()
    async with open_service(database, gateway) as service:
        assert (await service.ended(task.id)).status == "succeeded"
        asked = [each for each, done in zip(gateway.asked_ids, gateway.asked, strict=True) if done.op == op]
        assert asked[-1] == first
        after = await row(database, volume_id)
        assert (after["state"], after["size_gib"]) == {
            "volume.create": ("in_use", 5),
            "volume.attach": ("in_use", 5),
            "volume.detach": ("available", 5),
            "volume.grow": ("available", 8),
            "volume.delete": ("deleted", 5),
        }[op]


async def test_what_was_deleted_is_forgotten_in_time(database: Database) -> None:
    async with stage(database) as now:
        gone, stays = await made(now), await made(now)
        await done(now, "volume.delete", id=gone.id, confirm=gone.name)
        await database.execute(
            "UPDATE volumes SET deleted_at = now() - interval '100 days' WHERE deleted_at IS NOT NULL"
        )
        await remove_deleted_machines(database, timedelta(days=90))
        assert [row["id"] for row in await database.fetch("SELECT id FROM volumes")] == [stays.id]
