"""A service is ordered: once, whoever asks how often, with a machine or with nothing."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import trio

from svc.registry.principal import Role
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import DomainState, FailureCode, NodeOperation, OperationResult, VmCreate
from tests.controller.provisioning.conftest import Billing
from tests.support.addresses import make_pool
from tests.support.machines import KEY, refusal


async def no_room(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.HOST, "the disk of the node is broken", None)


async def test_an_order_makes_the_customer_their_project_the_service_and_its_machine(billing: Billing) -> None:
    answer = await billing.ordered()

    service = await billing.biller("service.show", id=answer.service.id)
    assert answer.service.state == "provisioning"
    assert (service.state, service.settled) == ("active", True)
    assert service.customer.email == "ada@example.org"
    assert (service.machine.status, service.machine.primary_ip) == ("running", answer.vm.primary_ip)
    assert (service.plan, answer.user, len(answer.password)) == ("s", "debian", 20)
    [project] = await billing.database.fetch("SELECT name FROM projects WHERE id = $1", service.project_id)
    assert project["name"] == "ada@example.org"


@pytest.mark.parametrize(("cidr", "prefix_len"), [("2001:db8:9::/48", 64), ("2001:db8:9::/96", 128)])
async def test_a_machine_with_ipv6_alone_shows_an_address_that_its_guest_has(
    billing: Billing, cidr: str, prefix_len: int
) -> None:
    for table in ("allocations", "reservations", "pools"):
        await billing.database.execute(f"DELETE FROM {table}")
    await make_pool(billing.database, billing.now.world, cidr, prefix_len=prefix_len)

    answer = await billing.ordered()

    service = await billing.biller("service.show", id=answer.service.id)
    [found] = await billing.now.administrator("search.find", q=answer.vm.name)
    [asked] = [each for each in billing.now.service.gateway.asked if isinstance(each, VmCreate)]
    of_guest = str(asked.machine.network.nics[0].addresses[0].interface.ip)
    assert (answer.vm.primary_ip, service.machine.primary_ip) == (of_guest, of_guest)
    assert found.detail == f"running {of_guest}"


async def test_the_machine_is_the_customers_own(billing: Billing) -> None:
    answer = await billing.ordered()
    members = await billing.database.fetch(
        "SELECT user_id FROM project_members WHERE project_id = $1", answer.service.project_id
    )

    assert [row["user_id"] for row in members] == [answer.service.customer.id]


async def test_the_limit_of_machines_binds_the_customers_orders_and_no_services(billing: Billing) -> None:
    await billing.now.administrator("settings.update", most_machines=0)
    first, second = await billing.ordered(), await billing.ordered()
    customer = await billing.customer(first.service.project_id)
    order = billing.now.order(name="own", project_id=first.service.project_id)
    assert (await refusal(customer, "vm.create", **order)).code is ErrorCode.CAPACITY
    task = await customer("vm.shutdown", id=second.vm.id)
    assert (await billing.now.service.ended(task.id)).status == "succeeded"

    # Those of services count: with two of them and a limit of three the customer orders one more
    await billing.now.administrator("settings.update", most_machines=3)
    await billing.now.created(customer, name="own", project_id=first.service.project_id)
    order["name"] = "more"
    assert (await refusal(customer, "vm.create", **order)).details == {"limit": 3}
    await billing.ordered()


async def test_a_second_order_of_a_customer_goes_into_the_same_project(billing: Billing) -> None:
    first = await billing.ordered()
    second = await billing.ordered(customer_email="ADA@example.org")

    assert second.service.project_id == first.service.project_id
    assert second.service.customer == first.service.customer
    assert second.vm.id != first.vm.id


async def test_sixty_four_equal_orders_at_once_make_one_machine_and_get_one_answer(billing: Billing) -> None:
    order, answers = billing.order(), []

    async def call() -> None:
        answers.append(await billing.biller("service.create", **order))

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(call)

    assert await billing.database.fetchval("SELECT count(*) FROM vms") == 1
    assert await billing.database.fetchval("SELECT count(*) FROM services") == 1
    assert len({answer.model_dump_json(exclude={"replayed"}) for answer in answers}) == 1
    assert sorted(answer.replayed for answer in answers) == [False] + [True] * 63


async def test_the_same_key_for_another_order_is_a_conflict_and_nothing_happens(billing: Billing) -> None:
    order = billing.order()
    await billing.biller("service.create", **order)

    refused = await refusal(billing.biller, "service.create", **order | {"name": "other"})

    assert refused.code is ErrorCode.CONFLICT
    assert await billing.database.fetchval("SELECT count(*) FROM vms") == 1


async def test_the_billing_systems_reference_makes_one_service_whatever_the_key(billing: Billing) -> None:
    order = billing.order()
    await billing.biller("service.create", **order)

    refused = await refusal(billing.biller, "service.create", **order | {"idempotency_key": "other", "name": "other"})
    third = {"idempotency_key": "third", "integration": "other", "name": "third"}
    elsewhere = await billing.biller("service.create", **order | third)

    assert refused.code is ErrorCode.CONFLICT
    assert "nothing was created" in refused.message
    assert elsewhere.service.integration == "other"
    assert await billing.database.fetchval("SELECT count(*) FROM vms") == 2


async def test_an_answer_that_was_lost_with_its_process_is_given_again(billing: Billing) -> None:
    """While the machine is being built: until then a generated password is kept."""
    order, building = billing.order(), trio.Event()

    async def slow(*_: Any) -> OperationResult:
        await building.wait()
        raise OperationFailed(FailureCode.HOST, "never mind", None)

    billing.now.service.gateway.answers["vm.create"] = slow
    first = await billing.biller("service.create", **order)
    await billing.database.execute("DELETE FROM idempotency_keys")

    again = await billing.biller("service.create", **order)

    assert (again.service.id, again.vm.id, again.replayed) == (first.service.id, first.vm.id, True)
    assert again.password == first.password is not None
    assert await billing.database.fetchval("SELECT count(*) FROM vms") == 1


async def test_a_refused_order_leaves_nothing_and_is_tried_again_with_its_key(billing: Billing) -> None:
    order = billing.order()
    await billing.database.execute("UPDATE nodes SET maintenance = true")
    refused = await refusal(billing.biller, "service.create", **order)
    left = await billing.database.fetchval("SELECT count(*) FROM services")
    await billing.database.execute("UPDATE nodes SET maintenance = false")

    made = await billing.biller("service.create", **order)

    assert (refused.code, left) == (ErrorCode.CAPACITY, 0)
    assert (made.service.state, made.replayed) == ("provisioning", False)


async def test_a_machine_that_cannot_be_built_is_removed_and_the_service_says_why(billing: Billing) -> None:
    billing.now.service.gateway.answers["vm.create"] = no_room
    answer = await billing.ordered()

    service = await billing.settled(answer.service.id)

    assert (service.state, service.machine) == ("provisioning_failed", None)
    assert "the disk of the node is broken" in service.state_reason
    held = await billing.database.fetchval("SELECT count(*) FROM allocations WHERE state = 'allocated'")
    assert held == 0, "no address is left to it"
    assert await billing.database.fetchval("SELECT count(*) FROM vms WHERE deleted_at IS NULL") == 0


async def test_a_service_that_failed_is_retried_as_the_same_service(billing: Billing) -> None:
    billing.now.service.gateway.answers["vm.create"] = no_room
    failed = await billing.ordered(ssh_keys=[KEY])
    await billing.settled(failed.service.id)
    del billing.now.service.gateway.answers["vm.create"]

    retried = await billing.biller("service.retry", id=failed.service.id)
    await billing.now.service.ended(retried.task.id)
    service = await billing.settled(failed.service.id)

    assert (service.id, service.external_ref) == (failed.service.id, failed.service.external_ref)
    assert (service.state, service.machine.status) == ("active", "running")
    assert retried.vm.id != failed.vm.id
    assert retried.vm.name == failed.vm.name
    kinds = [event.kind for event in await billing.biller("service.events", id=service.id)]
    assert kinds == ["active", "retried", "provisioning_failed", "ordered"]


async def test_only_a_service_that_failed_is_retried(billing: Billing) -> None:
    answer = await billing.ordered()

    refused = await refusal(billing.biller, "service.retry", id=answer.service.id)

    assert refused.code is ErrorCode.CONFLICT
    assert await billing.database.fetchval("SELECT count(*) FROM vms") == 1


async def test_a_machine_that_comes_to_life_under_a_failed_service_does_not_stay(billing: Billing) -> None:
    """The host says that it runs after all, when the service has failed already."""
    gateway = billing.now.service.gateway

    async def built_and_lost(
        gateway: Any, node_id: object, operation_id: object, operation: NodeOperation
    ) -> OperationResult:
        assert isinstance(operation, VmCreate)
        gateway.domains[operation.machine.vm_id] = DomainState.RUNNING
        raise OperationFailed(FailureCode.HOST, "the answer was lost", None)

    gateway.answers["vm.create"] = built_and_lost
    answer = await billing.ordered()

    service = await billing.settled(answer.service.id)

    assert (service.state, service.machine) == ("provisioning_failed", None)
    assert gateway.domains == {}


async def test_a_chosen_password_is_kept_nowhere_and_replaced_by_a_retry(billing: Billing) -> None:
    billing.now.service.gateway.answers["vm.create"] = no_room
    failed = await billing.ordered(set_password="Correct-Horse-7")
    await billing.settled(failed.service.id)
    order = await billing.database.fetchval("SELECT machine_order::text FROM services")
    del billing.now.service.gateway.answers["vm.create"]

    retried = await billing.biller("service.retry", id=failed.service.id)

    assert (failed.password, failed.password_chosen) == (None, True)
    assert "Correct-Horse-7" not in order
    assert len(retried.password) == 20


async def test_user_data_reaches_the_machine_also_by_a_retry_and_is_sealed_until_then(billing: Billing) -> None:
    gateway = billing.now.service.gateway
    gateway.answers["vm.create"] = no_room
    failed = await billing.ordered(user_data="#!/bin/sh\n: a marker")
    await billing.settled(failed.service.id)
    waiting = await billing.database.fetchone("SELECT machine_order::text, sealed_user_data FROM services")
    del gateway.answers["vm.create"]

    retried = await billing.biller("service.retry", id=failed.service.id)
    await billing.now.service.ended(retried.task.id)
    await billing.settled(failed.service.id)

    orders = [order for order in gateway.asked if isinstance(order, VmCreate)]
    assert [order.machine.seed.user_data for order in orders] == ["#!/bin/sh\n: a marker"] * 2
    assert "a marker" not in waiting["machine_order"]
    assert b"a marker" not in waiting["sealed_user_data"]
    assert await billing.database.fetchval("SELECT sealed_user_data FROM services") is None


async def test_an_administrator_is_not_made_a_customer(billing: Billing) -> None:
    administrator = billing.now.administrator.principal.email

    refused = await refusal(billing.biller, "service.create", **billing.order(customer_email=administrator))

    assert refused.code is ErrorCode.CONFLICT


async def test_a_project_of_somebody_else_is_not_used(billing: Billing) -> None:
    foreign = billing.order(project_id=billing.now.world.project_id)

    refused = await refusal(billing.biller, "service.create", **foreign)

    assert refused.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("service.ping", {}),
        ("service.catalogue", {}),
        ("service.list", {}),
        ("service.show", {"id": uuid4()}),
        ("service.find", {"ref": "1", "integration": "whmcs"}),
        ("service.events", {"id": uuid4()}),
        ("service.usage", {"id": uuid4()}),
        ("service.retry", {"id": uuid4()}),
        ("service.suspend", {"id": uuid4()}),
        ("service.unsuspend", {"id": uuid4()}),
        ("service.terminate", {"id": uuid4(), "confirm": True}),
        ("service.sso", {"id": uuid4()}),
        ("service.task", {"id": uuid4()}),
        ("service.settings", {"suspend_mode": "power_off"}),
    ],
)
async def test_customers_and_tokens_of_other_scopes_provision_nothing(
    billing: Billing, name: str, values: dict[str, Any]
) -> None:
    customer = await billing.token(Role.CUSTOMER, "provision")
    writer = await billing.token(Role.ADMINISTRATOR, "read", "write")

    for api in (billing.now.customer, customer, writer):
        assert (await refusal(api, name, **values)).code is ErrorCode.FORBIDDEN


async def test_customers_and_tokens_of_other_scopes_order_nothing(billing: Billing) -> None:
    customer = await billing.token(Role.CUSTOMER, "provision")
    writer = await billing.token(Role.ADMINISTRATOR, "read", "write")

    for api in (billing.now.customer, customer, writer):
        assert (await refusal(api, "service.create", **billing.order())).code is ErrorCode.FORBIDDEN
    assert await billing.database.fetchval("SELECT count(*) FROM services") == 0


async def test_a_token_for_provisioning_opens_nothing_else(billing: Billing) -> None:
    answer = await billing.ordered()

    for name, values in (("vm.list", {}), ("vm.show", {"id": answer.vm.id}), ("task.list", {}), ("person.list", {})):
        assert (await refusal(billing.biller, name, **values)).code is ErrorCode.FORBIDDEN
    assert (await billing.biller("service.task", id=answer.task.id)).task.status == "succeeded"


async def test_a_task_of_no_service_is_not_shown(billing: Billing) -> None:
    other = await billing.now.created()

    refused = await refusal(billing.biller, "service.task", id=other.task.id)

    assert refused.code is ErrorCode.NOT_FOUND
