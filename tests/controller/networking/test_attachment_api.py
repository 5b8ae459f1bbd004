"""Addresses and rate over the API: who may have what, where it comes from, and what is refused with nothing changed."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
import trio

from svc.controller.networking import machine_networking
from svc.registry.principal import Role
from svc_actors.controller.machines.machine import Machine
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_api import Api
from tests.support.networking import Held, NetworkHarness, another_node, failing, open_stage

CODES = ErrorCode


async def plan(stage: NetworkHarness, ipv4_count: int) -> UUID:
    plan_id: UUID = await stage.database.fetchval(
        """INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib, ipv4_count) VALUES ('S', 's', 1, 256, 1, $1)
           RETURNING id""",
        ipv4_count,
    )
    return plan_id


async def customer(stage: NetworkHarness) -> Api:
    return await stage.api(Role.CUSTOMER, stage.world.project_id)


async def customer_with(stage: NetworkHarness, vm_id: UUID, ipv4_count: int) -> Api:
    """The machine's owner, who may have so many addresses."""
    await stage.database.execute("UPDATE vms SET plan_id = $2 WHERE id = $1", vm_id, await plan(stage, ipv4_count))
    return await customer(stage)


async def administrator(stage: NetworkHarness) -> Api:
    return await stage.api(Role.ADMINISTRATOR)


async def refused(code: ErrorCode, api: Api, name: str, /, **values: object) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await api(name, **values)
    assert caught.value.code is code, caught.value
    return caught.value


def addresses(networking: machine_networking.MachineNetworking) -> list[machine_networking.MachineAddress]:
    return [address for nic in networking.nics for address in nic.addresses]


async def test_a_customer_sees_nics_addresses_and_what_the_plan_allows_and_not_the_pools(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 3))
        shown = await (await customer(stage))("vm.networking", id=vm_id)
        [nic] = shown.nics
        [address] = nic.addresses
        assert nic.mac.startswith("52:54:00:")
        assert nic.network_name == "nat"
        assert (address.ip, address.family, address.primary, address.state) == ("10.77.0.2", 4, True, "allocated")
        assert (address.interface, address.network, address.gateway) == ("10.77.0.2/32", "10.77.0.2/32", "10.77.0.1")
        assert (address.pool_id, address.pool_name) == (None, None)
        assert (shown.ipv4_allowed, shown.ipv4_count) == (3, 1)
        assert (shown.status, shown.error, shown.isolated, shown.rate_mbps) == ("applied", None, False, None)
        assert shown.month.samples == 0
        staff = await (await stage.api(Role.STAFF))("vm.networking", id=vm_id)
        assert addresses(staff)[0].pool_id == stage.world.pool_id
        assert (staff.ipv4_allowed, staff.ipv4_count) == (3, 1)


async def test_another_customers_machine_is_not_found_by_any_call(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        stranger = await stage.api(Role.CUSTOMER)
        await refused(CODES.NOT_FOUND, stranger, "vm.networking", id=vm_id)
        await refused(CODES.NOT_FOUND, stranger, "vm.attach_ip", id=vm_id)
        await refused(CODES.NOT_FOUND, stranger, "vm.detach_ip", id=vm_id, ip="10.77.0.2")
        assert list(await stage.held(vm_id)) == ["10.77.0.2"]


async def test_a_customer_attaches_as_many_ipv4_addresses_as_the_plan_allows(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 2))
        api = await customer(stage)
        answer = await api("vm.attach_ip", id=vm_id)
        assert answer.address.ip == "10.77.0.3"
        assert answer.networking.ipv4_count == 2
        refusal = await refused(CODES.CAPACITY, api, "vm.attach_ip", id=vm_id)
        assert refusal.details == {"allowed": 2, "held": 2}
        await (await administrator(stage))("vm.attach_ip", id=vm_id)
        assert len(await stage.held(vm_id)) == 3


