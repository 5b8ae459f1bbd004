"""A machine is resized and reinstalled: what is refused, what its host is told, what the record says when it fails."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from svc.registry.principal import ANONYMOUS
from svc_actors.controller.gateway.gateway import NodeUnavailable, OperationFailed
from svc_actors.controller.tasks.runner import get_task
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    DomainResult,
    DomainState,
    FailureCode,
    MachineSize,
    OperationResult,
    VmCreate,
    VmReinstall,
    VmResize,
)
from tests.support.machine_api import Api
from tests.support.machine_service import FakeGateway
from tests.support.machines import KEY, PASSWORD, MachineHarness, refusal, stage


async def fail(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.TIMED_OUT, "The guest did not shut down within 90 s; it was left running.", None)


async def larger_plan(database: Database) -> UUID:
    plan_id: UUID = await database.fetchval(
        "INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ('M', 'm', 2, 512, 4) RETURNING id"
    )
    return plan_id


async def other_image(database: Database, **changes: object) -> UUID:
    values = {"slug": "other", "login_user": "alice", "min_disk_gib": 1} | changes
    image_id: UUID = await database.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, digest, custom,
                               min_disk_gib)
           VALUES ($1, 'Other', 'linux', 'other', '2', $2, 'qcow2', 'file', $3, true, $4) RETURNING id""",
        values["slug"],
        values["login_user"],
        "b" * 64,
        values["min_disk_gib"],
    )
    return image_id


def last(now: MachineHarness, kind: type[Any]) -> Any:
    return [each for each in now.service.gateway.asked if isinstance(each, kind)][-1]


async def sizes(now: MachineHarness, vm_id: UUID) -> tuple[int, int, int]:
    vm = await now.customer("vm.show", id=vm_id)
    return vm.vcpus, vm.memory_mib, vm.disk_gib


@pytest.mark.parametrize(
    ("name", "values"), [("vm.resize", {"plan": "m"}), ("vm.reinstall", {"confirm": "web", "password": True})]
)
async def test_only_whose_machine_it_is_changes_it(database: Database, name: str, values: dict[str, Any]) -> None:
    async with stage(database) as now:
        await larger_plan(database)
        vm_id = (await now.created()).vm.id

        stranger = await refusal(now.stranger, name, id=vm_id, **values)
        nobody = await refusal(Api(now.service, ANONYMOUS), name, id=vm_id, **values)

        assert (stranger.code, nobody.code) == (ErrorCode.NOT_FOUND, ErrorCode.UNAUTHENTICATED)
        assert {each.op for each in now.service.gateway.asked} <= {"vm.create", "image.pull"}


async def test_a_customer_moves_to_a_larger_plan_and_the_guest_is_restarted_for_it(database: Database) -> None:
    async with stage(database) as now:
        await larger_plan(database)
        vm_id = (await now.created()).vm.id

        resized = now.service.gateway.hold("vm.resize")
        task = await now.customer("vm.resize", id=vm_id, plan="m", reboot=True)
        under_way = await now.customer("vm.show", id=vm_id)
        resized.set()
        ended = await now.service.ended(task.id)

        told = last(now, VmResize)
        promised = await database.fetchone("SELECT promised_memory_mib, promised_disk_gib FROM node_capacity")
        assert (task.op, ended.status, under_way.status) == ("vm.resize", "succeeded", "rebooting")
        assert (told.vcpus, told.memory_mib, told.disk_gib, told.restart) == (2, 512, 4, True)
        assert told.before == MachineSize(vcpus=1, memory_mib=256, disk_gib=1)
        vm = await now.customer("vm.show", id=vm_id)
        assert (vm.status, vm.plan_name, vm.vcpus, vm.memory_mib, vm.disk_gib) == ("running", "M", 2, 512, 4)
        assert tuple(promised) == (512, 4)


