"""POST /vms: what is ordered, what is refused, and one machine however often one order comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from passlib.hash import sha512_crypt  # type: ignore[import-untyped]
from pydantic import ValidationError

import svc_actors
from svc.identity.passwords import check_password
from svc_actors.controller.networking.security_groups import create_group
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.protocol import Action, VmCreate
from tests.support.machine_api import Api
from tests.support.machines import KEY, PASSWORD, refusal, stage


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


async def test_a_machine_is_in_its_groups_from_its_first_packet(database: Database) -> None:
    async with stage(database) as now:
        group_id = await security_group(database, now.world.project_id)
        await now.created(security_group_ids=[group_id])
        [asked] = [operation for operation in now.service.gateway.asked if isinstance(operation, VmCreate)]
        firewall = asked.machine.network.firewall
        assert firewall is not None
        assert firewall.default_ingress is Action.DROP


async def test_a_machine_in_a_foreign_group_is_not_made(database: Database) -> None:
    async with stage(database) as now:
        foreign = await database.fetchval("INSERT INTO projects (name) VALUES ('other') RETURNING id")
        group_id = await security_group(database, foreign)
        refused = await refusal(now.customer, "vm.create", **now.order(security_group_ids=[group_id]))
        assert refused.code is ErrorCode.NOT_FOUND
        assert await database.fetchval("SELECT count(*) FROM vms") == 0


async def security_group(database: Database, project_id: UUID | str) -> str:
    async with database.transaction() as tx:
        row = await create_group(
            tx,
            name="web",
            description="",
            project_id=UUID(str(project_id)),
            default_ingress=Action.DROP,
            default_egress=Action.ACCEPT,
        )
    return str(row["id"])


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
        assert "set_password" in str(refused.details)
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
        {"hostname": "a" * 63 + ".b"},
        {"hostname": "1.2.3.4"},
        {"hostname": "2024"},
        {"hostname": "localhost"},
        {"hostname": "web.localhost"},
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


@pytest.mark.parametrize(
    ("name", "hostname"),
    [
        ("Web_1.Example", "web-1.example"),
        ("1.2.3.4", "machine-1-2-3-4"),
        ("2024", "machine-2024"),
        ("localhost", "machine-localhost"),
        ("a" * 63, "a" * 63),
        ("1" * 63, f"machine-{'1' * 55}"),
    ],
)
async def test_a_machines_name_makes_a_host_name_that_is_no_address(
    database: Database, name: str, hostname: str
) -> None:
    async with stage(database) as now:
        answer = await now.created(name=name)
        assert answer.vm.hostname == hostname


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


async def test_who_has_lost_the_project_is_not_told_the_answer_again(database: Database) -> None:
    async with stage(database) as now:
        order = now.order(password=True, idempotency_key="k")
        assert (await now.customer("vm.create", **order)).password
        await database.execute("DELETE FROM project_members")

        assert (await refusal(now.customer, "vm.create", **order)).code is ErrorCode.NOT_FOUND

        await database.execute("DELETE FROM idempotency_keys")
        assert (await refusal(now.customer, "vm.create", **order)).code is ErrorCode.NOT_FOUND


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


async def _never(*_: object) -> Any:
    await trio.sleep_forever()


async def test_a_windows_machine_has_its_administrator_account_and_no_access_mode(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("UPDATE images SET os_family = 'windows'")

        refused = await refusal(now.customer, "vm.create", **now.order(access_mode="user_sudo"))
        made = await now.created(ssh_keys=[])

        assert refused.code is ErrorCode.INVALID
        assert refused.message.startswith("access_mode: ")
        assert (made.user, made.vm.user, made.vm.access_mode) == ("Administrator", "Administrator", None)


async def test_parallel_orders_of_customers_never_make_more_machines_than_the_project_may_have(
    database: Database,
) -> None:
    async with stage(database) as now:
        await now.administrator("settings.update", most_machines=3)
        made, refused = [], []

        async def create(number: int) -> None:
            try:
                made.append(await now.customer("vm.create", **now.order(name=f"m{number}")))
            except ServiceError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(create, number)
        assert (len(made), len(refused)) == (3, 7)
        assert await database.fetchval("SELECT count(*) FROM vms") == 3
        assert {error.code for error in refused} == {ErrorCode.CAPACITY}
        assert refused[0].message == "The project has 3 machines, and may have 3; nothing was created."
        assert refused[0].details == {"limit": 3}
        for answer in made:
            await now.service.ended(answer.task.id)

        # Staff and administrators are not bound by it; what they make counts
        for number, operator in enumerate((now.staff, now.administrator)):
            await now.created(operator, name=f"theirs-{number}")
        # A place is free again once a machine is deleted, but not while there are more than the limit
        for answer, name in zip(made, ("m", "m", "again"), strict=True):
            assert (await refusal(now.customer, "vm.create", **now.order(name=name))).code is ErrorCode.CAPACITY
            task = await now.customer("vm.delete", id=answer.vm.id, confirm=answer.vm.name)
            await now.service.ended(task.id)
        await now.created(name="again")

        await now.administrator("settings.update", most_machines=0)
        forbidden = await refusal(now.customer, "vm.create", **now.order(name="none"))
        assert (forbidden.code, forbidden.details) == (ErrorCode.CAPACITY, {"limit": 0})


def test_each_module_that_makes_machines_is_known_to_ask_for_the_limit() -> None:
    """`create_machine` asks for it; adoption takes machines over that run already, and is an administrator's."""
    modules = Path(svc_actors.__file__).parent.rglob("*.py")
    assert {path.name for path in modules if "INSERT INTO vms " in path.read_text()} == {"creation.py", "adoption.py"}
