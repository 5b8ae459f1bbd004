"""A billing system moves a service to another plan, resizes and reinstalls it: once, by the machine's own orders."""

from __future__ import annotations

from typing import Any

import pytest

from svc.registry.principal import Role
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import FailureCode, OperationResult, VmReinstall, VmResize
from tests.controller.provisioning.conftest import Billing
from tests.support.machines import KEY, PASSWORD, refusal

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("service.change_plan", {"plan_slug": "m", "reboot": True}),
    ("service.resize", {"disk_gib": 3}),
    ("service.reinstall", {}),
]


@pytest.fixture
async def plan(billing: Billing) -> str:
    await billing.database.execute(
        "INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ('M', 'm', 2, 512, 4)"
    )
    return "m"


def told(billing: Billing, kind: type[Any]) -> list[Any]:
    return [each for each in billing.now.service.gateway.asked if isinstance(each, kind)]


@pytest.mark.parametrize(("name", "values"), CALLS)
async def test_only_a_billing_systems_token_changes_a_service(
    billing: Billing, plan: str, name: str, values: dict[str, Any]
) -> None:
    service = (await billing.ordered()).service
    writer = await billing.token(Role.STAFF, "write")
    customer = await billing.token(Role.CUSTOMER, "provision")

    for api in (writer, customer):
        assert (await refusal(api, name, id=service.id, **values)).code is ErrorCode.FORBIDDEN
    assert told(billing, VmResize) == told(billing, VmReinstall) == []


async def test_a_service_moves_to_another_plan_and_keeps_its_machine(billing: Billing, plan: str) -> None:
    answer = await billing.ordered()

    changed = await billing.biller("service.change_plan", id=answer.service.id, plan_slug=plan, reboot=True)
    await billing.now.service.ended(changed.task.id)
    service = await billing.biller("service.show", id=answer.service.id)
    usage = await billing.biller("service.usage", id=answer.service.id)
    events = await billing.biller("service.events", id=answer.service.id)

    assert (changed.task.op, changed.service.machine.task_id) == ("vm.resize", changed.task.id)
    assert (service.state, service.plan, service.machine.id) == ("active", "m", answer.vm.id)
    assert (usage.vcpus, usage.memory_mib, usage.disk_gib) == (2, 512, 4)
    assert events[0].kind == "change_plan"
    assert told(billing, VmResize)[0].restart is True


async def test_a_plan_that_needs_a_restart_is_refused_without_one_and_nothing_is_written(
    billing: Billing, plan: str
) -> None:
    answer = await billing.ordered()

    refused = await refusal(billing.biller, "service.change_plan", id=answer.service.id, plan_slug=plan)
    events = await billing.biller("service.events", id=answer.service.id)

    assert refused.code is ErrorCode.CONFLICT
    assert [event.kind for event in events] == ["active", "ordered"]


async def test_a_plan_that_the_guest_does_not_restart_for_is_taken_back(billing: Billing, plan: str) -> None:
    async def ignored(*_: Any) -> OperationResult:
        raise OperationFailed(FailureCode.TIMED_OUT, "The guest did not shut down within 90 s.", None)

    answer = await billing.ordered()
    billing.now.service.gateway.answers["vm.resize"] = ignored

    changed = await billing.biller("service.change_plan", id=answer.service.id, plan_slug=plan, reboot=True)
    await billing.now.service.ended(changed.task.id)
    service = await billing.biller("service.show", id=answer.service.id)
    task = (await billing.biller("service.task", id=changed.task.id)).task

    assert (service.plan, service.machine.status, task.status) == ("s", "running", "failed")


async def test_the_same_key_changes_a_plan_once_and_with_another_body_is_a_conflict(
    billing: Billing, plan: str
) -> None:
    answer = await billing.ordered()
    order = {"id": answer.service.id, "plan_slug": plan, "idempotency_key": "upgrade-1"}

    refused = await refusal(billing.biller, "service.change_plan", **order)
    await billing.database.execute("UPDATE plans SET vcpus = 1, memory_mib = 256 WHERE slug = 'm'")
    first = await billing.biller("service.change_plan", **order)
    await billing.now.service.ended(first.task.id)
    again = await billing.biller("service.change_plan", **order)
    other = await refusal(billing.biller, "service.change_plan", **order | {"plan_slug": "s"})

    assert refused.code is ErrorCode.CONFLICT
    assert (first.replayed, again.replayed, again.task.id) == (False, True, first.task.id), "a refusal frees the key"
    assert other.code is ErrorCode.CONFLICT
    assert len(told(billing, VmResize)) == 1


