"""What a node claims of disks is what it has, never whose it is: no limit is used up, and rows and alerts are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.controller.volumes.observing import ALONE_AGAIN, MOST_FOUND, MOST_TOLD_ALONE
from svc_actors.controller.volumes.records import MOST_KEPT
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import MANY, MOST_VOLUMES, DeleteResult, KeptDisk, ObservedVolume, OperationResult
from tests.controller.volumes.test_observed_volumes import GIB, has, inventoried, row
from tests.controller.volumes.test_volumes import done, made
from tests.support.machine_service import FakeGateway, make_node
from tests.support.machines import MachineHarness, refusal, stage


def many(number: int, vm_id: UUID | None = None) -> Sequence[ObservedVolume]:
    return [has(uuid4(), vm_id, index=n + 1 if vm_id else None) for n in range(number)]


def kept(vm_id: UUID, name: str | None = None, vm_name: str = "zz") -> KeptDisk:
    return KeptDisk(name=name or f"retained/{uuid4()}.qcow2", vm_id=vm_id, vm_name=vm_name, size_bytes=5 * GIB)


async def open_alerts(database: Database) -> list[tuple[str, str]]:
    rows = await database.fetch("SELECT key, severity FROM alerts WHERE closed_at IS NULL ORDER BY key")
    return [(row["key"].split(":")[0], row["severity"]) for row in rows]


async def evil_node(now: MachineHarness) -> UUID:
    return await make_node(now.service.database, now.world.location_id, "evil")


async def test_a_disk_of_a_machine_that_never_was_there_is_nobodys(database: Database) -> None:
    async with stage(database) as now:
        vm_id, evil = (await now.created()).vm.id, await evil_node(now)
        before = (await now.customer("volume.list"), await now.customer("alert.list"))
        await inventoried(
            now, kept=(kept(vm_id), kept(vm_id, vm_name="a\u202eb"), kept(uuid4(), vm_name=" ")), node_id=evil
        )
        assert (await now.customer("volume.list"), await now.customer("alert.list")) == before
        found = await database.fetch("SELECT name, project_id, node_id FROM volumes ORDER BY name")
        assert {(each["project_id"], each["node_id"]) for each in found} == {(None, evil)}
        assert [each["name"][:5] for each in found] == ["kept-", "kept-", "zz"]
        assert (await now.administrator("volume.list")).total == 3


async def test_a_disk_of_a_machine_that_is_or_was_there_is_its_projects(database: Database) -> None:
    async with stage(database) as now:
        vm_id, beta = (await now.created()).vm.id, await evil_node(now)
        await database.execute("UPDATE vms SET node_id = $2 WHERE id = $1", vm_id, beta)
        await inventoried(now, kept=(kept(vm_id),))
        await database.execute("UPDATE vms SET status = 'deleted', deleted_at = now() WHERE id = $1", vm_id)
        await inventoried(now, kept=(kept(vm_id),), node_id=beta)
        assert len((await now.customer("volume.list")).items) == 2
        # As many as a machine has, and one alert for the rest.
        await inventoried(now, kept=tuple(kept(vm_id) for _ in range(50)), node_id=beta)
        assert len((await now.customer("volume.list")).items) == MOST_KEPT
        assert ("volumes-found", "warning") in await open_alerts(database)


async def test_what_a_node_claims_uses_up_no_limit_and_passes_none(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        own = await made(now)
        await inventoried(now, has(own.id, gib=480), *many(15, vm_id), kept=tuple(kept(vm_id) for _ in range(15)))
        attached = await database.fetch("SELECT disk_index, project_id FROM volumes WHERE vm_id = $1", vm_id)
        assert len(attached) == MOST_VOLUMES
        assert await open_alerts(database) == [("volumes-found", "warning")]
        assert (await row(database, own.id))["size_gib"] == 480
        # Her own are 9 of 10, and 45 GiB of 500.
        other = (await now.created(name="other")).vm.id
        for _ in range(MOST_VOLUMES):
            await made(now, other)
        assert (await now.customer("volume.list")).total == 1 + MOST_VOLUMES + MOST_VOLUMES + 15


@pytest.mark.parametrize("destroy_disks", [True, False])
async def test_disks_that_a_node_makes_up_when_a_machine_goes_use_up_no_limit(
    database: Database, destroy_disks: bool
) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        other = (await now.created(name="other")).vm.id
        names = tuple(f"retained/{number}.qcow2" for number in range(100))

        async def keeps(gateway: FakeGateway, _: UUID, __: object, operation: Any) -> OperationResult:
            gateway.domains.pop(vm_id)
            return DeleteResult(vm_id=vm_id, removed_addresses=(), retained_disks=names)

        now.service.gateway.answers["vm.delete"] = keeps
        task = await done(now, "vm.delete", id=vm_id, confirm="web", destroy_disks=destroy_disks)
        assert len(task.message) < 1_000
        counted = await database.fetchval("SELECT count(*) FROM volumes WHERE ordered_gib IS NOT NULL")
        assert counted == (0 if destroy_disks else 1)
        await now.administrator("settings.update", most_volumes=counted + 1)
        await made(now, other)


async def test_a_volume_is_attached_by_its_nodes_word_to_no_machine_of_another_project(database: Database) -> None:
    async with stage(database) as now:
        volume = await made(now)
        theirs = (await now.created(name="theirs")).vm.id
        other = await database.fetchval("INSERT INTO projects (name) VALUES ('other') RETURNING id")
        await database.execute("UPDATE vms SET project_id = $2 WHERE id = $1", theirs, other)
        await inventoried(now, has(volume.id, theirs))
        assert (await row(database, volume.id))["state"] == "available"


async def test_twenty_thousand_volumes_are_some_hundred_rows_and_a_few_alerts(database: Database) -> None:
    async with stage(database) as now:
        evil = await evil_node(now)
        for volumes in (many(MANY), [], many(MANY), many(MANY), []):
            await inventoried(now, *volumes, node_id=evil)
            assert await database.fetchval("SELECT count(*) FROM volumes") <= MOST_FOUND
            assert len(await open_alerts(database)) <= 2
        assert await open_alerts(database) == [("volumes-missing", "critical")]


async def test_one_lost_volume_is_named_and_its_owner_told_and_many_are_one_alert(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("INSERT INTO settings (name, value) VALUES ('most_volumes', '100')")
        volumes = [await made(now) for _ in range(MOST_TOLD_ALONE + 1)]
        await inventoried(now, *(has(each.id) for each in volumes[1:]))
        assert await open_alerts(database) == [("volume-missing", "critical")]
        [told] = (await now.customer("alert.list")).items
        assert volumes[0].name in told.message
        await inventoried(now)
        assert await open_alerts(database) == [("volumes-missing", "critical")]
        assert {each.state for each in (await now.customer("volume.list")).items} == {"failed"}
        await inventoried(now, *(has(each.id) for each in volumes[2:]))
        assert await open_alerts(database) == [("volume-missing", "critical")] * 2
        await inventoried(now, *(has(each.id) for each in volumes))
        assert await open_alerts(database) == []


async def test_a_number_of_lost_volumes_that_sways_does_not_open_and_close_alerts(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("INSERT INTO settings (name, value) VALUES ('most_volumes', '100')")
        volumes = [await made(now) for _ in range(MOST_TOLD_ALONE + 1)]

        async def lost(number: int) -> list[tuple[str, str]]:
            await inventoried(now, *(has(each.id) for each in volumes[number:]))
            return await open_alerts(database)

        assert await lost(len(volumes)) == [("volumes-missing", "critical")]
        opened = await database.fetchval("SELECT count(*) FROM alerts")
        await database.execute("UPDATE volumes SET error = 'In other words.'")
        for number in (MOST_TOLD_ALONE, MOST_TOLD_ALONE + 1, ALONE_AGAIN + 1, MOST_TOLD_ALONE):
            assert await lost(number) == [("volumes-missing", "critical")]
        assert await database.fetchval("SELECT count(*) FROM alerts") == opened
        for number in (ALONE_AGAIN, MOST_TOLD_ALONE):
            assert await lost(number) == [("volume-missing", "critical")] * number


async def test_a_volume_that_is_given_to_a_project_counts_for_it(database: Database) -> None:
    async with stage(database) as now:
        one, other = many(2)
        await inventoried(now, one, other)
        await database.execute("INSERT INTO settings (name, value) VALUES ('most_volume_gib', '30')")
        size_gib = (await row(database, one.volume_id))["size_gib"]
        await now.administrator("volume.update", id=one.volume_id, project_id=now.world.project_id)
        assert (await row(database, one.volume_id))["ordered_gib"] == size_gib
        # What only its node says is nothing ordered: growing it orders all of it.
        await database.execute(
            "UPDATE volumes SET project_id = $2 WHERE id = $1", other.volume_id, now.world.project_id
        )
        grown = {"id": other.volume_id, "size_gib": 31 - size_gib}
        assert (await refusal(now.customer, "volume.grow", **grown)).code is ErrorCode.CAPACITY
        await now.administrator("settings.update", most_volume_gib=31)
        await now.customer("volume.grow", **grown)


async def test_found_volumes_that_are_given_away_make_room_for_others(database: Database) -> None:
    async with stage(database) as now:
        volumes = many(MOST_FOUND + 1)
        await inventoried(now, *volumes)
        assert await open_alerts(database) == [("volumes-found", "warning")]
        one = (await now.administrator("volume.list")).items[0]
        await now.administrator("volume.update", id=one.id, project_id=now.world.project_id)
        await inventoried(now, *volumes)
        assert (await database.fetchval("SELECT count(*) FROM volumes"), await open_alerts(database)) == (
            MOST_FOUND + 1,
            [],
        )
        assert (await done(now, "volume.delete", id=one.id, confirm=one.name)).status == "succeeded"