async def test_processors_and_memory_of_a_machine_that_runs_need_a_restart_that_was_allowed(database: Database) -> None:
    async with stage(database) as now:
        await larger_plan(database)
        vm_id = (await now.created()).vm.id

        refused = await refusal(now.customer, "vm.resize", id=vm_id, plan="m")

        assert (refused.code, refused.hint) == (
            ErrorCode.CONFLICT,
            "Allow it with reboot, or shut the machine down first.",
        )
        assert await sizes(now, vm_id) == (1, 256, 1)


async def test_a_disk_grows_while_the_guest_runs_and_never_shrinks(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        resized = now.service.gateway.hold("vm.resize")
        grown = await now.staff("vm.resize", id=vm_id, disk_gib=3)
        during = await now.staff("vm.show", id=vm_id)
        resized.set()
        await now.service.ended(grown.id)
        refused = await refusal(now.staff, "vm.resize", id=vm_id, disk_gib=2)

        assert (last(now, VmResize).restart, during.status) == (False, "running")
        assert (await now.staff("vm.show", id=vm_id)).plan_name == "S", "its plan goes on to say what it may transfer"
        assert await sizes(now, vm_id) == (1, 256, 3)
        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"disk_gib": 3})


async def test_a_machine_that_is_off_is_resized_and_stays_off(database: Database) -> None:
    async with stage(database) as now:
        await larger_plan(database)
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)

        task = await now.customer("vm.resize", id=vm_id, plan="m")
        await now.service.ended(task.id)

        assert last(now, VmResize).restart is False
        assert (await now.customer("vm.show", id=vm_id)).status == "stopped"
        assert await sizes(now, vm_id) == (2, 512, 4)


@pytest.mark.parametrize("running", [True, False])
async def test_a_resize_that_fails_leaves_the_record_as_it_was(database: Database, running: bool) -> None:
    async with stage(database) as now:
        await larger_plan(database)
        vm_id = (await now.created()).vm.id
        if not running:
            await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)
        now.service.gateway.answers["vm.resize"] = fail

        task = await now.customer("vm.resize", id=vm_id, plan="m", reboot=True)
        ended = await now.service.ended(task.id)

        vm = await now.customer("vm.show", id=vm_id)
        assert ended.status == "failed"
        assert (vm.plan_name, vm.status) == ("S", "running" if running else "stopped")
        assert vm.desired_power == vm.status, "a machine that was off is not started for a resize that failed"
        assert await sizes(now, vm_id) == (1, 256, 1)
        assert await database.fetchval("SELECT promised_disk_gib FROM node_capacity") == 1