async def test_a_service_is_given_sizes_of_its_own_and_keeps_its_plan(billing: Billing) -> None:
    answer = await billing.ordered()

    changed = await billing.biller("service.resize", id=answer.service.id, disk_gib=3)
    await billing.now.service.ended(changed.task.id)
    shrunk = await refusal(billing.biller, "service.resize", id=answer.service.id, disk_gib=1)
    usage = await billing.biller("service.usage", id=answer.service.id)

    assert (changed.service.plan, usage.disk_gib) == ("s", 3)
    assert shrunk.code is ErrorCode.CONFLICT


async def test_a_service_is_reinstalled_with_the_same_machine_and_address(billing: Billing) -> None:
    answer = await billing.ordered()

    done = await billing.biller("service.reinstall", id=answer.service.id, idempotency_key="anew")
    await billing.now.service.ended(done.task.id)
    again = await billing.biller("service.reinstall", id=answer.service.id, idempotency_key="anew")
    chosen = await billing.biller("service.reinstall", id=answer.service.id, set_password=PASSWORD)
    await billing.now.service.ended(chosen.task.id)

    assert (done.vm.id, done.vm.primary_ip) == (answer.vm.id, answer.vm.primary_ip)
    assert done.password is not None
    assert (again.replayed, again.password, again.task.id) == (True, done.password, done.task.id)
    assert (chosen.password_chosen, chosen.password) == (True, None)
    assert len(told(billing, VmReinstall)) == 2
    assert (await billing.biller("service.show", id=answer.service.id)).machine.status == "running"


async def test_a_service_whose_customer_has_keys_alone_is_reinstalled_with_them(billing: Billing) -> None:
    answer = await billing.ordered(access_mode="root_key", ssh_keys=[KEY], password=False)

    done = await billing.biller("service.reinstall", id=answer.service.id)
    await billing.now.service.ended(done.task.id)

    assert (done.user, done.password) == ("root", None)
    assert (await billing.biller("service.show", id=answer.service.id)).machine.status == "running"


@pytest.mark.parametrize("mode", ["power_off", "network_isolate"])
async def test_a_suspended_service_is_not_restarted_nor_reinstalled_against_its_suspension(
    billing: Billing, plan: str, mode: str
) -> None:
    answer = await billing.ordered()
    await billing.biller("service.suspend", id=answer.service.id, mode=mode)
    if mode == "power_off":
        await billing.settled(answer.service.id)

    changed = await billing.biller("service.change_plan", id=answer.service.id, plan_slug=plan, reboot=True)
    await billing.now.service.ended(changed.task.id)

    after = await billing.biller("service.show", id=answer.service.id)
    assert (after.state, after.plan) == ("suspended", "m")
    assert after.machine.status == ("stopped" if mode == "power_off" else "running")
    if mode == "power_off":
        refused = await refusal(billing.biller, "service.reinstall", id=answer.service.id)
        assert refused.code is ErrorCode.CONFLICT
        assert told(billing, VmReinstall) == []


async def test_a_service_without_a_machine_of_its_own_yet_takes_none_of_it(billing: Billing, plan: str) -> None:
    answer = await billing.ordered()
    await billing.biller("service.terminate", id=answer.service.id, confirm=True)

    for name, values in CALLS:
        assert (await refusal(billing.biller, name, id=answer.service.id, **values)).code is ErrorCode.CONFLICT


async def test_what_a_billing_system_has_sold_its_customer_reinstalls_and_does_not_resize(
    billing: Billing, plan: str
) -> None:
    answer = await billing.ordered()
    await billing.database.execute(
        "INSERT INTO project_members (project_id, user_id) VALUES ($1, $2)",
        answer.vm.project_id,
        billing.now.customer.principal.user_id,
    )

    refused = await refusal(billing.now.customer, "vm.resize", id=answer.vm.id, plan=plan, reboot=True)
    anew = await billing.now.customer("vm.reinstall", id=answer.vm.id, confirm=answer.vm.name, password=True)

    assert refused.code is ErrorCode.CONFLICT
    assert (await billing.now.service.ended(anew.task.id)).status == "succeeded"
