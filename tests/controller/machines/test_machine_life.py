"""A machine from its creation to its removal, and what moves it in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import NoReturn, cast
from uuid import UUID

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.changes import Changes
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.states import Order
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.tasks.runner import Task, TaskRunner, TaskStatus
from svc_actors.runtime import ActorSystem
from svc_actors.runtime.actor import Ref
from svc_actors.sealing import Sealer
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError, unavailable
from svc_nodeagent.protocol import DeleteResult, DomainState, FailureCode, OperationResult, VmCreate
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_service import FakeGateway, Fleet, Service, make_fleet, open_service


def order(name: str) -> Callable[[Ref[Machine]], Awaitable[Task]]:
    if name == "delete":
        return lambda machine: machine.ask(Machine.delete, ADMINISTRATOR, destroy_disks=True)
    return lambda machine: machine.ask(Machine.order, ADMINISTRATOR, Order(name))


@asynccontextmanager
async def running_machine(database: Database) -> AsyncIterator[tuple[Service, UUID, Fleet]]:
    world = await make_fleet(database)
    async with open_service(database, FakeGateway()) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        yield service, created.vm_id, world


def refuse(code: FailureCode, message: str = "the host said no") -> Callable[..., Awaitable[OperationResult]]:
    async def answer(*_: object) -> NoReturn:
        raise OperationFailed(code, message, None)

    return answer


async def silence(*_: object) -> NoReturn:
    await trio.sleep_forever()


async def test_a_machine_is_built_and_runs_once_its_host_says_so(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        task = await service.ended(created.task)
        assert (task.status, task.progress) == ("succeeded", 100)
        assert await service.status(created.vm_id) == "running"
        [asked] = [operation for operation in gateway.asked if isinstance(operation, VmCreate)]
        [nic] = asked.machine.network.nics
        assert str(nic.addresses[0].interface) == f"{created.address}/32"
        assert nic.mac.startswith("52:54:00:")


async def test_a_machine_made_without_a_start_is_stopped(database: Database) -> None:
    world = await make_fleet(database)
    async with open_service(database, FakeGateway()) as service:
        created = await service.create(world.machine(start=False))
        await service.ended(created.task)
        assert await service.status(created.vm_id) == "stopped"


async def test_a_creation_that_fails_says_why_and_can_be_deleted(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    gateway.answers["vm.create"] = refuse(FailureCode.HOST, "no space left on the host")
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        task = await service.ended(created.task)
        assert (task.status, task.error_code) == ("failed", ErrorCode.UNAVAILABLE)
        vm = await service.vm(created.vm_id)
        assert (vm["status"], vm["status_reason"]) == ("failed", "Creation failed: no space left on the host")
        gateway.addresses[created.vm_id] = (str(created.address),)
        await service.ended(await order("delete")(service.machine(created.vm_id)))
        assert await database.fetchval("SELECT count(*) FROM allocations WHERE vm_id IS NOT NULL") == 0


async def test_a_secret_of_the_first_boot_is_gone_once_it_was_used(database: Database) -> None:
    world = await make_fleet(database)
    async with open_service(database, FakeGateway()) as service:
        created = await service.create(world.machine(password_hash="$6$salt$hash"))
        assert (await service.vm(created.vm_id))["sealed_seed"] is not None
        await service.ended(created.task)
        assert (await service.vm(created.vm_id))["sealed_seed"] is None
        [asked] = [operation for operation in service.gateway.asked if isinstance(operation, VmCreate)]
        assert asked.machine.seed.account.password_hash == "$6$salt$hash"
        assert "$6$salt$hash" not in repr(asked)


@pytest.mark.parametrize(
    ("orders", "status"),
    [
        (["shutdown"], "stopped"),
        (["shutdown", "start"], "running"),
        (["reboot"], "running"),
        (["reset"], "running"),
        (["force_stop"], "stopped"),
        (["force_stop", "start", "reboot", "shutdown"], "stopped"),
        (["delete"], "deleted"),
        (["shutdown", "delete"], "deleted"),
    ],
)
async def test_orders_lead_where_they_say(database: Database, orders: list[str], status: str) -> None:
    async with running_machine(database) as (service, vm_id, _):
        for name in orders:
            task = await service.ended(await order(name)(service.machine(vm_id)))
            assert task.status is TaskStatus.SUCCEEDED
        assert await service.status(vm_id) == status


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ([], "start"),
        (["shutdown"], "shutdown"),
        (["shutdown"], "reboot"),
        (["shutdown"], "reset"),
        (["shutdown"], "force_stop"),
    ],
)
async def test_an_order_that_does_not_fit_is_refused_and_changes_nothing(
    database: Database, before: list[str], refused: str
) -> None:
    async with running_machine(database) as (service, vm_id, _):
        for name in before:
            await service.ended(await order(name)(service.machine(vm_id)))
        status, tasks = await service.status(vm_id), await database.fetchval("SELECT count(*) FROM tasks")
        with pytest.raises(ServiceError) as refusal:
            await order(refused)(service.machine(vm_id))
        assert refusal.value.code is ErrorCode.CONFLICT
        assert await service.status(vm_id) == status
        assert await database.fetchval("SELECT count(*) FROM tasks") == tasks


@pytest.mark.parametrize("name", ["start", "shutdown", "reboot", "reset", "delete"])
async def test_a_busy_machine_takes_one_order_at_a_time(database: Database, name: str) -> None:
    async with running_machine(database) as (service, vm_id, _):
        service.gateway.answers["vm.shutdown"] = silence
        under_way = await order("shutdown")(service.machine(vm_id))
        with pytest.raises(ServiceError) as refusal:
            await order(name)(service.machine(vm_id))
        assert refusal.value.code is ErrorCode.NOT_READY
        assert refusal.value.details == {"task_id": str(under_way.id), "op": "vm.shutdown"}


async def test_a_guest_that_ignores_the_shutdown_is_left_running(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        service.gateway.answers["vm.shutdown"] = refuse(FailureCode.TIMED_OUT, "the guest still runs after 90 s")
        task = await service.ended(await order("shutdown")(service.machine(vm_id)))
        assert (task.status, task.error_code) == ("failed", ErrorCode.NOT_READY)
        assert await service.status(vm_id) == "running"


async def test_what_a_guest_does_by_itself_is_recorded(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, world):
        machine = service.machine(vm_id)
        assert await machine.ask(Machine.observed, world.node_id, DomainState.STOPPED, "shutdown")
        assert await service.status(vm_id) == "stopped"
        assert await machine.ask(Machine.observed, world.node_id, DomainState.RUNNING, "booted")
        assert await service.status(vm_id) == "running"
        await machine.ask(Machine.observed, world.node_id, DomainState.CRASHED, "panic")
        vm = await service.vm(vm_id)
        assert (vm["status"], vm["status_reason"]) == ("stopped", "The guest crashed: panic. It is started again.")


async def test_a_machine_that_its_host_lost_is_failed_until_it_is_seen_again(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, world):
        await service.machine(vm_id).ask(Machine.observed, world.node_id, DomainState.ABSENT, "inventory")
        vm = await service.vm(vm_id)
        assert (vm["status"], vm["status_reason"]) == ("failed", "The host no longer has the machine.")
        await service.machine(vm_id).ask(Machine.observed, world.node_id, DomainState.RUNNING, "inventory")
        vm = await service.vm(vm_id)
        assert (vm["status"], vm["status_reason"]) == ("running", None)


async def test_a_machine_that_was_never_built_does_not_rise_by_a_late_word(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    gateway.answers["vm.create"] = refuse(FailureCode.HOST)
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        await service.machine(created.vm_id).ask(Machine.observed, world.node_id, DomainState.RUNNING, "late")
        assert await service.status(created.vm_id) == "failed"


async def test_another_node_has_no_say_about_a_machine(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, world):
        said = await service.machine(vm_id).ask(Machine.observed, world.pool_id, DomainState.STOPPED, "lie")
        assert said is False
        assert await service.status(vm_id) == "running"


async def test_an_inventory_does_not_undo_what_was_heard_after_it_was_asked_for(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, world):
        before = datetime.now(UTC) - timedelta(minutes=1)
        await service.machine(vm_id).ask(
            Machine.observed, world.node_id, DomainState.STOPPED, "inventory", asked_at=before
        )
        assert await service.status(vm_id) == "running"


async def test_a_reboot_is_not_seen_as_a_stop(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, world):
        seen: list[str] = []

        async def reboot(gateway: FakeGateway, node_id: UUID, _: object, operation: object) -> OperationResult:
            await service.machine(vm_id).ask(Machine.observed, world.node_id, DomainState.STOPPED, "shutdown")
            seen.append(await service.status(vm_id))
            return gateway.obey(operation)  # type: ignore[arg-type]

        service.gateway.answers["vm.reboot"] = reboot
        await service.ended(await order("reboot")(service.machine(vm_id)))
        assert seen == ["rebooting"]
        assert await service.status(vm_id) == "running"


async def test_a_size_changes_only_while_the_machine_is_off(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        machine = service.machine(vm_id)
        with pytest.raises(ServiceError) as refusal:
            await machine.ask(Machine.update, ADMINISTRATOR, Changes(vcpus=2))
        assert refusal.value.code is ErrorCode.CONFLICT
        await service.ended(await order("shutdown")(machine))
        await service.ended(await machine.ask(Machine.update, ADMINISTRATOR, Changes(vcpus=2, name="db")))
        vm = await service.vm(vm_id)
        assert (vm["name"], vm["vcpus"], vm["status"]) == ("db", 2, "stopped")


async def test_a_change_that_the_host_refuses_is_taken_back(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        service.gateway.answers["vm.update"] = refuse(FailureCode.HOST)
        machine = service.machine(vm_id)
        await service.ended(await machine.ask(Machine.update, ADMINISTRATOR, Changes(name="db")))
        assert (await service.vm(vm_id))["name"] == "web"


async def test_a_machine_does_not_outgrow_its_node(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        machine = service.machine(vm_id)
        await service.ended(await order("shutdown")(machine))
        with pytest.raises(ServiceError) as refusal:
            await machine.ask(Machine.update, ADMINISTRATOR, Changes(memory_mib=10**6))
        assert refusal.value.code is ErrorCode.CAPACITY
        assert (await service.vm(vm_id))["memory_mib"] == 256


async def test_a_deleted_machine_leaves_no_address_behind(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        assert (await service.ended(await order("delete")(service.machine(vm_id)))).status == "succeeded"
        assert (await service.vm(vm_id))["deleted_at"] is not None
        assert await database.fetchval("SELECT count(*) FROM allocations WHERE vm_id IS NOT NULL") == 0


async def test_an_address_that_the_node_did_not_name_stays_releasing(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):

        async def forget(_: FakeGateway, *__: object) -> OperationResult:
            return DeleteResult(vm_id=vm_id, removed_addresses=(), retained_disks=())

        service.gateway.answers["vm.delete"] = forget
        await service.ended(await order("delete")(service.machine(vm_id)))
        rows = await database.fetch("SELECT state FROM allocations WHERE vm_id = $1", vm_id)
        assert [row["state"] for row in rows] == ["releasing"]


async def test_a_deletion_that_fails_leaves_the_machine_with_its_address(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        service.gateway.answers["vm.delete"] = refuse(FailureCode.HOST)
        await service.ended(await order("delete")(service.machine(vm_id)))
        assert await service.status(vm_id) == "running"
        rows = await database.fetch("SELECT state FROM allocations WHERE vm_id = $1", vm_id)
        assert [row["state"] for row in rows] == ["allocated"]


async def test_every_order_leaves_an_audit_row_and_every_change_an_event(database: Database) -> None:
    async with running_machine(database) as (service, vm_id, _):
        await service.ended(await order("shutdown")(service.machine(vm_id)))
        audited = await database.fetch("SELECT details FROM audit WHERE target_id = $1 ORDER BY id", str(vm_id))
        assert len(audited) == 2
        rows = await database.fetch(
            """SELECT payload->>'status' AS status FROM event_inbox WHERE kind = 'vm' AND subject = $1 ORDER BY id""",
            str(vm_id),
        )
        assert [row["status"] for row in rows] == ["creating", "running", "stopping", "stopped"]


class Away:
    """A database that gives no connection."""

    async def transact(self, work: object) -> NoReturn:
        raise unavailable("The database is away.")


async def test_a_word_that_could_not_be_recorded_is_asked_for_again() -> None:
    rechecked: list[UUID] = []
    node_id, vm_id = UUID(int=1), UUID(int=2)
    async with ActorSystem.open() as actors:
        database, tasks, sealer = cast(Database, Away()), cast(TaskRunner, None), cast(Sealer, None)
        actors.register(Machine, lambda _: Machine(database, tasks, sealer, WindowsPasswords(), rechecked.append))

        with pytest.raises(ServiceError, match="away"):
            await actors.ref(Machine, str(vm_id)).ask(Machine.observed, node_id, DomainState.STOPPED, "shutdown")

    assert rechecked == [node_id]