async def test_attaching_at_once_never_passes_the_plans_bound(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 4))
        api = await customer(stage)
        refusals: list[ErrorCode] = []

        async def attach() -> None:
            try:
                await api("vm.attach_ip", id=vm_id)
            except ServiceError as error:
                refusals.append(error.code)

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(attach)
        assert refusals == [ErrorCode.CAPACITY] * 13
        assert len(await stage.held(vm_id)) == 4


async def test_what_is_being_released_does_not_count_against_the_plan(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 2))
        api = await customer(stage)
        second = (await api("vm.attach_ip", id=vm_id)).address.ip
        held = stage.hosts.plays["vm.net.release"] = Held()
        shown = await api("vm.detach_ip", id=vm_id, ip=second)
        assert [(each.ip, each.state) for each in addresses(shown)] == [
            ("10.77.0.2", "allocated"),
            (second, "releasing"),
        ]
        assert shown.ipv4_count == 1
        third = (await api("vm.attach_ip", id=vm_id)).address.ip
        assert third != second
        held.released.set()
        await stage.until_held(vm_id, {"10.77.0.2": "allocated", third: "allocated"})


async def test_an_absent_host_is_no_way_to_empty_a_pool(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 2))
        api = await customer(stage)
        stage.hosts.offline.add(stage.world.node_id)
        for _ in range(3):
            ip = (await api("vm.attach_ip", id=vm_id)).address.ip
            await api("vm.detach_ip", id=vm_id, ip=ip)
        refusal = await refused(CODES.CAPACITY, api, "vm.attach_ip", id=vm_id)
        assert "still being released" in refusal.message
        assert len(await stage.held(vm_id)) == 4


async def test_a_machine_of_no_plan_keeps_a_customer_to_the_address_it_was_made_with(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        api = await customer(stage)
        assert (await api("vm.networking", id=vm_id)).ipv4_allowed == 1
        assert (await (await stage.api(Role.STAFF))("vm.networking", id=vm_id)).ipv4_allowed is None
        await refused(CODES.CAPACITY, api, "vm.attach_ip", id=vm_id)


async def test_the_primary_address_cannot_be_detached(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        refusal = await refused(CODES.CONFLICT, await customer(stage), "vm.detach_ip", id=vm_id, ip="10.77.0.2")
        assert "primary" in refusal.message
        assert await stage.held(vm_id) == {"10.77.0.2": "allocated"}


async def test_an_address_that_the_machine_does_not_have_is_not_found(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id, other = await stage.machine("web"), await stage.machine("other")
        await refused(CODES.NOT_FOUND, await customer(stage), "vm.detach_ip", id=vm_id, ip="10.77.0.3")
        assert await stage.held(other) == {"10.77.0.3": "allocated"}


@pytest.mark.parametrize("text", ["", "10.77.0", "10.77.0.2/33", "fe80::1%eth0", "web", 5])
def test_what_is_no_address_is_invalid(text: object) -> None:
    with pytest.raises(ValueError, match="must be an address"):
        machine_networking.DetachRequest.model_validate({"id": str(uuid4()), "ip": text})


async def test_a_customer_chooses_among_the_pools_that_the_machine_may_use(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 5))
        routed = await stage.pool("198.51.100.0/28", name="public", topology="routed")
        api = await customer(stage)

        offered = (await api("vm.networking", id=vm_id)).pools
        by_pool = await api("vm.attach_ip", id=vm_id, pool_id=stage.world.pool_id)
        by_address = await api("vm.attach_ip", id=vm_id, ip="198.51.100.9")

        assert [(pool.id, pool.name) for pool in offered] == [(routed, "public"), (stage.world.pool_id, "nat")]
        assert by_pool.address.ip == "10.77.0.3"
        assert (by_address.address.ip, by_address.address.topology) == ("198.51.100.9", "routed")
        await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, ip="198.51.100.9")


async def test_a_customer_is_told_nothing_of_pools_that_the_machine_may_not_use(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 5))
        closed = await stage.pool("198.51.100.0/28", name="closed", enabled=False)
        api = await customer(stage)

        named = await refused(CODES.NOT_FOUND, api, "vm.attach_ip", id=vm_id, pool_id=closed)
        absent = await refused(CODES.NOT_FOUND, api, "vm.attach_ip", id=vm_id, pool_id=uuid4())
        inside = await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, ip="198.51.100.9")
        outside = await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, ip="203.0.113.9")

        assert named.message == absent.message
        assert inside.message.replace("198.51.100.9", "203.0.113.9") == outside.message
        assert closed not in [pool.id for pool in (await api("vm.networking", id=vm_id)).pools]
        assert len(await stage.held(vm_id)) == 1


