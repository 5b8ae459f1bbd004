"""A service is suspended, put back and ended; its machine follows, and nobody else can have it otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from svc.registry.principal import ANONYMOUS, Principal, Role
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.spec import network_spec
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import FailureCode, OperationResult, VmForceStop, VmShutdown
from tests.controller.provisioning.conftest import Billing
from tests.support.machine_api import Api
from tests.support.machines import refusal


async def ignored(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.HOST, "the guest did not shut down", None)


async def customer_of(billing: Billing, service: Any) -> Api:
    principal = Principal(
        user_id=service.customer.id, email=service.customer.email, role=Role.CUSTOMER, scopes=None, session_id=None
    )
    return Api(billing.now.service, principal)


async def test_suspended_by_power_off_a_machine_is_shut_down_and_started_again(billing: Billing) -> None:
    service = (await billing.ordered()).service

    suspended = await billing.biller("service.suspend", id=service.id, reason="unpaid")
    off = await billing.settled(service.id)
    await billing.biller("service.unsuspend", id=service.id)
    back = await billing.settled(service.id)

    assert (suspended.state, suspended.suspend_mode, suspended.state_reason) == ("suspended", "power_off", "unpaid")
    assert off.machine.status == "stopped"
    assert (back.state, back.suspend_mode, back.machine.status) == ("active", None, "running")


async def test_a_guest_that_does_not_shut_down_is_switched_off(billing: Billing) -> None:
    service = (await billing.ordered()).service
    billing.now.service.gateway.answers["vm.shutdown"] = ignored

    await billing.biller("service.suspend", id=service.id, mode="power_off")
    off = await billing.settled(service.id)

    asked = [type(each) for each in billing.now.service.gateway.asked if isinstance(each, VmShutdown | VmForceStop)]
    assert asked == [VmShutdown, VmForceStop]
    assert off.machine.status == "stopped"


@pytest.mark.parametrize("who", ["customer", "staff"])
async def test_nobody_starts_the_machine_of_a_suspended_service(billing: Billing, who: str) -> None:
    service = (await billing.ordered()).service
    await billing.biller("service.suspend", id=service.id, mode="power_off")
    machine = (await billing.settled(service.id)).machine
    api = billing.now.staff if who == "staff" else await customer_of(billing, service)

    refused = await refusal(api, "vm.start", id=machine.id)

    assert refused.code is ErrorCode.CONFLICT
    assert "suspended" in refused.message
    assert await billing.now.service.status(machine.id) == "stopped"


async def test_a_machine_that_was_off_stays_off_when_its_service_is_put_back(billing: Billing) -> None:
    service = (await billing.ordered()).service
    task = await billing.now.staff("vm.shutdown", id=(await billing.settled(service.id)).machine.id)
    await billing.now.service.ended(task.id)

    await billing.biller("service.suspend", id=service.id, mode="power_off")
    await billing.settled(service.id)
    await billing.biller("service.unsuspend", id=service.id)

    assert (await billing.settled(service.id)).machine.status == "stopped"


@pytest.mark.parametrize("mode", ["power_off", "network_isolate"])
async def test_suspended_again_before_it_was_started_a_machine_is_started_in_the_end(
    billing: Billing, mode: str
) -> None:
    service = (await billing.ordered()).service
    await billing.biller("service.suspend", id=service.id, mode="power_off")
    await billing.settled(service.id)
    await billing.database.execute("UPDATE nodes SET state = 'offline'")
    await billing.biller("service.unsuspend", id=service.id)
    await billing.biller("service.suspend", id=service.id, mode=mode)
    await billing.database.execute("UPDATE nodes SET state = 'online'")

    await billing.biller("service.unsuspend", id=service.id)

    assert (await billing.settled(service.id)).machine.status == "running"


async def test_isolated_a_machine_runs_on_and_its_host_carries_nothing(billing: Billing) -> None:
    answer = await billing.ordered()
    before = await network_spec(billing.database, answer.vm.id)

    suspended = await billing.biller("service.suspend", id=answer.service.id, mode="network_isolate")
    isolated = await network_spec(billing.database, answer.vm.id)
    shown = await billing.now.staff("vm.networking", id=answer.vm.id)
    await billing.biller("service.unsuspend", id=answer.service.id)
    after = await network_spec(billing.database, answer.vm.id)

    assert suspended.machine.status == "running"
    assert (before.isolated, isolated.isolated, after.isolated) == (False, True, False)
    assert before.generation < isolated.generation < after.generation, "the host is told each time"
    assert shown.isolated
    assert "suspended" in shown.isolated_reason
    assert not any(isinstance(each, VmShutdown) for each in billing.now.service.gateway.asked)


async def test_what_was_done_is_reversed_whatever_the_setting_says_by_then(billing: Billing) -> None:
    answer = await billing.ordered()
    await billing.now.administrator("service.settings", suspend_mode="network_isolate")
    suspended = await billing.biller("service.suspend", id=answer.service.id)
    await billing.now.administrator("service.settings", suspend_mode="power_off")

    await billing.biller("service.unsuspend", id=answer.service.id)

    assert suspended.suspend_mode == "network_isolate"
    assert not (await network_spec(billing.database, answer.vm.id)).isolated
    assert await billing.now.service.status(answer.vm.id) == "running"


async def test_a_repeated_order_changes_nothing_and_another_mode_is_refused(billing: Billing) -> None:
    service = (await billing.ordered()).service
    await billing.biller("service.suspend", id=service.id, mode="power_off")

    again = await billing.biller("service.suspend", id=service.id, mode="power_off")
    other = await refusal(billing.biller, "service.suspend", id=service.id, mode="network_isolate")
    events = await billing.biller("service.events", id=service.id)

    assert again.state == "suspended"
    assert other.code is ErrorCode.CONFLICT
    assert [event.kind for event in events] == ["suspended", "active", "ordered"]


async def test_a_customer_does_not_delete_what_they_have_ordered(billing: Billing) -> None:
    answer = await billing.ordered()
    customer = await customer_of(billing, answer.service)

    refused = await refusal(customer, "vm.delete", id=answer.vm.id, confirm=answer.vm.name)

    assert refused.code is ErrorCode.CONFLICT
    assert await billing.now.service.status(answer.vm.id) == "running"


async def test_the_end_of_a_service_deletes_its_machine_although_its_owner_had_protected_it(billing: Billing) -> None:
    service = (await billing.ordered()).service
    owner = await customer_of(billing, service)
    machine_id = (await billing.settled(service.id)).machine.id
    await owner("vm.update", id=machine_id, protected=True)

    await billing.biller("service.terminate", id=service.id, confirm=True)

    assert (await billing.settled(service.id)).machine is None


@pytest.mark.parametrize("destroy_disks", [False, True])
async def test_terminated_a_service_ends_and_its_machine_with_it(billing: Billing, destroy_disks: bool) -> None:
    answer = await billing.ordered()

    ended = await billing.biller("service.terminate", id=answer.service.id, confirm=True, destroy_disks=destroy_disks)
    gone = await billing.settled(answer.service.id)
    again = await billing.biller("service.terminate", id=answer.service.id, confirm=True)

    [deletion] = [each for each in billing.now.service.gateway.asked if each.op == "vm.delete"]
    assert (ended.state, gone.state, again.state) == ("terminated",) * 3
    assert gone.machine is None
    assert deletion.destroy_disks is destroy_disks
    assert await billing.database.fetchval("SELECT count(*) FROM allocations WHERE state = 'allocated'") == 0


async def test_a_termination_is_carried_out_when_the_machine_can_take_it(billing: Billing) -> None:
    """It is busy being built when the order comes."""
    order = billing.order()
    answer = await billing.biller("service.create", **order)

    ended = await billing.biller("service.terminate", id=answer.service.id, confirm=True)
    gone = await billing.settled(answer.service.id)

    assert ended.state == "terminated"
    assert gone.machine is None
    assert billing.now.service.gateway.domains == {}


async def test_a_machine_whose_node_is_away_is_switched_off_once_it_is_back(billing: Billing) -> None:
    answer = await billing.ordered()
    await billing.database.execute("UPDATE nodes SET state = 'offline'")

    suspended = await billing.biller("service.suspend", id=answer.service.id, mode="power_off")
    await billing.database.execute("UPDATE nodes SET state = 'online'")
    await billing.database.execute("UPDATE services SET tried_at = NULL")
    off = await billing.settled(answer.service.id)

    assert (suspended.state, suspended.settled) == ("suspended", False)
    assert off.machine.status == "stopped"


async def test_usage_is_what_the_machine_has_and_transferred(billing: Billing) -> None:
    answer = await billing.ordered()

    usage = await billing.biller("service.usage", id=answer.service.id)

    assert (usage.vcpus, usage.memory_mib, usage.disk_gib, usage.ipv4_count) == (1, 256, 1, 1)
    assert (usage.received_bytes, usage.traffic.samples) == (0, 0)


async def test_services_are_found_by_state_and_by_what_the_billing_system_calls_them(billing: Billing) -> None:
    first, second = await billing.ordered(), await billing.ordered()
    await billing.biller("service.suspend", id=first.service.id, mode="network_isolate")

    suspended = await billing.biller("service.list", state="suspended")
    found = await billing.biller("service.find", ref=second.service.external_ref, integration="whmcs")
    absent = await refusal(billing.biller, "service.find", ref=second.service.external_ref, integration="other")

    assert [each.id for each in suspended.items] == [first.service.id]
    assert found.id == second.service.id
    assert absent.code is ErrorCode.NOT_FOUND


async def test_the_catalogue_has_what_can_be_ordered(billing: Billing) -> None:
    catalogue = await billing.biller("service.catalogue")
    ping = await billing.biller("service.ping")
    await billing.database.execute("UPDATE plans SET enabled = false")
    unready = await billing.biller("service.ping")

    assert [plan.slug for plan in catalogue.plans] == ["s"]
    assert billing.now.world.image_id in {image.id for image in catalogue.images}
    assert catalogue.suspend_mode == "power_off"
    assert (ping.ready, ping.problems) == (True, [])
    assert (unready.ready, unready.problems) == (False, ["There is no plan that is enabled."])


async def test_a_sign_in_link_works_once_and_leads_to_the_machine(billing: Billing) -> None:
    answer = await billing.ordered()
    link = await (await billing.token(Role.ADMINISTRATOR, "provision"))("service.sso", id=answer.service.id)
    token = link.url.rpartition("/")[2]
    browser = Api(billing.now.service, ANONYMOUS)

    path = await browser("session.sso", token=token)
    session = browser.effects.set_session
    again = await refusal(browser, "session.sso", token=token)

    assert path == f"/#/machines/{answer.vm.id}"
    assert session is not None
    assert again.code is ErrorCode.FORBIDDEN
    stored = await billing.database.fetchval("SELECT count(*) FROM service_sign_in_links")
    assert stored == 0


async def test_a_staff_member_makes_no_sign_in_link(billing: Billing) -> None:
    answer = await billing.ordered()

    refused = await refusal(billing.biller, "service.sso", id=answer.service.id)

    assert refused.code is ErrorCode.FORBIDDEN


async def test_a_sign_in_link_is_over_after_ninety_seconds(billing: Billing) -> None:
    answer = await billing.ordered()
    link = await (await billing.token(Role.ADMINISTRATOR, "provision"))("service.sso", id=answer.service.id)
    lasts = await billing.database.fetchval(
        "SELECT expires_at - now() <= interval '90 seconds' FROM service_sign_in_links"
    )
    await billing.database.execute("UPDATE service_sign_in_links SET expires_at = now() - interval '1 second'")
    browser = Api(billing.now.service, ANONYMOUS)

    refused = await refusal(browser, "session.sso", token=link.url.rpartition("/")[2])

    assert lasts
    assert refused.code is ErrorCode.FORBIDDEN
    assert browser.effects.set_session is None
