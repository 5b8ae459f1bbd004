"""Plans, locations, networks, pools, alerts, the overview and the search: what they promise and refuse."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from svc.registry.principal import Role
from svc_actors.alerts import KEPT_DAYS, CustomerNotice, Severity, close_alert, forget_closed_alerts, raise_alert
from svc_actors.controller.reconcile.machine_watch import MachineWatch
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from tests.controller.machines.test_machine_life import order
from tests.support.machine_api import REGISTRY, Api, person
from tests.support.machine_service import FakeGateway, Fleet, Service, make_fleet, open_service


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[tuple[Service, Fleet, Api, Api]]:
    """A service, its world, an administrator and a customer of the world's project."""
    world = await make_fleet(database)
    async with open_service(database, FakeGateway()) as service:
        yield (
            service,
            world,
            Api(service, await person(database, Role.ADMINISTRATOR)),
            Api(service, await person(database, Role.CUSTOMER, projects=(world.project_id,))),
        )


async def code_of(api: Api, name: str, /, **values: object) -> ErrorCode:
    with pytest.raises(ServiceError) as refused:
        await api(name, **values)
    return refused.value.code


PLAN = {"name": "Small", "slug": "small", "vcpus": 1, "memory_mib": 1024, "disk_gib": 10}


async def test_a_plan_is_made_changed_and_removed(database: Database) -> None:
    async with opened(database) as (_, _, administrator, customer):
        plan = await administrator("plan.create", **PLAN)
        assert await code_of(administrator, "plan.create", **PLAN) is ErrorCode.CONFLICT
        for _ in range(2):  # The first answer may have been lost.
            assert (await administrator("plan.update", id=plan.id, memory_mib=2048)).memory_mib == 2048
        assert [each.slug for each in (await customer("plan.list")).items] == ["small"]
        await administrator("plan.update", id=plan.id, enabled=False)
        assert (await customer("plan.list")).items == []
        await administrator("plan.delete", id=plan.id)
        assert await code_of(administrator, "plan.delete", id=plan.id) is ErrorCode.NOT_FOUND


async def test_plans_come_page_by_page_the_smallest_first(database: Database) -> None:
    async with opened(database) as (_, _, administrator, customer):
        for slug, memory_mib, vcpus in (("large", 8192, 4), ("two", 1024, 2), ("one", 1024, 1)):
            await administrator(
                "plan.create", **PLAN | {"slug": slug, "name": slug.title(), "memory_mib": memory_mib, "vcpus": vcpus}
            )
        pages = [await customer("plan.list", page=number, page_size=2) for number in (1, 2)]
        assert [(page.total, page.pages) for page in pages] == [(3, 2), (3, 2)]
        assert [plan.slug for page in pages for plan in page.items] == ["one", "two", "large"]
        assert [plan.slug for plan in (await customer("plan.list", q="LAR")).items] == ["large"]
        assert [plan.slug for plan in (await customer("plan.list", sort="-name")).items] == ["two", "one", "large"]


async def test_a_plan_that_machines_have_stays(database: Database) -> None:
    async with opened(database) as (service, world, administrator, _):
        plan = await administrator("plan.create", **PLAN)
        created = await service.create(world.machine(plan_id=plan.id))
        await service.ended(created.task)
        assert await code_of(administrator, "plan.delete", id=plan.id) is ErrorCode.CONFLICT
        await service.ended(await order("delete")(service.machine(created.vm_id)))
        await administrator("plan.delete", id=plan.id)


async def test_customers_change_nothing_that_is_everybodys(database: Database) -> None:
    async with opened(database) as (_, _, _, customer):
        everybodys = {"network", "pool", "location", "plan"}
        for operation in REGISTRY:
            if operation.subject in everybodys and operation.mutates:
                assert await code_of(customer, operation.name) is ErrorCode.FORBIDDEN


async def test_a_network_with_a_pool_gives_addresses_at_once(database: Database) -> None:
    async with opened(database) as (service, world, administrator, _):
        network = await administrator(
            "network.create", name="second", default=True, pool={"name": "p", "cidr": "10.5.0.0/29"}
        )
        [pool] = network.pools
        assert (pool.gateway, pool.range_start, pool.range_end) == ("10.5.0.1", "10.5.0.1", "10.5.0.6")
        assert (pool.total, pool.free_count, pool.reserved_count, pool.guest_prefix_len) == (6, 5, 1, 32)
        assert {each.name: each.default for each in await administrator("network.list")} == {
            "nat": False,
            "second": True,
        }
        created = await service.create(world.machine())
        assert str(created.address) == "10.5.0.2"
        shown = await administrator("pool.show", id=pool.id)
        assert (shown.allocated_count, shown.free_count, shown.pressure) == (1, 4, pytest.approx(2 / 6, abs=1e-4))
        held = await administrator("pool.allocations", id=pool.id, state="allocated")
        assert [(each.ip, each.vm_name, each.primary) for each in held.items] == [("10.5.0.2", "web", True)]
        assert (await administrator("pool.allocations", id=pool.id)).total == 4