async def test_a_further_address_is_public_where_one_is_to_be_had(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(plan_id=await plan(stage, 5))
        await stage.pool("192.168.7.0/28", name="inside", topology="routed")
        await stage.pool("198.51.100.0/30", name="public", topology="routed")
        api = await customer(stage)

        given = [(await api("vm.attach_ip", id=vm_id)).address.ip for _ in range(2)]

        assert given == ["198.51.100.2", "10.77.0.3"]


async def test_staff_choose_pool_and_address(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        other = await stage.pool("10.99.0.0/24", name="second")
        api = await stage.api(Role.STAFF)
        assert (await api("vm.attach_ip", id=vm_id, pool_id=other)).address.ip == "10.99.0.2"
        assert (await api("vm.attach_ip", id=vm_id, ip="10.99.0.77")).address.pool_name == "second"
        await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, ip="10.99.0.77")
        await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, ip="192.0.2.7")
        await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, pool_id=other, ip="10.77.0.9")
        await refused(CODES.NOT_FOUND, api, "vm.attach_ip", id=vm_id, pool_id=uuid4())
        await refused(CODES.NOT_FOUND, api, "vm.attach_ip", id=vm_id, nic_id=uuid4())
        await refused(CODES.INVALID, api, "vm.attach_ip", id=vm_id, pool_id=other, family=6)
        await refused(CODES.INVALID, api, "vm.attach_ip", id=vm_id, ip="10.99.0.78", family=6)
        assert set(await stage.held(vm_id)) == {"10.77.0.2", "10.99.0.2", "10.99.0.77"}