async def test_a_size_that_the_node_has_no_room_for_is_refused(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        memory = await refusal(now.staff, "vm.resize", id=vm_id, memory_mib=1024 * 1024, reboot=True)
        disk = await refusal(now.staff, "vm.resize", id=vm_id, disk_gib=5000)

        assert (memory.code, disk.code) == (ErrorCode.CAPACITY, ErrorCode.CAPACITY)
        assert await sizes(now, vm_id) == (1, 256, 1)


async def test_a_machine_does_not_become_smaller_than_its_image_needs(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        before = await sizes(now, vm_id)
        await database.execute("UPDATE images SET min_memory_mib = $1", before[1])

        refused = await refusal(now.staff, "vm.resize", id=vm_id, memory_mib=before[1] // 2, reboot=True)

        assert (refused.code, await sizes(now, vm_id)) == (ErrorCode.INVALID, before)


async def test_a_plan_with_fewer_addresses_than_the_machine_has_is_refused(database: Database) -> None:
    async with stage(database) as now:
        await larger_plan(database)
        await database.execute("UPDATE plans SET ipv4_count = 0 WHERE slug = 'm'")
        vm_id = (await now.created()).vm.id
        before = await sizes(now, vm_id)

        refused = await refusal(now.customer, "vm.resize", id=vm_id, plan="m", reboot=True)

        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"allowed": 0, "held": 1})
        assert await sizes(now, vm_id) == before


async def test_a_customer_names_a_plan_and_no_sizes(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        refused = await refusal(now.customer, "vm.resize", id=vm_id, disk_gib=3)
        nothing = await refusal(now.staff, "vm.resize", id=vm_id, vcpus=1)

        assert (refused.code, nothing.code) == (ErrorCode.INVALID, ErrorCode.INVALID)


async def test_reinstalled_a_machine_is_another_system_with_the_same_name_and_addresses(database: Database) -> None:
    async with stage(database) as now:
        before = (await now.created(access_mode="user_sudo")).vm
        image_id = await other_image(database)

        answer = await now.customer(
            "vm.reinstall", id=before.id, confirm="web", image="other", set_password=PASSWORD, ssh_keys=[KEY]
        )
        ended = await now.service.ended(answer.task.id)

        told, made = last(now, VmReinstall), last(now, VmCreate)
        after = await now.customer("vm.show", id=before.id)
        assert (answer.task.op, ended.status) == ("vm.reinstall", "succeeded")
        assert (answer.user, answer.password_chosen, answer.password) == ("alice", True, None)
        assert (after.image_id, after.status, after.user) == (image_id, "running", "alice")
        assert (after.name, after.addresses, after.plan_id) == (before.name, before.addresses, before.plan_id)
        assert told.image.image_id == image_id
        assert told.network.nics == made.machine.network.nics
        assert told.seed.instance_id not in ("", made.machine.seed.instance_id), "a first boot, to the guest"
        assert (told.seed.account.name, told.seed.hostname) == ("alice", "web")
        assert told.seed.account.password_hash.startswith("$6$")
        assert PASSWORD not in str(told)
        assert (await now.service.vm(before.id))["sealed_seed"] is None


async def test_without_anything_said_it_is_the_same_image_and_the_same_keys(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        answer = await now.customer("vm.reinstall", id=vm_id, confirm="web")
        await now.service.ended(answer.task.id)

        told = last(now, VmReinstall)
        assert told.image.image_id == now.world.image_id
        assert told.seed.account.ssh_keys == last(now, VmCreate).machine.seed.account.ssh_keys != ()
        assert answer.password is None


@pytest.mark.parametrize("running", [True, False])
async def test_a_reinstallation_that_fails_leaves_the_machine_as_it_was(database: Database, running: bool) -> None:
    async with stage(database) as now:
        before = (await now.created()).vm
        await other_image(database)
        if not running:
            await now.service.ended((await now.customer("vm.shutdown", id=before.id)).id)
        now.service.gateway.answers["vm.reinstall"] = fail

        answer = await now.customer("vm.reinstall", id=before.id, confirm="web", image="other", password=True)
        ended = await now.service.ended(answer.task.id)

        after = await now.customer("vm.show", id=before.id)
        assert ended.status == "failed"
        assert (after.image_id, after.user) == (before.image_id, before.user)
        assert after.status == after.desired_power == ("running" if running else "stopped")
        assert (await now.service.vm(before.id))["sealed_seed"] is None


async def test_a_reinstallation_without_its_hosts_word_waits_for_it(database: Database) -> None:
    """The node goes away with the old system gone, perhaps; the task ends with what it says when it is back."""

    async def goes_away(gateway: FakeGateway, node_id: UUID, *_: Any) -> OperationResult:
        del gateway.answers["vm.reinstall"]
        gateway.leave(node_id)
        raise NodeUnavailable("the node did not answer in time")

    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        image_id = await other_image(database)
        now.service.gateway.answers["vm.reinstall"] = goes_away

        answer = await now.customer("vm.reinstall", id=vm_id, confirm="web", image="other", password=True)
        await now.service.until_asked("vm.reinstall")
        waiting = await get_task(database, answer.task.id)
        now.service.gateway.come_back(now.world.node_id)
        ended = await now.service.ended(answer.task.id)

        first, second = [each for each in now.service.gateway.asked if isinstance(each, VmReinstall)]
        assert waiting is not None
        assert (waiting.status.open, waiting.deadline_at) == (True, None)
        assert ended.status == "succeeded"
        assert first == second, "the same reinstallation, to the host"
        assert (await now.customer("vm.show", id=vm_id)).image_id == image_id


@pytest.mark.parametrize("code", [FailureCode.CANCELLED, FailureCode.INTERRUPTED])
async def test_an_attempt_that_ended_with_its_agent_or_its_time_is_no_end_of_a_reinstallation(
    database: Database, code: FailureCode
) -> None:
    attempts = 0

    async def lost(gateway: FakeGateway, *_: Any) -> OperationResult:
        nonlocal attempts
        attempts += 1
        if attempts == (1 if code is FailureCode.CANCELLED else 5):
            del gateway.answers["vm.reinstall"]
        raise OperationFailed(code, "the agent was restarted", None)

    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        image_id = await other_image(database)
        now.service.gateway.answers["vm.reinstall"] = lost

        answer = await now.customer("vm.reinstall", id=vm_id, confirm="web", image="other", password=True)
        ended = await now.service.ended(answer.task.id)

        assert ended.status == "succeeded"
        assert (await now.customer("vm.show", id=vm_id)).image_id == image_id


async def test_reinstalled_and_not_started_a_machine_is_to_run(database: Database) -> None:
    async def made_and_off(_: Any, __: Any, ___: Any, operation: Any) -> OperationResult:
        return DomainResult(vm_id=operation.vm_id, state=DomainState.STOPPED)

    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        now.service.gateway.answers["vm.reinstall"] = made_and_off

        answer = await now.customer("vm.reinstall", id=vm_id, confirm="web")
        await now.service.ended(answer.task.id)

        after = await now.customer("vm.show", id=vm_id)
        assert (after.status, after.desired_power) == ("stopped", "running")


async def test_it_is_confirmed_by_name_and_fits_its_disk_or_nothing_happens(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await other_image(database, min_disk_gib=9)

        unconfirmed = await refusal(now.customer, "vm.reinstall", id=vm_id, confirm="other")
        too_large = await refusal(now.customer, "vm.reinstall", id=vm_id, confirm="web", image="other")

        assert (unconfirmed.code, too_large.code) == (ErrorCode.INVALID, ErrorCode.INVALID)
        assert "9 GiB" in too_large.message
        assert await now.service.status(vm_id) == "running"


async def test_the_same_key_reinstalls_once_also_after_its_answer_was_lost(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        order = {"id": vm_id, "confirm": "web", "password": True, "idempotency_key": "again"}

        first = await now.customer("vm.reinstall", **order)
        second = await now.customer("vm.reinstall", **order)
        await now.service.ended(first.task.id)
        await database.execute("DELETE FROM idempotency_keys")
        third = await now.customer("vm.reinstall", **order)
        await database.execute("DELETE FROM idempotency_keys")
        await database.execute("UPDATE tasks SET created_at = created_at - interval '25 hours'")
        next_day = await now.customer("vm.reinstall", **order)
        await now.service.ended(next_day.task.id)

        assert [each.replayed for each in (first, second, third, next_day)] == [False, True, True, False]
        assert second.password == first.password is not None
        assert third.task.id == first.task.id
        assert next_day.task.id != first.task.id
        assert sum(isinstance(each, VmReinstall) for each in now.service.gateway.asked) == 2


async def test_a_machine_that_is_busy_takes_neither(database: Database) -> None:
    async def never(gateway: Any, _: Any, operation_id: Any, __: Any) -> OperationResult:
        await gateway.until_cancelled(operation_id)
        raise AssertionError

    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        now.service.gateway.answers["vm.shutdown"] = never
        await now.customer("vm.shutdown", id=vm_id)

        resize = await refusal(now.staff, "vm.resize", id=vm_id, disk_gib=3)
        reinstall = await refusal(now.customer, "vm.reinstall", id=vm_id, confirm="web")

        assert (resize.code, reinstall.code) == (ErrorCode.NOT_READY, ErrorCode.NOT_READY)
