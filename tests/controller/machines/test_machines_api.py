"""The machines' part of the API: who may do what, what is refused, what is shown."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID, uuid4

import pytest
import trio
from passlib.hash import sha512_crypt  # type: ignore[import-untyped]
from pydantic import ValidationError

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    DeleteResult,
    FailureCode,
    NodeOperation,
    OperationId,
    OperationResult,
    VmDelete,
    VmSetPassword,
)
from tests.support.machine_api import REGISTRY
from tests.support.machine_service import FakeGateway
from tests.support.machines import PASSWORD, refusal, stage

BY_ID = [
    ("vm.show", {}),
    ("vm.update", {"name": "x"}),
    ("vm.delete", {"confirm": "web"}),
    ("vm.start", {}),
    ("vm.shutdown", {}),
    ("vm.reboot", {}),
    ("vm.force_stop", {"confirm": "web"}),
    ("vm.reset", {"confirm": "web"}),
    ("vm.tasks", {}),
    ("vm.activity", {}),
    ("vm.metrics", {}),
    ("vm.reset_password", {}),
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
        assert (await now.customer("task.list", node=now.world.node_id)).total == 0
        assert (await now.staff("task.list", node=now.world.node_id)).total == 1


@pytest.mark.parametrize("name", ["vm.delete", "vm.force_stop", "vm.reset"])
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
        assert (await now.customer("vm.update", id=vm_id, name="db")).task_id is None
        assert (await refusal(now.customer, "vm.update", id=vm_id)).code is ErrorCode.INVALID


async def test_a_password_is_set_through_the_guest_and_kept_nowhere(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        chosen = await now.customer("vm.reset_password", id=vm_id, password=PASSWORD)
        assert (chosen.user, chosen.chosen, chosen.password) == ("debian", True, None)
        await now.service.ended(chosen.task_id)
        generated = await now.customer("vm.reset_password", id=vm_id)
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
        answer = await now.customer("vm.reset_password", id=vm_id)
        task = await now.service.ended(answer.task_id)
        assert (task.status, task.error_code) == ("failed", ErrorCode.NOT_READY)
        assert await now.service.status(vm_id) == "running"


async def test_a_stopped_machine_takes_no_password(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(start=False)).vm.id
        assert (await refusal(now.customer, "vm.reset_password", id=vm_id)).code is ErrorCode.CONFLICT


async def test_metrics_of_a_machine_on_an_offline_node_are_unavailable(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        assert (await refusal(now.customer, "vm.metrics", id=vm_id)).code is ErrorCode.UNAVAILABLE


async def test_a_machine_that_its_node_has_not_measured_yet_has_no_metrics(database: Database) -> None:
    async def nothing_yet(*_: object) -> OperationResult:
        raise OperationFailed(FailureCode.NOT_FOUND, "Nothing is known of this machine.", None)

    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        now.service.gateway.answers["vm.metrics"] = nothing_yet
        assert (await now.customer("vm.metrics", id=vm_id)).points == []


def test_only_the_start_is_open_to_a_support_session() -> None:
    of_machines = [operation for operation in REGISTRY if operation.name.startswith("vm.") and operation.mutates]
    assert [operation.name for operation in of_machines if operation.in_support_session] == ["vm.start"]


async def _silent(*_: object) -> Any:
    raise OperationFailed(FailureCode.TIMED_OUT, "the guest agent did not answer", None)


async def test_a_customer_reads_who_did_what_to_a_machine_and_not_who_tried_in_vain_nor_from_where(
    database: Database,
) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.administrator("vm.shutdown", id=vm_id)).id)
        await database.execute(
            """INSERT INTO audit (actor_id, actor, role, via, address, request_id, operation, target_kind, target_id,
                                  outcome, error_code)
               VALUES ($1, 'stranger@example.com', 'customer', 'token', '203.0.113.9', 'r', 'vm.delete', 'vm', $3,
                       'denied', 'not_found'),
                      ($2, 'own@example.com', 'customer', 'token', '203.0.113.8', 'r', 'vm.delete', 'vm', $3,
                       'denied', 'invalid')""",
            now.stranger.principal.user_id,
            now.customer.principal.user_id,
            str(vm_id),
        )

        own = await now.customer("vm.activity", id=vm_id)
        staff = await now.staff("vm.activity", id=vm_id)

        assert [(entry.operation, entry.outcome, entry.address) for entry in own.items] == [
            ("vm.delete", "denied", "203.0.113.8"),
            ("vm.shutdown", "ok", None),
            ("vm.create", "ok", None),
        ]
        assert staff.total == 4
        assert (await now.customer("vm.activity", id=vm_id, q="stranger")).total == 0


async def test_a_customer_cancels_no_task_of_their_provider(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id

        async def silence(*_: object) -> NoReturn:
            await trio.sleep_forever()

        now.service.gateway.answers["vm.shutdown"] = silence
        task = await now.administrator("vm.shutdown", id=vm_id)

        refused = await refusal(now.customer, "task.cancel", id=task.id)
        cancelled = await now.staff("task.cancel", id=task.id)

        assert refused.code is ErrorCode.FORBIDDEN
        assert cancelled.cancel_requested


async def test_the_tasks_of_a_machine_are_filtered_like_all_tasks(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created()).vm.id
        await now.service.ended((await now.customer("vm.shutdown", id=vm_id)).id)

        created = await now.customer("vm.tasks", id=vm_id, op="vm.create")
        failed = await now.customer("vm.tasks", id=vm_id, status="failed")
        of_the_node = await now.administrator("node.tasks", id=now.world.node_id, op="vm.shutdown", status="succeeded")

        assert [task.op for task in created.items] == ["vm.create"]
        assert failed.total == 0
        assert [task.op for task in of_the_node.items] == ["vm.shutdown"]


async def test_a_creation_that_failed_holds_its_name_no_longer(database: Database) -> None:
    async with stage(database) as now:

        async def refuse(*_: object) -> NoReturn:
            raise OperationFailed(FailureCode.HOST, "no", None)

        now.service.gateway.answers["vm.create"] = refuse
        failed = (await now.created()).vm.id
        again = (await now.created()).vm.id
        del now.service.gateway.answers["vm.create"]

        made = await now.created()
        taken = await refusal(now.customer, "vm.create", **now.order())
        for vm_id in (failed, again):
            task = await now.customer("vm.delete", id=vm_id, confirm="web")
            assert (await now.service.ended(task.id)).status == "succeeded"

        assert taken.code is ErrorCode.CONFLICT
        assert [vm.id for vm in (await now.customer("vm.list")).items] == [made.vm.id]


async def test_a_change_of_size_answers_with_its_task(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(start=False)).vm.id

        changed = await now.administrator("vm.update", id=vm_id, vcpus=2)

        task = await now.service.ended(changed.task_id)
        assert (changed.vcpus, task.op, task.status) == (2, "vm.update", "succeeded")


async def test_a_deletion_says_which_disks_are_kept_and_where(database: Database) -> None:
    async with stage(database) as now:
        kept, gone = (await now.created()).vm.id, (await now.created(name="other")).vm.id

        async def delete(
            gateway: FakeGateway, node_id: UUID, operation_id: OperationId, operation: NodeOperation
        ) -> OperationResult:
            assert isinstance(operation, VmDelete)
            disks = () if operation.destroy_disks else ("disk0.qcow2",)
            return DeleteResult(vm_id=operation.vm_id, removed_addresses=(), retained_disks=disks)

        now.service.gateway.answers["vm.delete"] = delete
        keeping = await now.service.ended((await now.customer("vm.delete", id=kept, confirm="web")).id)
        task = await now.customer("vm.delete", id=gone, confirm="other", destroy_disks=True)

        how = "It is now a volume: attach or delete it."
        assert keeping.message == f"Deleted; 1 disk is kept on its node, in retained/{kept}: disk0.qcow2. {how}"
        assert (await now.service.ended(task.id)).message == "Done."


async def test_a_hint_can_be_followed(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(start=False)).vm.id
        stopped = await refusal(now.customer, "vm.reset_password", id=vm_id)
        await database.execute("UPDATE vms SET status = 'failed', status_reason = 'r'")
        failed = await refusal(now.customer, "vm.reset_password", id=vm_id)
        console = await refusal(now.customer, "vm.console", id=vm_id)

        assert (stopped.code, stopped.hint) == (ErrorCode.CONFLICT, "Start the machine first.")
        assert (failed.code, failed.hint) == (ErrorCode.CONFLICT, None)
        assert (console.code, console.hint) == (ErrorCode.CONFLICT, None)