@pytest.mark.parametrize(
    ("pool", "code"),
    [
        ({"cidr": "10.77.5.0/24"}, ErrorCode.CONFLICT),
        ({"cidr": "10.5.0.0/31"}, ErrorCode.INVALID),
        ({"cidr": "fd00::/64", "topology": "nat"}, ErrorCode.INVALID),
        ({"cidr": "10.5.0.0/24", "gateway": "10.6.0.1"}, ErrorCode.INVALID),
        ({"cidr": "10.5.0.0/24", "range_start": "10.5.0.9", "range_end": "10.5.0.3"}, ErrorCode.INVALID),
        ({"cidr": "10.5.0.0/24", "guest_prefix_len": 16}, ErrorCode.INVALID),
        ({"cidr": "10.5.0.0/24", "location_id": str(uuid4())}, ErrorCode.NOT_FOUND),
    ],
)
async def test_a_pool_that_cannot_be_is_refused(database: Database, pool: dict[str, object], code: ErrorCode) -> None:
    async with opened(database) as (_, world, administrator, _):
        assert await code_of(administrator, "network.add_pool", id=world.network_id, name="p", **pool) is code
        assert (await administrator("pool.list")).total == 1


async def test_a_network_is_removed_only_once_nothing_of_it_is_held(database: Database) -> None:
    async with opened(database) as (service, world, administrator, _):
        created = await service.create(world.machine())
        await service.ended(created.task)
        assert await code_of(administrator, "network.delete", id=world.network_id) is ErrorCode.CONFLICT
        await service.ended(await order("delete")(service.machine(created.vm_id)))
        await administrator("network.delete", id=world.network_id)
        assert (await administrator("pool.list")).items == []


async def test_there_is_always_one_default_network(database: Database) -> None:
    async with opened(database) as (_, world, administrator, _):
        assert await code_of(administrator, "network.update", id=world.network_id, default=False) is ErrorCode.CONFLICT
        other = await administrator("network.create", name="other")
        assert not other.default
        assert await code_of(administrator, "network.delete", id=world.network_id) is ErrorCode.CONFLICT
        await administrator("network.update", id=other.id, default=True, mtu=9000)
        assert [(each.name, each.default, each.mtu) for each in await administrator("network.list")] == [
            ("nat", False, 1500),
            ("other", True, 9000),
        ]


async def test_a_location_is_named_once(database: Database) -> None:
    async with opened(database) as (_, _, administrator, customer):
        await administrator("location.create", name="north")
        assert await code_of(administrator, "location.create", name="north") is ErrorCode.CONFLICT
        assert [each.name for each in (await customer("location.list")).items] == ["default", "north"]
        assert [each.name for each in (await customer("location.list", q="NOR")).items] == ["north"]


async def test_an_alert_is_open_once_until_it_is_over(database: Database) -> None:
    async with opened(database) as (_, _, administrator, customer):
        for words in ("full", "full", "very full"):
            async with database.transaction() as tx:
                await raise_alert(tx, "disk:alpha", words)
        [alert] = (await administrator("alert.list")).items
        assert (alert.message, alert.acknowledged_at) == ("very full", None)
        seen = await administrator("alert.ack", id=alert.id)
        assert seen.acknowledged_by == administrator.principal.user_id
        again = await administrator("alert.ack", id=alert.id)
        assert again.acknowledged_at == seen.acknowledged_at
        assert (await customer("alert.list")).total == 0
        assert await code_of(customer, "alert.ack", id=alert.id) is ErrorCode.NOT_FOUND
        async with database.transaction() as tx:
            await close_alert(tx, "disk:alpha")
        assert (await administrator("alert.list")).items == []
        assert await code_of(administrator, "alert.ack", id=alert.id) is ErrorCode.NOT_FOUND


