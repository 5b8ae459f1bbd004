"""Labels by which machines are found, and the protection that keeps one from being deleted or reinstalled."""

from __future__ import annotations

from dataclasses import fields
from uuid import uuid4

import pytest
from pydantic import BaseModel, ValidationError

from svc.controller.machines.creation import VMCreateRequest
from svc.controller.machines.models import VM
from svc.controller.machines.orders import VMUpdateRequest
from svc_actors.controller.machines.records import MachineSettings
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from tests.support.machines import refusal, stage


@pytest.mark.parametrize("model", [VM, VMCreateRequest, VMUpdateRequest])
def test_every_setting_is_shown_and_can_be_set_and_changed(model: type[BaseModel]) -> None:
    assert {setting.name for setting in fields(MachineSettings)} <= model.model_fields.keys()


async def test_machines_are_found_by_all_the_labels_that_are_asked_for(database: Database) -> None:
    async with stage(database) as now:
        await now.created(name="shop", labels={"env": "production", "tier": "web"})
        await now.created(name="queue", labels={"env": "production"})
        await now.created(name="plain")

        async def found(label: str) -> set[str]:
            return {vm.name for vm in (await now.customer("vm.list", label=label)).items}

        assert await found("env=production") == {"shop", "queue"}
        assert await found("env=production,tier") == {"shop"}
        assert await found("env=test") == set()
        assert await found("env=production,env=test") == set()
        assert (await now.customer("vm.list", label="env", page_size=1)).total == 2
        assert {vm.name for vm in (await now.stranger("vm.list", label="env")).items} == set()


async def test_labels_are_replaced_as_a_whole_without_a_task_and_audited(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(labels={"env": "test", "old": ""})).vm.id

        changed = await now.customer("vm.update", id=vm_id, labels={"env": "production"})

        assert (changed.labels, changed.task_id) == ({"env": "production"}, None)
        [entry] = [
            each for each in (await now.customer("vm.activity", id=vm_id)).items if each.operation == "vm.update"
        ]
        assert entry.details == {"labels": {"env": "production"}}
        cleared = await now.customer("vm.update", id=vm_id, labels={})
        assert cleared.labels == {}


async def test_a_patch_that_comes_again_answers_as_the_first(database: Database) -> None:
    """The first answer may have been lost, and a client that keeps a desired state sends it each time it looks."""
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        for _ in range(2):
            again = await now.customer("vm.update", id=vm_id, labels={"a": "b"}, protected=True, restart_policy="never")
            assert (again.labels, again.protected, again.restart_policy) == ({"a": "b"}, True, "never")
            assert again.task_id is None
        entries = (await now.customer("vm.activity", id=vm_id)).items
        assert len([each for each in entries if each.operation == "vm.update"]) == 1


async def test_of_a_patch_that_is_refused_in_one_part_nothing_is_done(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(labels={"a": "b"})).vm.id
        refused = await refusal(
            now.administrator, "vm.update", id=vm_id, vcpus=7, labels={"c": "d"}, restart_policy="never"
        )
        assert refused.code is ErrorCode.CONFLICT
        shown = await now.customer("vm.show", id=vm_id)
        assert (shown.labels, shown.restart_policy, shown.vcpus) == ({"a": "b"}, "on_failure", 1)


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"a b": "x"}, {"a": "x,y"}, {"a": "x" * 64}, {f"l{n}": "" for n in range(33)}]
)
def test_what_is_no_label_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        VMUpdateRequest(id=uuid4(), labels=labels)


@pytest.mark.parametrize("who", ["customer", "administrator"])
async def test_a_protected_machine_is_neither_deleted_nor_reinstalled_until_that_is_taken_off(
    database: Database, who: str
) -> None:
    async with stage(database) as now:
        api = now.customer if who == "customer" else now.administrator
        vm_id = (await now.created(protected=True)).vm.id

        deleted = await refusal(api, "vm.delete", id=vm_id, confirm="web")
        reinstalled = await refusal(api, "vm.reinstall", id=vm_id, confirm="web")
        stays = await now.service.status(vm_id)
        await api("vm.update", id=vm_id, protected=False)
        task = await api("vm.delete", id=vm_id, confirm="web")

        assert (deleted.code, reinstalled.code, stays) == (ErrorCode.CONFLICT, ErrorCode.CONFLICT, "running")
        assert "protected and cannot be deleted" in deleted.message
        assert "protected and cannot be reinstalled" in reinstalled.message
        assert (await now.service.ended(task.id)).status == "succeeded"
