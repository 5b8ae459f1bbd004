"""The machines' part of the API: who may do what, what is refused, what is shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import trio
from passlib.hash import sha512_crypt  # type: ignore[import-untyped]
from pydantic import ValidationError

from svc.controller.passwords import check_password
from svc.registry.principal import Role
from svc_actors.controller.gateway import OperationFailed
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import Database
from svc_nodeagent.protocol import FailureCode, VmCreate, VmSetPassword
from tests.controller.machines.api import REGISTRY, Api, person
from tests.controller.machines.service import FakeGateway, Service, World, make_world, open_service

PASSWORD = "Correct-Horse-7"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGm2s8Z7p0S0u6mN0cY3m1Wc5v4w5n0cW0b1y2x3z4A5 me@home"


@dataclass
class Stage:
    service: Service
    world: World
    administrator: Api
    staff: Api
    customer: Api
    stranger: Api
    plan_id: str

    def order(self, **changes: object) -> dict[str, Any]:
        values: dict[str, Any] = {
            "name": "web",
            "project_id": self.world.project_id,
            "image_id": self.world.image_id,
            "plan_id": self.plan_id,
            "ssh_keys": [KEY],
        }
        return {name: value for name, value in (values | changes).items() if value is not None}

    async def created(self, api: Api | None = None, **changes: object) -> Any:
        answer = await (api or self.customer)("vm.create", **self.order(**changes))
        await self.service.ended(answer.task.id)
        return answer


@asynccontextmanager
async def stage(database: Database) -> AsyncIterator[Stage]:
    world = await make_world(database)
    plan = await database.fetchval(
        """INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ('S', 's', 1, 256, 1) RETURNING id"""
    )
    async with open_service(database, FakeGateway()) as service:

        async def api(role: Role, *projects: Any) -> Api:
            return Api(service, await person(database, role, projects=projects))

        yield Stage(
            service,
            world,
            administrator=await api(Role.ADMINISTRATOR),
            staff=await api(Role.STAFF),
            customer=await api(Role.CUSTOMER, world.project_id),
            stranger=await api(Role.CUSTOMER),
            plan_id=plan,
        )


async def refusal(api: Api, name: str, /, **values: object) -> ServiceError:
    with pytest.raises(ServiceError) as refused:
        await api(name, **values)
    return refused.value


async def test_a_customer_orders_a_machine_and_sees_it_run(database: Database) -> None:
    async with stage(database) as now:
        answer = await now.created(set_password=PASSWORD)
        assert answer.password_chosen
        assert answer.password is None
        assert PASSWORD not in answer.model_dump_json()
        vm = await now.customer("vm.show", id=answer.vm.id)
        assert (vm.status, vm.user, vm.hostname, vm.vcpus) == ("running", "debian", "web", 1)
        assert vm.primary_ip == vm.addresses[0].ip
        assert (vm.node_id, vm.node_name) == (None, None)
        assert (await now.staff("vm.show", id=answer.vm.id)).node_name == "alpha"


async def test_a_chosen_password_reaches_the_guest_as_its_crypt_and_is_stored_nowhere(database: Database) -> None:
    async with stage(database) as now:
        await now.created(set_password=PASSWORD)
        [asked] = [operation for operation in now.service.gateway.asked if isinstance(operation, VmCreate)]
        account = asked.machine.seed.account
        assert sha512_crypt.verify(PASSWORD, account.password_hash)
        assert (account.name, account.sudo, account.ssh_keys) == ("debian", True, (KEY,))
        for table in ("vms", "tasks", "task_events", "audit", "event_inbox", "event", "idempotency_keys"):
            rows = await database.fetch(f"SELECT row_to_json(t)::text AS text FROM {table} t")
            assert not any(PASSWORD in row["text"] for row in rows)


async def test_a_generated_password_fits_the_policy_and_is_given_once(database: Database) -> None:
    async with stage(database) as now:
        answer = await now.created(password=True, access_mode="root_password", ssh_keys=[])
        check_password(answer.password, ("root",))
        assert answer.user == "root"
        [asked] = [operation for operation in now.service.gateway.asked if isinstance(operation, VmCreate)]
        assert sha512_crypt.verify(answer.password, asked.machine.seed.account.password_hash)
        assert answer.password not in (await now.customer("vm.show", id=answer.vm.id)).model_dump_json()


@pytest.mark.parametrize(
    "password",
    [
        "Short-1",
        "alllowercaseletters",
        "ALLUPPERCASE1234",
        "With Space-123",
        "Ümlaut-Password-1",
        "x-Debian-pass-1",
        "A1-" + "x" * 126,
    ],
)
async def test_a_password_that_breaks_the_policy_is_refused(database: Database, password: str) -> None:
    async with stage(database) as now:
        refused = await refusal(now.customer, "vm.create", **now.order(set_password=password))
        assert refused.code is ErrorCode.INVALID
        assert password not in str(refused.message)
        assert await database.fetchval("SELECT count(*) FROM vms") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"access_mode": "root_password"},
        {"access_mode": "root_key", "ssh_keys": []},
        {"access_mode": "root_key", "password": True},
        {"ssh_keys": []},
        {"ssh_keys": ["not a key"]},
        {"ssh_keys": [KEY + "\nssh-ed25519 AAAA second"]},
        {"plan_id": None},
        {"vcpus": 2},
        {"image_id": None},
        {"image": "demo"},
    ],
)
async def test_an_order_that_makes_no_sense_is_invalid(database: Database, changes: dict[str, object]) -> None:
    async with stage(database) as now:
        assert (await refusal(now.customer, "vm.create", **now.order(**changes))).code is ErrorCode.INVALID
        assert await database.fetchval("SELECT count(*) FROM vms") == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"access_mode": "everything"},
        {"name": "-web"},
        {"name": "a" * 64},
        {"hostname": "web_1"},
        {"surprise": 1},
        {"idempotency_key": ""},
    ],
)
async def test_a_malformed_order_is_refused_before_it_is_looked_at(
    database: Database, changes: dict[str, object]
) -> None:
    async with stage(database) as now:
        with pytest.raises(ValidationError):
            await now.customer("vm.create", **now.order(**changes))


@pytest.mark.parametrize("what", ["image_id", "plan_id", "project_id", "ssh_key_ids"])
async def test_an_order_that_names_what_is_not_there_is_not_found(database: Database, what: str) -> None:
    async with stage(database) as now:
        absent: Any = [uuid4()] if what == "ssh_key_ids" else uuid4()
        assert (await refusal(now.customer, "vm.create", **now.order(**{what: absent}))).code is ErrorCode.NOT_FOUND


async def test_only_administrators_name_the_node(database: Database) -> None:
    async with stage(database) as now:
        wanted = now.order(node_id=now.world.node_id)
        assert (await refusal(now.customer, "vm.create", **wanted)).code is ErrorCode.FORBIDDEN
        assert (await refusal(now.staff, "vm.create", **wanted)).code is ErrorCode.FORBIDDEN
        assert (await now.created(now.administrator, **wanted)).vm.node_id == now.world.node_id


async def test_staff_choose_sizes_where_customers_choose_a_plan(database: Database) -> None:
    async with stage(database) as now:
        sizes = {"plan_id": None, "vcpus": 2, "memory_mib": 512, "disk_gib": 3}
        assert (await refusal(now.customer, "vm.create", **now.order(**sizes))).code is ErrorCode.INVALID
        vm = (await now.created(now.staff, **sizes)).vm
        assert (vm.vcpus, vm.memory_mib, vm.disk_gib) == (2, 512, 3)


async def test_a_name_is_used_once_in_a_project_and_again_after_deletion(database: Database) -> None:
    async with stage(database) as now:
        first = await now.created()
        assert (await refusal(now.customer, "vm.create", **now.order())).code is ErrorCode.CONFLICT
        gone = await now.customer("vm.delete", id=first.vm.id, confirm="web", destroy_disks=True)
        await now.service.ended(gone.id)
        assert (await now.created()).vm.id != first.vm.id


async def test_an_image_without_a_digest_makes_no_machine(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("UPDATE images SET digest = NULL")
        assert (await refusal(now.customer, "vm.create", **now.order())).code is ErrorCode.NOT_READY


async def test_100_concurrent_orders_with_one_key_make_one_machine_and_one_answer(database: Database) -> None:
    async with stage(database) as now:
        answers: list[Any] = []

        async def one() -> None:
            api = Api(now.service, now.customer.principal)
            answers.append(await api("vm.create", **now.order(password=True, idempotency_key="order-1")))

        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(one)
        assert await database.fetchval("SELECT count(*) FROM vms") == 1
        assert sum(not answer.replayed for answer in answers) == 1
        assert len({(answer.vm.id, answer.task.id, answer.password) for answer in answers}) == 1
        other = await refusal(
            now.customer, "vm.create", **now.order(name="other", password=True, idempotency_key="order-1")
        )
        assert other.code is ErrorCode.CONFLICT


async def test_a_replay_says_so_with_200(database: Database) -> None:
    async with stage(database) as now:
        await now.created(idempotency_key="k")
        assert now.customer.effects.status is None
        assert (await now.created(idempotency_key="k")).replayed
        assert now.customer.effects.status == 200


async def test_an_answer_lost_in_a_crash_is_found_by_its_key(database: Database) -> None:
    async with stage(database) as now:
        now.service.gateway.answers["vm.create"] = _never
        first = await now.customer("vm.create", **now.order(password=True, idempotency_key="k"))
        await database.execute("DELETE FROM idempotency_keys")
        again = await now.customer("vm.create", **now.order(password=True, idempotency_key="k"))
        assert (again.vm.id, again.task.id, again.password) == (first.vm.id, first.task.id, first.password)
        assert again.replayed
        assert await database.fetchval("SELECT count(*) FROM vms") == 1


async def test_a_key_counts_for_a_day(database: Database) -> None:
    async with stage(database) as now:
        first = await now.created(idempotency_key="k")
        await database.execute("DELETE FROM idempotency_keys")
        await database.execute("UPDATE vms SET created_at = now() - interval '25 hours'")
        second = await now.created(name="web-2", idempotency_key="k")
        assert second.vm.id != first.vm.id


async def test_a_refused_order_may_be_tried_again_with_its_key(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("UPDATE nodes SET maintenance = true")
        assert (await refusal(now.customer, "vm.create", **now.order(idempotency_key="k"))).code is ErrorCode.CAPACITY
        await database.execute("UPDATE nodes SET maintenance = false")
        assert not (await now.created(idempotency_key="k")).replayed


async def test_a_customer_learns_nothing_about_nodes_from_a_refusal(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("UPDATE nodes SET maintenance = true")
        refused = await refusal(now.customer, "vm.create", **now.order())
        assert (refused.code, refused.details) == (ErrorCode.CAPACITY, None)


BY_ID = [
    ("vm.show", {}),
    ("vm.update", {"name": "x"}),
    ("vm.delete", {"confirm": "web"}),
    ("vm.start", {}),
    ("vm.shutdown", {}),
    ("vm.reboot", {}),
    ("vm.force-stop", {"confirm": "web"}),
    ("vm.reset", {"confirm": "web"}),
    ("vm.tasks", {}),
    ("vm.activity", {}),
    ("vm.metrics", {}),
    ("vm.reset-password", {}),
]


@pytest.mark.parametrize(("name", "values"), BY_ID)
async def test_somebody_elses_machine_is_not_found(database: Database, name: str, values: dict[str, Any]) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        foreign = await refusal(now.stranger, name, id=vm_id, **values)
        absent = await refusal(now.customer, name, id=uuid4(), **values)
        assert (
            (foreign.code, foreign.message)
            == (absent.code, absent.message)
            == (
                ErrorCode.NOT_FOUND,
                "There is no such machine.",
            )
        )
        assert (await now.customer("vm.show", id=vm_id)).status == "running"


async def test_somebody_elses_task_is_not_found(database: Database) -> None:
    async with stage(database) as now:
        task_id = (await now.created()).task.id
        for name in ("task.show", "task.log", "task.cancel"):
            assert (await refusal(now.stranger, name, id=task_id)).code is ErrorCode.NOT_FOUND
        assert (await now.stranger("task.list")).total == 0
        assert (await now.customer("task.list")).items[0].id == task_id


@pytest.mark.parametrize("name", ["vm.delete", "vm.force-stop", "vm.reset"])
async def test_what_cannot_be_undone_needs_the_machines_name(database: Database, name: str) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        assert (await refusal(now.customer, name, id=vm_id, confirm="WEB")).code is ErrorCode.INVALID
        with pytest.raises(ValidationError):
            await now.customer(name, id=vm_id)
        assert await now.service.status(vm_id) == "running"


async def test_a_machine_on_an_offline_node_is_shown_as_unknown(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await database.execute("UPDATE nodes SET state = 'offline'")
        assert (await now.customer("vm.show", id=vm_id)).status == "unknown"
        assert (await now.customer("vm.list", status="unknown")).total == 1
        assert (await now.customer("vm.list", status="running")).total == 0
        await database.execute("UPDATE nodes SET state = 'online'")
        assert (await now.customer("vm.show", id=vm_id)).status == "running"


async def test_the_list_pages_filters_and_sorts(database: Database) -> None:
    async with stage(database) as now:
        for name in ("c", "a", "b"):
            await now.created(name=name)
        page = await now.customer("vm.list", sort="name", page_size=2)
        assert ([vm.name for vm in page.items], page.total, page.pages) == (["a", "b"], 3, 2)
        assert [vm.name for vm in (await now.customer("vm.list", sort="-name", page=2, page_size=2)).items] == ["a"]
        assert [vm.name for vm in (await now.customer("vm.list")).items] == ["b", "a", "c"]
        assert [vm.name for vm in (await now.customer("vm.list", q="B")).items] == ["b"]
        assert (await now.customer("vm.list", status="stopped")).total == 0
        assert (await now.staff("vm.list", node=now.world.node_id)).total == 3
        assert (await now.staff("vm.list", node=uuid4())).total == 0
        assert (await now.staff("vm.list", project=now.world.project_id)).total == 3
        assert (await now.customer("vm.list", node=now.world.node_id)).total == 0
        assert (await now.stranger("vm.list")).total == 0
        assert (await refusal(now.customer, "vm.list", sort="password")).code is ErrorCode.INVALID


async def test_a_machines_tasks_and_activity_are_its_own(database: Database) -> None:
    async with stage(database) as now:
        first, _ = await now.created(name="a"), await now.created(name="b")
        stopped = await now.customer("vm.shutdown", id=first.vm.id)
        await now.service.ended(stopped.id)
        tasks = await now.customer("vm.tasks", id=first.vm.id)
        assert [task.op for task in tasks.items] == ["vm.shutdown", "vm.create"]
        activity = await now.customer("vm.activity", id=first.vm.id)
        assert [entry.operation for entry in activity.items] == ["vm.shutdown", "vm.create"]


async def test_a_customer_renames_a_machine_and_does_not_resize_it(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        assert (await now.customer("vm.update", id=vm_id, name="db")).name == "db"
        assert (await refusal(now.customer, "vm.update", id=vm_id, vcpus=8)).code is ErrorCode.FORBIDDEN
        assert (await refusal(now.customer, "vm.update", id=vm_id, name="db")).code is ErrorCode.INVALID


async def test_a_password_is_set_through_the_guest_and_kept_nowhere(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        chosen = await now.customer("vm.reset-password", id=vm_id, password=PASSWORD)
        assert (chosen.user, chosen.chosen, chosen.password) == ("debian", True, None)
        await now.service.ended(chosen.task_id)
        generated = await now.customer("vm.reset-password", id=vm_id)
        await now.service.ended(generated.task_id)
        first, second = [asked for asked in now.service.gateway.asked if isinstance(asked, VmSetPassword)]
        assert sha512_crypt.verify(PASSWORD, first.password_hash)
        assert sha512_crypt.verify(generated.password, second.password_hash)
        assert (await now.service.vm(vm_id))["sealed_seed"] is None
        assert await now.service.status(vm_id) == "running"


async def test_a_silent_guest_agent_fails_the_password_as_not_ready(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        now.service.gateway.answers["vm.set_password"] = _silent
        answer = await now.customer("vm.reset-password", id=vm_id)
        task = await now.service.ended(answer.task_id)
        assert (task.status, task.error_code) == ("failed", ErrorCode.NOT_READY)
        assert await now.service.status(vm_id) == "running"


async def test_a_stopped_machine_takes_no_password(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(start=False)).vm.id
        assert (await refusal(now.customer, "vm.reset-password", id=vm_id)).code is ErrorCode.CONFLICT


async def test_metrics_of_a_machine_on_an_offline_node_are_unavailable(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        assert (await refusal(now.customer, "vm.metrics", id=vm_id)).code is ErrorCode.UNAVAILABLE


def test_only_the_start_is_open_to_a_support_session() -> None:
    assert [operation.name for operation in REGISTRY if operation.in_support_session] == ["vm.start"]


async def _never(*_: object) -> Any:
    await trio.sleep_forever()


async def _silent(*_: object) -> Any:
    raise OperationFailed(FailureCode.TIMED_OUT, "the guest agent did not answer", None)