async def test_alerts_come_page_by_page_the_gravest_and_newest_first(database: Database) -> None:
    async with opened(database) as (_, _, administrator, _):
        for key, severity in (("a", "warning"), ("b", "critical"), ("c", "warning"), ("d", "critical")):
            async with database.transaction() as tx:
                await raise_alert(tx, key, f"{key} is so", severity=Severity(severity))
        pages = [await administrator("alert.list", page=number, page_size=3) for number in (1, 2)]
        assert [(page.total, page.pages) for page in pages] == [(4, 2), (4, 2)]
        assert [alert.key for page in pages for alert in page.items] == ["d", "b", "c", "a"]

        async def keys(**asked: str) -> list[str]:
            return [alert.key for alert in (await administrator("alert.list", **asked)).items]

        assert await keys(severity="warning") == ["c", "a"]
        assert await keys(q="B IS") == ["b"]
        assert await keys(sort="opened_at") == ["a", "b", "c", "d"]
        assert await keys(sort="severity") == ["a", "c", "b", "d"]


async def test_an_alert_that_was_closed_long_ago_is_forgotten_and_an_open_one_never(database: Database) -> None:
    ages = {"open": None, "closed": KEPT_DAYS - 1, "long closed": KEPT_DAYS + 1}
    for key, days in ages.items():
        await database.execute(
            """INSERT INTO alerts (key, severity, message, opened_at, closed_at)
               VALUES ($1, 'warning', 'so', now() - interval '1 year', now() - make_interval(days => $2))""",
            key,
            days,
        )
    assert await forget_closed_alerts(database) == 1
    assert {row["key"] for row in await database.fetch("SELECT key FROM alerts")} == {"open", "closed"}


async def test_the_overview_counts_what_the_caller_may_see(database: Database) -> None:
    async with opened(database) as (service, world, administrator, customer):
        other = await database.fetchval("INSERT INTO projects (name) VALUES ('other') RETURNING id")
        for number, project in enumerate((world.project_id, world.project_id, other)):
            created = await service.create(world.machine(f"m{number}", project_id=project))
            await service.ended(created.task)
        whole, own = await administrator("overview.show"), await customer("overview.show")
        assert (whole.vms, own.vms) == ({"running": 3}, {"running": 2})
        assert (whole.nodes, own.nodes, own.capacity) == ({"online": 1}, {}, None)
        assert (whole.capacity.vcpus, whole.capacity.vcpus_used, whole.capacity.memory_used_mib) == (64, 3, 768)


async def test_the_search_finds_by_name_address_and_id_and_shows_nobody_elses(database: Database) -> None:
    async with opened(database) as (service, world, administrator, customer):
        stranger = Api(service, await person(database, Role.CUSTOMER))
        created = await service.create(world.machine("needle"))
        for q in ("EEDL", str(created.address), str(created.vm_id)[:8]):
            first, *_ = await customer("search.find", q=q)
            assert (first.kind, first.id) == ("vm", str(created.vm_id))
            assert not any(each.kind == "vm" for each in await stranger("search.find", q=q))
        assert [each.kind for each in await administrator("search.find", q="alpha")] == ["node"]
        assert await customer("search.find", q="alpha") == []
        assert [each.kind for each in await administrator("search.find", q="administrator-")] == ["user"]
        assert await customer("search.find", q="%") == []


async def test_the_list_of_machines_finds_by_name_and_by_the_beginning_of_an_address(database: Database) -> None:
    async with opened(database) as (service, world, _, customer):
        stranger = Api(service, await person(database, Role.CUSTOMER))
        needle = await service.create(world.machine("needle"))
        await service.create(world.machine("haystack"))

        for q in ("EEDL", str(needle.address)):
            assert [vm.id for vm in (await customer("vm.list", q=q)).items] == [needle.vm_id]
            assert (await stranger("vm.list", q=q)).items == []
        assert (await customer("vm.list", q=str(needle.address).rpartition(".")[0])).total == 2
        assert (await customer("vm.list", q="no-such")).total == 0


async def test_a_search_gives_twenty_at_most(database: Database) -> None:
    async with opened(database) as (_, _, administrator, _):
        await database.execute("INSERT INTO projects (name) SELECT 'p' || n FROM generate_series(1, 3) n")
        await database.execute(
            """INSERT INTO users (email, name, role)
               SELECT 'many' || n || '@example.com', 'x', 'customer' FROM generate_series(1, 40) n"""
        )
        assert len(await administrator("search.find", q="many")) == 20


async def test_a_domain_of_ours_that_nobody_knows_is_pointed_out_until_it_is_gone(database: Database) -> None:
    async with opened(database) as (_, world, administrator, _):
        watch = MachineWatch(database)
        await database.execute(
            """INSERT INTO observed_domains (node_id, uuid, name, vm_id, state, vcpus, memory_mib, seen_at)
               VALUES ($1, $2, 'svc-lost', $2, 'running', 1, 64, now())""",
            world.node_id,
            uuid4(),
        )
        await watch.point_out_orphans()
        [alert] = (await administrator("alert.list")).items
        assert alert.message.startswith("Node alpha has the domain of a machine that is not recorded there: svc-lost.")
        assert (alert.resource_kind, alert.resource_id) == ("node", str(world.node_id))
        await database.execute("DELETE FROM observed_domains")
        await watch.point_out_orphans()
        assert (await administrator("alert.list")).items == []


