"""A machine's CD-ROM drive: what is put into it and by whom, and what it means for other orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    FailureCode,
    ImageFormat,
    ImageKind,
    ImagePull,
    OperationResult,
    VmIso,
    VmMigrate,
)
from tests.support.machine_api import Api
from tests.support.machine_service import make_node, open_service
from tests.support.machines import MachineHarness, refusal, stage

DIGEST = "c" * 64


async def add_iso(now: MachineHarness, slug: str = "netinst", **changes: object) -> UUID:
    values: dict[str, object] = {"slug": slug, "name": slug.title(), "distribution": "debian", "release": "12"}
    values |= {"kind": "iso", "url": f"https://images.example/{slug}.iso", "digest": DIGEST}
    return UUID(str((await now.administrator("image.create", **(values | changes))).id))


async def done(now: MachineHarness, op: str, /, **values: object) -> str:
    answer = await now.customer(op, **values)
    return (await now.service.ended(getattr(answer, "task", answer).id)).status


async def iso(now: MachineHarness, vm_id: UUID) -> tuple[str, bool] | None:
    found = (await now.customer("vm.show", id=vm_id)).iso
    return None if found is None else (found.image_name, found.boot)


def told(now: MachineHarness) -> list[tuple[UUID | None, bool]]:
    return [
        (each.image.image_id if each.image is not None else None, each.boot)
        for each in now.service.gateway.asked
        if isinstance(each, VmIso)
    ]


async def test_an_iso_is_added_inserted_changed_and_ejected_by_a_machines_owner(database: Database) -> None:
    async with stage(database) as now:
        first = await add_iso(now)
        second = await add_iso(now, "tools", digest="d" * 64)
        listed = {each.slug: (each.kind, each.format) for each in await now.customer("image.list")}
        assert listed["netinst"] == (ImageKind.ISO, ImageFormat.RAW)
        vm_id = (await now.created()).vm.id
        assert await done(now, "vm.iso.insert", id=vm_id, image_id=first) == "succeeded"
        assert await iso(now, vm_id) == ("Netinst", False)
        pulled = [each.image for each in now.service.gateway.asked if isinstance(each, ImagePull)][-1]
        assert (pulled.image_id, pulled.kind, pulled.digest) == (first, ImageKind.ISO, DIGEST)
        await done(now, "vm.shutdown", id=vm_id)
        assert await done(now, "vm.iso.insert", id=vm_id, image="tools", boot=True) == "succeeded"
        assert await iso(now, vm_id) == ("Tools", True)
        assert await done(now, "vm.iso.eject", id=vm_id) == "succeeded"
        assert await iso(now, vm_id) is None
        assert told(now) == [(first, False), (second, True), (None, False)]
        assert (await refusal(now.customer, "vm.iso.eject", id=vm_id)).code is ErrorCode.CONFLICT
        audited = await database.fetch("SELECT operation FROM audit WHERE operation LIKE 'vm.iso.%' ORDER BY id")
        assert [row["operation"] for row in audited] == ["vm.iso.insert", "vm.iso.insert", "vm.iso.eject"]


async def test_only_enabled_isos_are_inserted_and_only_by_who_may_act_on_the_machine(database: Database) -> None:
    async with stage(database) as now:
        image_id = await add_iso(now)
        vm_id = (await now.created()).vm.id
        disk = await refusal(now.customer, "vm.iso.insert", id=vm_id, image="demo")
        assert (disk.code, "ISO" in disk.message) == (ErrorCode.NOT_FOUND, True)
        assert (await refusal(now.customer, "vm.create", **now.order(name="x", image_id=image_id))).code is (
            ErrorCode.NOT_FOUND
        )
        assert (await refusal(now.stranger, "vm.iso.insert", id=vm_id, image_id=image_id)).code is ErrorCode.NOT_FOUND
        looking = Api(now.service, replace(now.customer.principal, impersonation_id=uuid4()))
        for name, values in (("vm.iso.insert", {"image_id": image_id}), ("vm.iso.eject", {})):
            assert (await refusal(looking, name, id=vm_id, **values)).code is ErrorCode.FORBIDDEN
        await now.administrator("image.update", id=image_id, enabled=False)
        assert (await refusal(now.customer, "vm.iso.insert", id=vm_id, image_id=image_id)).code is ErrorCode.NOT_FOUND
        assert "netinst" not in {each.slug for each in await now.customer("image.list")}
        assert (await refusal(now.customer, "vm.iso.insert", id=vm_id)).code is ErrorCode.INVALID
        assert (await refusal(now.customer, "image.create", slug="y")).code is ErrorCode.FORBIDDEN
        assert told(now) == []


async def test_what_fails_leaves_the_drive_as_it_was(database: Database) -> None:
    async with stage(database) as now:
        await add_iso(now)
        await add_iso(now, "tools", digest="d" * 64)
        vm_id = (await now.created()).vm.id
        await done(now, "vm.iso.insert", id=vm_id, image="netinst", boot=True)

        async def refuse(*_: Any) -> OperationResult:
            raise OperationFailed(FailureCode.UNSUPPORTED, "the agent is too old", None)

        now.service.gateway.answers["vm.iso"] = refuse
        assert await done(now, "vm.iso.insert", id=vm_id, image="tools") == "failed"
        assert await iso(now, vm_id) == ("Netinst", True)
        assert await done(now, "vm.iso.eject", id=vm_id) == "failed"
        assert await iso(now, vm_id) == ("Netinst", True)
        assert (await now.customer("vm.show", id=vm_id)).status == "running"


async def test_a_machine_that_boots_its_cd_is_not_reinstalled_and_one_in_rescue_may_change_it(
    database: Database,
) -> None:
    async with stage(database) as now:
        await add_iso(now)
        vm_id = (await now.created()).vm.id
        await done(now, "vm.iso.insert", id=vm_id, image="netinst", boot=True)
        refused = await refusal(now.customer, "vm.reinstall", id=vm_id, confirm="web")
        assert (refused.code, "boots the CD" in refused.message) == (ErrorCode.CONFLICT, True)
        await database.execute("UPDATE vms SET rescue_since = now() WHERE id = $1", vm_id)
        assert await done(now, "vm.iso.insert", id=vm_id, image="netinst") == "succeeded"
        await database.execute("UPDATE vms SET rescue_since = NULL WHERE id = $1", vm_id)
        assert await done(now, "vm.reinstall", id=vm_id, confirm="web") == "succeeded"
        assert await iso(now, vm_id) == ("Netinst", False)


async def test_it_moves_with_the_machine_before_the_move_ends(database: Database) -> None:
    async with stage(database) as now:
        image_id = await add_iso(now)
        target = await make_node(database, now.world.location_id, "beta")
        vm_id = (await now.created()).vm.id
        await done(now, "vm.iso.insert", id=vm_id, image="netinst", boot=True)
        await done(now, "vm.shutdown", id=vm_id)
        move = await now.administrator("vm.migrate", id=vm_id, node_id=target)
        assert (await now.service.ended(move.id)).status == "succeeded"
        asked = [
            (each.op, node)
            for each, node in zip(now.service.gateway.asked, now.service.gateway.asked_of, strict=True)
            if isinstance(each, VmIso | VmMigrate)
        ]
        assert asked[-2:] == [("vm.migrate", target), ("vm.iso", target)]
        assert told(now)[-1] == (image_id, True)


async def test_a_controller_that_dies_over_it_goes_on_with_the_same_operation(database: Database) -> None:
    async with stage(database) as now:
        await add_iso(now)
        vm_id = (await now.created()).vm.id
        gateway = now.service.gateway
        let_go = gateway.hold("vm.iso")
        task = await now.customer("vm.iso.insert", id=vm_id, image="netinst")
        first = await now.service.until_asked("vm.iso")
    let_go.set()
    async with open_service(database, gateway) as service:
        assert (await service.ended(task.id)).status == "succeeded"
        assert set(gateway.asked_ids[gateway.asked_ids.index(first) :]) == {first}
        assert (await service.vm(vm_id))["iso_image_id"] is not None