async def test_an_ipv6_sub_prefix_is_attached_beside_ipv4_and_detached_as_it_is_shown(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        api = await customer(stage)
        await refused(CODES.CAPACITY, api, "vm.attach_ip", id=vm_id, family=6)
        await stage.pool("2001:db8:77::/48", topology="routed")
        answer = await api("vm.attach_ip", id=vm_id, family=6)
        assert answer.address.family == 6
        assert answer.address.ip.endswith("/64")
        assert answer.address.network == answer.address.ip
        assert answer.address.interface.split("/")[0].endswith("::1")
        await stage.until_applied(vm_id)
        assert answer.address.ip in stage.hosts.carried(vm_id)
        await api("vm.detach_ip", id=vm_id, ip=answer.address.ip)
        await stage.until_held(vm_id, {"10.77.0.2": "allocated"})
        assert stage.hosts.carried(vm_id) == {"10.77.0.2"}


async def test_a_new_machine_has_an_ipv6_sub_prefix_where_its_network_offers_them(database: Database) -> None:
    async with open_stage(database) as stage:
        await stage.pool("2001:db8:77::/48", topology="routed")
        vm_id = await stage.machine()
        families = sorted(":" in address for address in await stage.held(vm_id))
        assert families == [False, True]
        assert stage.hosts.carried(vm_id) == set(await stage.held(vm_id))


async def test_a_pool_that_does_not_fit_is_refused_with_the_reason(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        api = await administrator(stage)
        beta = await another_node(stage, "beta")
        elsewhere = await stage.pool("10.98.0.0/24", name="elsewhere", node_ids=[beta])
        closed = await stage.pool("10.97.0.0/24", name="closed")
        await stage.database.execute("UPDATE pools SET enabled = false WHERE id = $1", closed)
        bridged = await stage.pool("10.96.0.0/24", name="bridged", topology="bridged")
        for pool_id, reason in (
            (elsewhere, "does not serve the machine's node"),
            (closed, "is not enabled"),
            (bridged, "cannot be mixed"),
        ):
            refusal = await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, pool_id=pool_id)
            assert reason in refusal.message
        assert len(await stage.held(vm_id)) == 1


async def test_what_the_node_cannot_carry_is_refused_in_its_own_words(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        pool_id = await stage.pool("10.95.0.0/24", topology="routed")
        lacks = {"routed": "The kernel does not forward.", "rate": "The kernel has no tbf."}
        await stage.database.execute(
            "UPDATE nodes SET facts = jsonb_build_object('network_features', '[]'::jsonb, 'network_lacks', $2::jsonb)"
            " WHERE id = $1",
            stage.world.node_id,
            lacks,
        )
        api = await administrator(stage)
        refusal = await refused(CODES.CONFLICT, api, "vm.attach_ip", id=vm_id, pool_id=pool_id)
        assert "The kernel does not forward." in refusal.message
        refusal = await refused(CODES.CONFLICT, api, "vm.rate", id=vm_id, rate_mbps=10)
        assert "The kernel has no tbf." in refusal.message
        await stage.database.execute(
            "UPDATE nodes SET facts = jsonb_set(facts, '{network_lacks,nat}', to_jsonb('alpha has none'::text))"
        )
        refusal = await refused(CODES.CONFLICT, await customer_with(stage, vm_id, 5), "vm.attach_ip", id=vm_id)
        assert "alpha" not in refusal.message


async def test_a_full_pool_is_capacity_and_the_next_one_is_tried(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        api = await administrator(stage)
        small = await stage.pool("10.94.0.0/30", name="small")
        await api("vm.attach_ip", id=vm_id, pool_id=small)
        await refused(CODES.CAPACITY, api, "vm.attach_ip", id=vm_id, pool_id=small)
        await stage.database.execute("UPDATE pools SET created_at = '2000-01-01' WHERE id = $1", small)
        assert (await api("vm.attach_ip", id=vm_id)).address.pool_id == stage.world.pool_id


async def test_a_rate_is_capped_by_an_administrator_and_zero_removes_it(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        api = await administrator(stage)
        shown = await api("vm.rate", id=vm_id, rate_mbps=100)
        assert (shown.rate_mbps, shown.effective_rate_mbps) == (100, 100)
        await stage.until_applied(vm_id)
        assert stage.host.networks.networks[vm_id].spec.nics[0].rate_mbps == 100
        shown = await api("vm.rate", id=vm_id, rate_mbps=0)
        assert (shown.rate_mbps, shown.effective_rate_mbps) == (None, None)
        await stage.until_applied(vm_id)
        assert stage.host.networks.networks[vm_id].spec.nics[0].rate_mbps is None
        await refused(CODES.FORBIDDEN, await customer(stage), "vm.rate", id=vm_id, rate_mbps=0)
        await refused(CODES.FORBIDDEN, await stage.api(Role.STAFF), "vm.rate", id=vm_id, rate_mbps=0)


async def test_the_lower_of_cap_and_throttle_counts_and_isolation_says_why(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine(rate_mbps=50)
        await stage.database.execute("UPDATE vms SET throttle_mbps = 10, traffic_isolated = true WHERE id = $1", vm_id)
        shown = await (await customer(stage))("vm.networking", id=vm_id)
        assert (shown.rate_mbps, shown.effective_rate_mbps) == (50, 10)
        assert shown.isolated is True
        assert "traffic" in shown.isolated_reason


async def test_the_status_says_whether_the_host_has_it(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        owner, staff = await customer(stage), await stage.api(Role.STAFF)
        held = stage.hosts.plays["vm.net.apply"] = Held()
        await stage.attach(vm_id)
        await held.until_reached()
        assert (await owner("vm.networking", id=vm_id)).status == "applying"
        await stage.database.execute("UPDATE nodes SET state = 'offline'")
        assert (await owner("vm.networking", id=vm_id)).status == "waiting"
        await stage.database.execute("UPDATE nodes SET state = 'online'")
        stage.hosts.plays["vm.net.apply"] = failing("nft: svc-alpha: busy")
        await stage.attach(vm_id)
        held.released.set()
        await stage.until_alerts("network:", 1)
        shown = await owner("vm.networking", id=vm_id)
        assert shown.status == "failed"
        assert "alpha" not in shown.error
        assert (await staff("vm.networking", id=vm_id)).error == "nft: svc-alpha: busy"
        del stage.hosts.plays["vm.net.apply"]
        await stage.until_applied(vm_id)
        assert (await owner("vm.networking", id=vm_id)).status == "applied"


async def test_an_address_is_attached_without_waiting_for_an_offline_node(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        stage.hosts.offline.add(stage.world.node_id)
        await stage.database.execute("UPDATE nodes SET state = 'offline'")
        answer = await (await administrator(stage))("vm.attach_ip", id=vm_id)
        assert answer.networking.status == "waiting"
        assert (await stage.held(vm_id))[answer.address.ip] == "allocated"


async def test_a_machine_that_was_never_built_is_not_changed(database: Database) -> None:
    async with open_stage(database) as stage:
        stage.hosts.plays["vm.create"] = failing()
        created = await stage.service.create(stage.world.machine())
        await stage.service.ended(created.task)
        api = await administrator(stage)
        await refused(CODES.CONFLICT, api, "vm.attach_ip", id=created.vm_id)
        await refused(CODES.CONFLICT, api, "vm.rate", id=created.vm_id, rate_mbps=5)


async def test_a_deleted_machine_is_not_found(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        task = await stage.service.machine(vm_id).ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
        await stage.service.ended(task)
        await refused(CODES.NOT_FOUND, await administrator(stage), "vm.attach_ip", id=vm_id)


async def test_every_change_is_audited_and_told_to_the_machines_readers(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        api = await administrator(stage)
        told = await events(database, vm_id)
        ip = (await api("vm.attach_ip", id=vm_id)).address.ip
        await api("vm.rate", id=vm_id, rate_mbps=7)
        await api("vm.detach_ip", id=vm_id, ip=ip)
        rows = await database.fetch("SELECT operation, details FROM audit WHERE target_id = $1 ORDER BY id", str(vm_id))
        changes = {row["operation"]: row["details"] for row in rows[-3:]}
        assert changes["vm.attach_ip"]["ip"] == ip
        assert changes["vm.rate"] == {"rate_mbps": 7, "before": None}
        assert changes["vm.detach_ip"] == {"ip": ip}
        assert await events(database, vm_id) >= told + 3


async def events(database: Database, vm_id: UUID) -> int:
    count: int = await database.fetchval(
        """SELECT (SELECT count(*) FROM event_inbox WHERE kind = 'vm' AND subject = $1)
                + (SELECT count(*) FROM event WHERE kind = 'vm' AND subject = $1)""",
        str(vm_id),
    )
    return count


async def test_a_machine_that_its_host_has_lost_waits_and_is_not_said_to_be_applied_to(database: Database) -> None:
    async with open_stage(database) as stage:
        vm_id = await stage.machine()
        await database.execute("UPDATE vms SET status = 'failed', net_wanted = net_wanted + 1 WHERE id = $1", vm_id)
        shown = await (await customer(stage))("vm.networking", id=vm_id)
        assert (shown.status, shown.error) == ("waiting", None)
