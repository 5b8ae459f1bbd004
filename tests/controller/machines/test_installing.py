"""A machine that is installed from an ISO: an empty disk, the ISO in its drive, and no account but the installer's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeVar

import pytest

from svc_actors.controller.images.files import ImageFiles
from svc_actors.controller.images.own_images import EMPTY_DISK, SIZE_BYTES, keep_empty_disk
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    PLATFORM_FEATURES,
    Firmware,
    ImageFormat,
    ImageKind,
    Platform,
    Tpm,
    VmCreate,
    VmMigrate,
    VmReinstall,
)
from svc_nodeagent.protocol.versions import needed
from tests.controller.machines.test_media import add_iso, done, iso
from tests.support.machine_service import make_node, open_service
from tests.support.machines import KEY, PASSWORD, MachineHarness, refusal, stage

T = TypeVar("T", VmCreate, VmMigrate, VmReinstall)


def asked(now: MachineHarness, kind: type[T]) -> T:
    return [each for each in now.service.gateway.asked if isinstance(each, kind)][-1]


def from_iso(now: MachineHarness, slug: str = "netinst", **changes: object) -> dict[str, object]:
    return now.order(image_id=None, ssh_keys=None, iso=slug, **changes)


async def test_its_disk_is_empty_and_it_boots_the_iso_after_it(database: Database) -> None:
    async with stage(database) as now:
        iso_id = await add_iso(now)
        answer = await now.customer("vm.create", **from_iso(now))
        assert (await now.service.ended(answer.task.id)).status == "succeeded"
        told = asked(now, VmCreate)
        assert (told.image.image_id, told.image.kind, told.image.format) == (
            EMPTY_DISK,
            ImageKind.DISK,
            ImageFormat.RAW,
        )
        assert told.image.digest == hashlib.sha256(bytes(SIZE_BYTES)).hexdigest()
        assert told.iso is not None
        assert (told.iso.image_id, told.iso.kind, told.start) == (iso_id, ImageKind.ISO, True)
        assert needed(told) == 5
        assert (told.machine.seed.account.password_hash, told.machine.seed.account.ssh_keys) == (None, ())
        shown = await now.customer("vm.show", id=answer.vm.id)
        assert (shown.status, shown.image_id, shown.image_name, shown.access_mode) == (
            "running",
            iso_id,
            "Netinst",
            None,
        )
        assert await iso(now, answer.vm.id) == ("Netinst", False)
        assert (answer.password, answer.password_chosen) == (None, False)
        assert await done(now, "vm.iso.eject", id=answer.vm.id) == "succeeded"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("access_mode", "root_key"),
        ("set_password", PASSWORD),
        ("password", True),
        ("ssh_keys", [KEY]),
        ("user_data", "#cloud-config\n"),
    ],
)
async def test_what_cloud_init_would_set_is_refused_with_the_fields_name(
    database: Database, field: str, value: object
) -> None:
    async with stage(database) as now:
        await add_iso(now)
        refused = await refusal(now.customer, "vm.create", **(from_iso(now) | {field: value}))
        assert (refused.code, field in refused.message, "installer" in refused.message) == (
            ErrorCode.INVALID,
            True,
            True,
        )
        vm_id = (await now.created()).vm.id
        again = await refusal(now.customer, "vm.reinstall", id=vm_id, confirm="web", iso="netinst", **{field: value})
        assert (again.code, field in again.message) == (ErrorCode.INVALID, True)
        assert await database.fetchval("SELECT count(*) FROM vms") == 1


async def test_one_thing_is_what_it_is_made_from_and_an_iso_has_to_be_one(database: Database) -> None:
    async with stage(database) as now:
        iso_id = await add_iso(now, min_disk_gib=1)
        await add_iso(now, "large", min_disk_gib=9)
        both = await refusal(now.customer, "vm.create", **now.order(iso_id=iso_id))
        assert (both.code, "iso_id" in both.message) == (ErrorCode.INVALID, True)
        twice = await refusal(now.customer, "vm.create", **from_iso(now, iso_id=iso_id))
        assert twice.code is ErrorCode.INVALID
        disk = await refusal(now.customer, "vm.create", **from_iso(now, "demo"))
        assert (disk.code, "ISO" in disk.message) == (ErrorCode.NOT_FOUND, True)
        as_image = await refusal(now.customer, "vm.create", **now.order(image_id=iso_id))
        assert as_image.code is ErrorCode.NOT_FOUND
        nobodys = await refusal(now.administrator, "vm.create", **now.order(image_id=EMPTY_DISK))
        assert nobodys.code is ErrorCode.NOT_FOUND
        small = await refusal(now.customer, "vm.create", **from_iso(now, "large"))
        assert (small.code, "disk_gib" in small.message) == (ErrorCode.INVALID, True)
        await now.administrator("image.update", id=iso_id, enabled=False)
        assert (await refusal(now.customer, "vm.create", **from_iso(now))).code is ErrorCode.NOT_FOUND
        assert await database.fetchval("SELECT count(*) FROM vms") == 0


async def test_what_is_beneath_the_system_is_what_the_iso_needs(database: Database) -> None:
    async with stage(database) as now:
        await add_iso(now, "windows", os_family="windows")
        await add_iso(now, "modern", firmware="uefi", digest="d" * 64)
        without = await refusal(now.staff, "vm.create", **from_iso(now, "modern"))
        assert without.code is ErrorCode.CAPACITY
        await database.execute("UPDATE nodes SET facts = $1", {"platform_features": list(PLATFORM_FEATURES)})
        modern = await now.customer("vm.create", **from_iso(now, "modern"))
        assert (modern.vm.firmware, modern.vm.tpm) == (Firmware.UEFI, Tpm.NONE)
        assert (await now.service.ended(modern.task.id)).status == "succeeded"
        windows = await now.customer("vm.create", **from_iso(now, "windows", name="desk"))
        assert (windows.vm.firmware, windows.vm.tpm, windows.user) == (Firmware.UEFI_SECURE, Tpm.V2_0, "Administrator")
        assert (await now.service.ended(windows.task.id)).status == "succeeded"
        assert asked(now, VmCreate).machine.platform == Platform(firmware=Firmware.UEFI_SECURE, tpm=Tpm.V2_0)


async def test_a_machine_is_installed_anew_from_an_iso_and_from_an_image_again(database: Database) -> None:
    async with stage(database) as now:
        iso_id = await add_iso(now)
        vm_id = (await now.created()).vm.id
        await done(now, "vm.iso.insert", id=vm_id, image="netinst", boot=True)
        assert await done(now, "vm.reinstall", id=vm_id, confirm="web", iso="netinst") == "succeeded"
        told = asked(now, VmReinstall)
        assert told.iso is not None
        assert (told.image.image_id, told.iso.image_id) == (EMPTY_DISK, iso_id)
        assert await iso(now, vm_id) == ("Netinst", False)
        assert (await now.customer("vm.show", id=vm_id)).access_mode is None

        # The same once more, without being named; then from the image
        assert await done(now, "vm.iso.eject", id=vm_id) == "succeeded"
        assert await done(now, "vm.reinstall", id=vm_id, confirm="web") == "succeeded"
        assert (asked(now, VmReinstall).image.image_id, await iso(now, vm_id)) == (EMPTY_DISK, ("Netinst", False))
        image = str(now.world.image_id)
        assert await done(now, "vm.reinstall", id=vm_id, confirm="web", image_id=image, ssh_keys=[KEY]) == "succeeded"
        assert (str(asked(now, VmReinstall).image.image_id), asked(now, VmReinstall).iso) == (image, None)
        assert (await now.customer("vm.show", id=vm_id)).access_mode == "user_sudo"
        assert await iso(now, vm_id) == ("Netinst", False)


async def test_it_moves_on_what_its_disk_stands_on(database: Database) -> None:
    async with stage(database) as now:
        await add_iso(now)
        target = await make_node(database, now.world.location_id, "beta")
        answer = await now.customer("vm.create", **from_iso(now, start=False))
        await now.service.ended(answer.task.id)
        move = await now.administrator("vm.migrate", id=answer.vm.id, node_id=target)
        assert (await now.service.ended(move.id)).status == "succeeded"
        assert asked(now, VmMigrate).image.image_id == EMPTY_DISK


async def test_a_controller_that_dies_over_its_creation_goes_on_with_the_same_one(database: Database) -> None:
    async with stage(database) as now:
        iso_id = await add_iso(now)
        gateway = now.service.gateway
        let_go = gateway.hold("vm.create")
        answer = await now.customer("vm.create", **from_iso(now))
        first = await now.service.until_asked("vm.create")
    let_go.set()
    async with open_service(database, gateway) as service:
        assert (await service.ended(answer.task.id)).status == "succeeded"
        assert gateway.asked_ids.count(first) > 1
        assert {each.iso.image_id for each in gateway.asked if isinstance(each, VmCreate) and each.iso} == {iso_id}


async def test_the_empty_image_is_nobodys_to_see_or_to_change(database: Database) -> None:
    async with stage(database) as now:
        assert EMPTY_DISK not in {each.id for each in await now.administrator("image.list")}
        changed = await refusal(now.administrator, "image.update", id=EMPTY_DISK, enabled=True)
        assert changed.code is ErrorCode.NOT_FOUND
        assert (await refusal(now.administrator, "image.upload", id=EMPTY_DISK)).code is ErrorCode.NOT_FOUND


async def test_its_file_is_there_from_the_first_start_on_and_is_what_the_record_says(
    database: Database, tmp_path: Path
) -> None:
    files = ImageFiles(tmp_path)
    for _ in range(2):
        await keep_empty_disk(files)
    path = files.find(str(EMPTY_DISK))
    assert path is not None
    row = await database.fetchone("SELECT digest, size_bytes FROM images WHERE id = $1", EMPTY_DISK)
    assert (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size) == (row["digest"], row["size_bytes"])
