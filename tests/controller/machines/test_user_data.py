"""User-data: what a machine's owner has cloud-init do at the first boot of a new machine, or of a new system."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import NodeOperation, OperationId, OperationResult, VmCreate, VmReinstall
from tests.support.machine_service import FakeGateway
from tests.support.machines import MachineHarness, refusal, stage

SCRIPT = "#!/bin/sh\necho join --token=wq7-Marble-41 >/etc/joined\n"
SECRET = "wq7-Marble-41"


async def test_user_data_reaches_the_host_and_is_kept_nowhere_else(
    database: Database, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    async with stage(database) as now:
        answer = await now.created(user_data=SCRIPT, idempotency_key="one")

        [asked] = [operation for operation in now.service.gateway.asked if isinstance(operation, VmCreate)]
        assert asked.machine.seed.user_data == SCRIPT
        assert SECRET not in repr(asked)
        assert SECRET not in answer.model_dump_json()
        assert SECRET not in (await now.customer("vm.show", id=answer.vm.id)).model_dump_json()
        assert (await now.service.vm(answer.vm.id))["sealed_seed"] is None
        await in_no_table(database)
    assert SECRET not in caplog.text + "".join(capsys.readouterr())


async def test_while_it_is_needed_it_is_sealed(database: Database) -> None:
    found: list[bool] = []

    async def look(
        gateway: FakeGateway, node_id: UUID, operation_id: OperationId, operation: NodeOperation
    ) -> OperationResult:
        found.append(await database.fetchval("SELECT sealed_seed IS NOT NULL FROM vms"))
        await in_no_table(database)
        del gateway.answers["vm.create"]
        return await gateway.perform(node_id, operation_id, operation, timeout=60.0)

    async with stage(database) as now:
        now.service.gateway.answers["vm.create"] = look
        await now.created(user_data=SCRIPT)
    assert found == [True]


async def test_a_reinstallation_has_its_own_and_the_old_goes_with_the_old_system(database: Database) -> None:
    async with stage(database) as now:
        vm_id = (await now.created(user_data="#cloud-config\npackages: [nginx]\n")).vm.id

        await reinstalled(now, vm_id, user_data=SCRIPT)
        assert last(now).seed.user_data == SCRIPT
        await in_no_table(database)

        await reinstalled(now, vm_id)
        assert last(now).seed.user_data is None


@pytest.mark.parametrize("user_data", ["", "#" * 32_769, "ü" * 16_385])
async def test_user_data_has_a_limit_in_bytes(database: Database, user_data: str) -> None:
    async with stage(database) as now:
        with pytest.raises(ValidationError):
            await now.customer("vm.create", **now.order(user_data=user_data))


async def test_as_much_as_the_limit_is_taken(database: Database) -> None:
    async with stage(database) as now:
        await now.created(user_data="#" * 32_768)

        [asked] = [operation for operation in now.service.gateway.asked if isinstance(operation, VmCreate)]
        assert asked.machine.seed.user_data == "#" * 32_768


async def test_a_windows_takes_none(database: Database) -> None:
    async with stage(database) as now:
        await database.execute("UPDATE images SET os_family = 'windows'")

        refused = await refusal(now.customer, "vm.create", **now.order(user_data=SCRIPT))

        assert refused.code is ErrorCode.INVALID
        assert refused.message.startswith("user_data: ")


async def reinstalled(now: MachineHarness, vm_id: Any, **more: object) -> None:
    answer = await now.customer("vm.reinstall", id=vm_id, confirm="web", **more)
    assert (await now.service.ended(answer.task.id)).status == "succeeded"


def last(now: MachineHarness) -> VmReinstall:
    return [operation for operation in now.service.gateway.asked if isinstance(operation, VmReinstall)][-1]


async def in_no_table(database: Database) -> None:
    for table in ("vms", "tasks", "task_events", "audit", "event_inbox", "event", "idempotency_keys"):
        rows = await database.fetch(f"SELECT row_to_json(t)::text AS text FROM {table} t")
        assert not any(SECRET in row["text"] for row in rows), table
