"""A machine that is there already becomes a service: only where everything agrees, and as it is."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from svc.registry.principal import Role
from svc_common.errors import ErrorCode, ServiceError
from tests.controller.provisioning.conftest import Billing
from tests.support.machine_api import Api
from tests.support.machines import refusal

REFERENCE = {"integration": "whmcs", "external_ref": "4711"}


@pytest.fixture
async def administrator(billing: Billing) -> Api:
    return await billing.token(Role.ADMINISTRATOR, "provision")


async def services(billing: Billing) -> int:
    return int(await billing.database.fetchval("SELECT count(*) FROM services"))


async def staged(administrator: Api, vm_id: UUID | None, **changes: object) -> Any:
    return await administrator("service.stage", **REFERENCE | {"legacy_server_id": "88", "vm_id": vm_id} | changes)


async def test_a_staged_machine_is_adopted_as_it_is(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    await staged(administrator, vm.id)
    asked = len(billing.now.service.gateway.asked)

    found = await billing.biller("service.adopt_preview", **REFERENCE)
    before = await services(billing)
    service = await billing.biller("service.adopt", **REFERENCE, confirm=vm.id)
    after = await billing.now.customer("vm.show", id=vm.id)

    assert (found.verdict, found.line) == ("match", f"4711 to 88 to {vm.id} web match")
    assert (found.would_create_vm, found.would_change_ip, before) == (False, False, 0)
    assert (service.state, service.settled, service.machine.id) == ("active", True, vm.id)
    assert service.customer.id == billing.now.customer.principal.user_id
    assert (after.addresses, after.status) == (vm.addresses, "running")
    assert len(billing.now.service.gateway.asked) == asked, "its host is asked for nothing"
    assert [event.kind for event in await billing.biller("service.events", id=service.id)] == ["adopted"]


async def test_an_adopted_service_is_suspended_and_ended_like_any_other(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    await staged(administrator, vm.id)
    service = await billing.biller("service.adopt", **REFERENCE, confirm=vm.id)

    kept = await refusal(billing.now.customer, "vm.delete", id=vm.id, confirm="web")
    await billing.biller("service.suspend", id=service.id, mode="power_off")
    off = await billing.settled(service.id)
    await billing.biller("service.terminate", id=service.id, confirm=True)
    gone = await billing.settled(service.id)

    assert kept.code is ErrorCode.CONFLICT
    assert (off.machine.status, gone.machine) == ("stopped", None)


async def test_each_verdict_but_match_is_refused_and_writes_nothing(billing: Billing, administrator: Api) -> None:
    sold = await billing.ordered(external_ref="1", name="sold")
    free = (await billing.now.created()).vm
    elsewhere = uuid4()
    await staged(administrator, None, external_ref="no-uuid")
    await staged(administrator, elsewhere, external_ref="elsewhere")
    await staged(administrator, sold.vm.id, external_ref="taken")
    await staged(administrator, sold.vm.id, external_ref="1")
    await billing.ordered(external_ref="2", name="second")
    await staged(administrator, free.id, external_ref="2")
    expected = {
        "nobody": "nobody to - to - - not_found",
        "no-uuid": "no-uuid to 88 to - - no_uuid",
        "elsewhere": f"elsewhere to 88 to {elsewhere} - staged_only",
        "taken": f"taken to 88 to {sold.vm.id} sold taken",
        "1": f"1 to 88 to {sold.vm.id} sold already_linked",
        "2": f"2 to 88 to {free.id} web taken",
    }
    before = await services(billing)

    for reference, line in expected.items():
        asked = {"integration": "whmcs", "external_ref": reference}
        found = await billing.biller("service.adopt_preview", **asked)
        refused = await refusal(billing.biller, "service.adopt", **asked, confirm=found.vm_id or uuid4())
        assert found.line == line
        assert (refused.code, refused.details) == (ErrorCode.CONFLICT, {"verdict": line.rpartition(" ")[2]})

    assert await services(billing) == before


async def test_another_machines_id_confirms_nothing(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    await staged(administrator, vm.id)

    refused = await refusal(billing.biller, "service.adopt", **REFERENCE, confirm=uuid4())

    assert refused.code is ErrorCode.INVALID
    assert await services(billing) == 0


async def test_of_many_adoptions_at_once_one_links_the_machine(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    references = [f"r-{number}" for number in range(8)]
    for reference in references:
        await staged(administrator, vm.id, external_ref=reference)
    linked: list[str] = []
    refused: list[tuple[ErrorCode, object]] = []

    async def adopt(reference: str) -> None:
        try:
            await billing.biller("service.adopt", integration="whmcs", external_ref=reference, confirm=vm.id)
            linked.append(reference)
        except ServiceError as error:
            refused.append((error.code, error.details))

    async with trio.open_nursery() as nursery:
        for reference in references:
            nursery.start_soon(adopt, reference)

    assert len(linked) == 1
    assert refused == [(ErrorCode.CONFLICT, {"verdict": "taken"})] * 7
    assert await services(billing) == 1


async def test_a_machine_of_several_customers_is_nobodys_to_sign_in_as(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    await billing.now.service.database.execute(
        "INSERT INTO project_members (project_id, user_id) SELECT project_id, $2 FROM vms WHERE id = $1",
        vm.id,
        billing.now.stranger.principal.user_id,
    )
    await staged(administrator, vm.id)

    service = await billing.biller("service.adopt", **REFERENCE, confirm=vm.id)
    link = await refusal(administrator, "service.sso", id=service.id)

    assert service.customer is None
    assert link.code is ErrorCode.CONFLICT


async def test_a_machine_that_is_being_deleted_is_not_adopted(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    await staged(administrator, vm.id)
    await billing.now.service.database.execute("UPDATE vms SET status = 'deleting' WHERE id = $1", vm.id)

    found = await billing.biller("service.adopt_preview", **REFERENCE)
    linked = await refusal(administrator, "service.link", **REFERENCE, vm_id=vm.id, confirm="web")

    assert found.verdict == "staged_only"
    assert linked.code is ErrorCode.CONFLICT


async def test_a_machine_is_linked_without_anything_staged_by_its_name(billing: Billing, administrator: Api) -> None:
    vm = (await billing.now.created()).vm
    order = REFERENCE | {"vm_id": vm.id}

    wrong = await refusal(administrator, "service.link", **order, confirm="other")
    service = await administrator("service.link", **order, confirm="web")
    again = await refusal(administrator, "service.link", **order, confirm="web")

    assert wrong.code is ErrorCode.INVALID
    assert (service.state, service.machine.id) == ("active", vm.id)
    assert (again.code, again.details) == (ErrorCode.CONFLICT, {"verdict": "already_linked"})


async def test_who_may(billing: Billing, administrator: Api) -> None:
    """Staging and linking are administrators'; adopting is any billing system's, and nobody else's."""
    vm = (await billing.now.created()).vm
    calls: dict[str, dict[str, Any]] = {
        "service.stage": REFERENCE | {"legacy_server_id": "88"},
        "service.link": REFERENCE | {"vm_id": vm.id, "confirm": "web"},
        "service.adopt_preview": dict(REFERENCE),
        "service.adopt": REFERENCE | {"confirm": vm.id},
    }
    customer = await billing.token(Role.CUSTOMER, "provision")
    writer = await billing.token(Role.ADMINISTRATOR, "write")

    for name, values in calls.items():
        for api in (customer, writer):
            assert (await refusal(api, name, **values)).code is ErrorCode.FORBIDDEN
    for name in ("service.stage", "service.link"):
        assert (await refusal(billing.biller, name, **calls[name])).code is ErrorCode.FORBIDDEN
    assert await services(billing) == 0