async def test_a_node_full_of_guests_that_nobody_knows_is_one_alert(database: Database) -> None:
    async with opened(database) as (_, world, administrator, _):
        watch = MachineWatch(database)
        await database.execute(
            """INSERT INTO observed_domains (node_id, uuid, name, vm_id, state, vcpus, memory_mib, seen_at)
               SELECT $1, gen_random_uuid(), 'guest-' || to_char(n, 'FM0000') || repeat('x', 200), gen_random_uuid(),
                      'running', 1, 64, now() FROM generate_series(1, 3000) n""",
            world.node_id,
        )
        await watch.point_out_orphans()
        [alert] = (await administrator("alert.list")).items
        assert alert.message.startswith(
            "Node alpha has 3000 domains of machines that are not recorded there: guest-0001x"
        )
        assert ("and 2995 more" in alert.message, len(alert.message) < 600) == (True, True)
        await administrator("alert.ack", id=alert.id)
        await database.execute("DELETE FROM observed_domains WHERE name LIKE 'guest-0001%'")
        await watch.point_out_orphans()
        [alert] = (await administrator("alert.list")).items
        assert (alert.acknowledged_at is not None, " 2999 domains" in alert.message) == (True, True)


async def test_where_an_image_comes_from_is_for_administrators(database: Database) -> None:
    async with opened(database) as (_, _, administrator, customer):
        await administrator(
            "image.create",
            slug="private",
            name="Private",
            distribution="debian",
            release="12",
            login_user="debian",
            url="https://user:secret@images.example/debian.qcow2",
            digest="0" * 64,
        )

        [seen] = [image for image in await customer("image.list") if image.slug == "private"]
        [whole] = [image for image in await administrator("image.list") if image.slug == "private"]

        assert (seen.url, seen.checksum_url) == (None, None)
        assert whole.url == "https://user:secret@images.example/debian.qcow2"


async def test_nothing_is_pulled_onto_a_node_that_is_only_observed(database: Database) -> None:
    async with opened(database) as (_, world, administrator, _):
        await database.execute("UPDATE nodes SET mode = 'observe'")

        refused = await code_of(administrator, "image.pull", id=world.image_id, node_id=world.node_id)

        assert refused is ErrorCode.CONFLICT
        assert await database.fetchval("SELECT count(*) FROM tasks") == 0


async def test_a_customer_reads_the_alerts_of_their_own_machines_in_words_of_their_own(database: Database) -> None:
    async with opened(database) as (service, world, administrator, customer):
        stranger = Api(service, await person(database, Role.CUSTOMER))
        async with database.transaction() as tx:
            await raise_alert(tx, "disk:alpha", "The disk of alpha is full.")
            told = CustomerNotice(world.project_id, "Its host is behind.")
            await raise_alert(tx, "network:web", "Node alpha refuses pool nat.", notice=told)

        [seen] = (await customer("alert.list")).items
        acknowledged = await customer("alert.ack", id=seen.id)
        [whole] = (await administrator("alert.list", q="refuses")).items

        assert (seen.message, seen.acknowledged_at) == ("Its host is behind.", None)
        assert acknowledged.acknowledged_by == customer.principal.user_id
        assert (whole.message, whole.acknowledged_at) == ("Node alpha refuses pool nat.", None)
        assert (await customer("alert.list", q="alpha")).total == 0
        assert [(await each("overview.show")).alerts for each in (administrator, customer, stranger)] == [2, 1, 0]
        assert (await stranger("alert.list")).total == 0
        assert await code_of(stranger, "alert.ack", id=seen.id) is ErrorCode.NOT_FOUND


async def test_the_event_of_an_alert_that_a_customer_may_see_holds_their_words_alone(database: Database) -> None:
    world = await make_fleet(database)
    async with database.transaction() as tx:
        told = CustomerNotice(world.project_id, "Its host is behind.")
        await raise_alert(tx, "network:web", "Node alpha refuses pool nat.", notice=told)
    rows = await database.fetch("SELECT * FROM event_inbox WHERE kind = 'alert' ORDER BY id")

    assert [(row["administrators_only"], row["project_id"], row["payload"]["message"]) for row in rows] == [
        (True, None, "Node alpha refuses pool nat."),
        (False, world.project_id, "Its host is behind."),
    ]
    assert "alpha" not in str(rows[1]["payload"])
