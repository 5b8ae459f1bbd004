"""Firmware and TPM of machines: what images say, what a machine keeps, and which nodes can have it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from svc.controller.images import Image
from svc_actors.controller.images.catalogue import CATALOGUE, ensure_catalogue
from svc_actors.controller.machines.adoption import Adoption, adopt_unknown
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    PLAIN,
    PLATFORM_FEATURES,
    DomainState,
    Firmware,
    Platform,
    Tpm,
    VmCreate,
    VmCreateFromCopy,
    VmMigrate,
    VmReinstall,
    VmRestore,
    Wire,
    encode,
    needed,
)
from tests.controller.backups.test_backups import copy_made, restored
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import make_node
from tests.support.machines import KEY, MachineHarness, refusal, stage

SECURE = Platform(firmware=Firmware.UEFI_SECURE, tpm=Tpm.V2_0)
WITH_ALL: dict[str, Any] = {"platform_features": list(PLATFORM_FEATURES), "platform_lacks": {}}
WITHOUT_TPM: dict[str, Any] = {
    "platform_features": ["uefi", "uefi_secure"],
    "platform_lacks": {"tpm": "the node lacks the package for a TPM 2.0: install swtpm-tools there"},
}
NO_TPM = "tpm: the node lacks the package for a TPM 2.0: install swtpm-tools there"
TOO_OLD = "its agent is of an earlier release, which knows neither UEFI nor TPM: upgrade it"


async def know(database: Database, node_id: UUID, facts: dict[str, Any]) -> None:
    await database.execute("UPDATE nodes SET facts = $2 WHERE id = $1", node_id, facts)


def custom(**changes: object) -> dict[str, Any]:
    image = {"slug": "own", "name": "Own", "distribution": "own", "release": "1", "login_user": "own"}
    return image | {"url": "https://example.com/own.qcow2", "digest": "ab" * 32} | changes


async def secure_image(now: MachineHarness, **changes: object) -> UUID:
    values = custom(firmware="uefi_secure", tpm="2.0") | changes
    image: Image = await now.administrator("image.create", **values)
    return image.id


async def secure_machine(now: MachineHarness, name: str = "web") -> UUID:
    await know(now.service.database, now.world.node_id, WITH_ALL)
    vm_id: UUID = (await now.created(image_id=await secure_image(now, slug=f"of-{name}"), name=name)).vm.id
    return vm_id


async def shown(now: MachineHarness, vm_id: UUID) -> tuple[str, str]:
    vm = await now.customer("vm.show", id=vm_id)
    return vm.firmware, vm.tpm


def asked(now: MachineHarness, kind: type[Wire]) -> Any:
    """The last operation of this kind."""
    return [each for each in now.service.gateway.asked if isinstance(each, kind)][-1]


async def test_a_machine_is_made_with_what_its_image_says_and_everybody_is_shown_it(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        plain = (await now.created(name="plain")).vm

        assert await shown(now, vm_id) == ("uefi_secure", "2.0")
        assert (plain.firmware, plain.tpm) == ("bios", "none")
        creations = [each.machine for each in now.service.gateway.asked if isinstance(each, VmCreate)]
        made = {each.name: each.platform for each in creations}
        assert made == {"web": SECURE, "plain": PLAIN}
        offered = {each.slug: (each.firmware, each.tpm) for each in await now.customer("image.list")}
        assert offered["of-web"] == ("uefi_secure", "2.0")


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ({}, ("bios", "none")),
        ({"firmware": "uefi"}, ("uefi", "none")),
        ({"firmware": "uefi", "tpm": "2.0"}, ("uefi", "2.0")),
        ({"os_family": "windows"}, ("uefi_secure", "2.0")),
        ({"os_family": "windows", "tpm": "none"}, ("uefi_secure", "none")),
        ({"os_family": "windows", "firmware": "uefi"}, ("uefi", "2.0")),
        ({"os_family": "windows", "firmware": "bios"}, ("bios", "none")),
    ],
)
async def test_an_image_that_says_nothing_has_what_its_system_wants(
    database: Database, said: dict[str, str], made: tuple[str, str]
) -> None:
    async with stage(database) as now:
        image = await now.administrator("image.create", **custom(**said))

        assert (image.firmware, image.tpm) == made


@pytest.mark.parametrize("said", [{"tpm": "2.0"}, {"os_family": "windows", "firmware": "bios", "tpm": "2.0"}])
async def test_a_tpm_goes_with_a_uefi_alone(database: Database, said: dict[str, str]) -> None:
    async with stage(database) as now:
        refused = await refusal(now.administrator, "image.create", **custom(**said))
        image_id = await secure_image(now)
        changed = await refusal(now.administrator, "image.update", id=image_id, firmware="bios")

        for each in (refused, changed):
            assert each.code is ErrorCode.INVALID
            assert "uefi or uefi_secure" in str(each.details)


@pytest.mark.parametrize("said", [{"firmware": "efi"}, {"tpm": "1.2"}, {"firmware": None, "secure_boot": True}])
async def test_what_is_neither_firmware_nor_tpm_is_refused(database: Database, said: dict[str, Any]) -> None:
    async with stage(database) as now:
        with pytest.raises(ValidationError):
            await now.administrator("image.create", **custom(**said))


async def test_an_image_that_is_changed_changes_no_machine(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        image_id = (await now.customer("vm.show", id=vm_id)).image_id

        image = await now.administrator("image.update", id=image_id, firmware="bios", tpm="none")

        assert (image.firmware, image.tpm, image.enabled) == ("bios", "none", True)
        assert await shown(now, vm_id) == ("uefi_secure", "2.0")
        with pytest.raises(ValidationError):
            await now.administrator("image.update", id=image_id)


async def test_customers_and_staff_do_not_say_what_an_image_needs(database: Database) -> None:
    async with stage(database) as now:
        image_id = await secure_image(now)
        for api in (now.customer, now.staff):
            for refused in (
                await refusal(api, "image.create", **custom(slug="other", firmware="uefi")),
                await refusal(api, "image.update", id=image_id, firmware="uefi"),
            ):
                assert refused.code is ErrorCode.FORBIDDEN


async def test_what_an_image_of_the_catalogue_needs_its_publisher_says(database: Database) -> None:
    async with stage(database) as now:
        published = CATALOGUE[0]
        await ensure_catalogue(database, (published,))
        image_id = await database.fetchval("SELECT id FROM images WHERE slug = $1", published.slug)

        refused = await refusal(now.administrator, "image.update", id=image_id, firmware="uefi")
        assert refused.code is ErrorCode.CONFLICT

        await ensure_catalogue(database, (replace(published, platform=Platform(firmware=Firmware.UEFI)),))
        images = {each.slug: each.firmware for each in await now.customer("image.list")}
        assert images[published.slug] == "uefi"


async def test_a_machine_is_placed_where_it_can_be_had(database: Database) -> None:
    async with stage(database) as now:
        await know(database, now.world.node_id, WITHOUT_TPM)
        image_id = await secure_image(now)
        refused = await refusal(now.administrator, "vm.create", **now.order(image_id=image_id))
        told = await refusal(now.customer, "vm.create", **now.order(image_id=image_id))
        named = await refusal(now.administrator, "vm.create", **now.order(image_id=image_id, node_id=now.world.node_id))

        assert refused.code is ErrorCode.CAPACITY
        assert refused.details == {"nodes": [{"node_id": str(now.world.node_id), "node": "alpha", "reasons": [NO_TPM]}]}
        assert str(told) == "No node has what machines of this image need: a TPM 2.0."
        assert told.details is None
        assert str(named) == f"Node alpha does not take this machine: {NO_TPM}."
        assert await database.fetchval("SELECT count(*) FROM vms") == 0

        # A node that has it takes the machine, though the other is emptier
        beta = await make_node(database, now.world.location_id, "beta", memory_mib=1024)
        await know(database, beta, WITH_ALL)
        made = await now.created(now.administrator, image_id=image_id)
        assert made.vm.node_id == beta


async def test_a_node_of_an_earlier_release_takes_machines_with_a_bios_alone(database: Database) -> None:
    async with stage(database) as now:
        image_id = await secure_image(now)
        refused = await refusal(now.administrator, "vm.create", **now.order(image_id=image_id))

        reasons = [f"firmware: {TOO_OLD}", f"tpm: {TOO_OLD}"]
        alpha = {"node_id": str(now.world.node_id), "node": "alpha", "reasons": reasons}
        assert refused.details == {"nodes": [alpha]}
        assert (await now.created()).vm.firmware == "bios"


async def test_a_machine_moves_where_it_can_be_had_as_it_is(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        beta = await make_node(database, now.world.location_id, "beta")
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)
        await know(database, beta, WITHOUT_TPM)
        [target] = await now.administrator("vm.migration_targets", id=vm_id)
        assert (target.mode, target.reasons) == (None, [NO_TPM])
        refused = await refusal(now.administrator, "vm.migrate", id=vm_id, node_id=beta)
        assert NO_TPM in str(refused)

        await know(database, beta, WITH_ALL)
        [target] = await now.administrator("vm.migration_targets", id=vm_id)
        assert (target.mode, target.reasons) == ("offline", [])
        task = await now.service.ended((await now.administrator("vm.migrate", id=vm_id, node_id=beta)).id)
        assert task.status == "succeeded"
        assert asked(now, VmMigrate).machine.platform == SECURE
        assert await shown(now, vm_id) == ("uefi_secure", "2.0")


async def test_a_reinstallation_gives_what_the_new_image_says_once_it_is_there(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        image_id = await secure_image(now)
        order = {"id": vm_id, "confirm": "web", "image_id": image_id, "ssh_keys": [KEY]}

        await know(database, now.world.node_id, WITHOUT_TPM)
        refused = await refusal(now.customer, "vm.reinstall", **order)
        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"reasons": [NO_TPM]})

        await know(database, now.world.node_id, WITH_ALL)
        let_go = now.service.gateway.hold("vm.reinstall")
        begun = await now.customer("vm.reinstall", **order)
        # What the image says is settled with the order
        await now.administrator("image.update", id=image_id, firmware="uefi", tpm="none")
        assert await shown(now, vm_id) == ("bios", "none")
        let_go.set()
        await now.service.ended(begun.task.id)
        assert asked(now, VmReinstall).platform == SECURE
        assert await shown(now, vm_id) == ("uefi_secure", "2.0")

        # And back
        back = order | {"image_id": now.world.image_id}
        await now.service.ended((await now.customer("vm.reinstall", **back)).task.id)
        assert asked(now, VmReinstall).platform == PLAIN
        assert await shown(now, vm_id) == ("bios", "none")


async def backed_up(now: MachineHarness, vm_id: UUID) -> UUID:
    now.service.gateway.answers |= {"vm.backup": copy_made, "vm.restore": restored}
    await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
    copies = await now.customer("vm.backups", id=vm_id)
    copy_id: UUID = copies[0].id
    return copy_id


async def test_a_restored_machine_is_what_it_was_when_it_was_copied(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        copy_id = await backed_up(now, vm_id)
        new = {"id": vm_id, "confirm": "web", "image_id": now.world.image_id, "ssh_keys": [KEY]}
        await now.service.ended((await now.customer("vm.reinstall", **new)).task.id)
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)
        assert await shown(now, vm_id) == ("bios", "none")

        await know(database, now.world.node_id, WITHOUT_TPM)
        order = {"id": vm_id, "backup_id": copy_id, "confirm": "web"}
        refused = await refusal(now.customer, "vm.restore", **order)
        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"reasons": [NO_TPM]})

        await know(database, now.world.node_id, WITH_ALL)
        await now.service.ended((await now.customer("vm.restore", **order)).id)
        assert asked(now, VmRestore).platform == SECURE
        assert await shown(now, vm_id) == ("uefi_secure", "2.0")

        # Of a machine that is what it was then nothing is said, so that an agent of an earlier release restores it too
        await now.service.ended((await now.customer("vm.restore", **order)).id)
        assert asked(now, VmRestore).platform is None


async def test_a_machine_made_from_a_backup_is_what_the_other_was_then(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        copy_id = await backed_up(now, vm_id)
        image_id = (await now.customer("vm.show", id=vm_id)).image_id
        await now.administrator("image.update", id=image_id, firmware="bios", tpm="none")

        made = await now.customer("vm.create", name="again", backup_id=copy_id)
        await now.service.ended(made.task.id)
        assert asked(now, VmCreateFromCopy).machine.platform == SECURE
        assert await shown(now, made.vm.id) == ("uefi_secure", "2.0")

        await know(database, now.world.node_id, WITHOUT_TPM)
        refused = await refusal(now.customer, "vm.create", name="third", backup_id=copy_id)
        assert refused.code is ErrorCode.CAPACITY


async def test_an_adopted_machine_is_what_its_host_has(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        kept = now.service.gateway.kept[vm_id].model_copy(update={"vm_id": uuid4(), "name": "found"})
        adoption = Adoption(now.world.project_id, image_id=now.world.image_id)
        bare = kept.model_copy(update={"network": kept.network.model_copy(update={"nics": ()})})

        async with database.transaction() as tx:
            await adopt_unknown(tx, ADMINISTRATOR, now.world.node_id, bare, DomainState.STOPPED, adoption)

        assert await shown(now, kept.vm_id) == ("uefi_secure", "2.0")


async def test_a_task_ordered_before_there_was_a_choice_reinstalls_with_a_bios(database: Database) -> None:
    """The controller was upgraded between the order and its end."""
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        let_go = now.service.gateway.hold("vm.reinstall")
        order = {"id": vm_id, "confirm": "web", "ssh_keys": [KEY]}
        begun = await now.customer("vm.reinstall", **order)
        await database.execute("UPDATE tasks SET parameters = parameters - 'platform' WHERE id = $1", begun.task.id)
        let_go.set()
        await now.service.ended(begun.task.id)

        assert asked(now, VmReinstall).platform == PLAIN
        assert await shown(now, vm_id) == ("bios", "none")


async def test_only_what_an_earlier_agent_can_do_is_asked_of_one(database: Database) -> None:
    """A machine with a UEFI needs protocol 5, one with a BIOS none of it."""
    async with stage(database) as now:
        vm_id = await secure_machine(now)
        create = asked(now, VmCreate)
        plain = create.model_copy(update={"machine": create.machine.model_copy(update={"platform": PLAIN})})
        assert (create.machine.vm_id, needed(create)) == (vm_id, 5)
        assert needed(plain) < 5
        assert "platform" not in encode(plain, 4)
