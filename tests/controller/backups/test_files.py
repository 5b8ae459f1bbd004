"""Single files of a backup: who has them, what the audit says of it, and what a node that cannot is told to be."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import FailureCode, NodeOperation, OperationResult, VmBackup, VmFilesOpen
from svc_nodeagent.simulated_state import FILES, SimulatedCopyFiles
from tests.controller.backups.test_backups import asked, copy_made
from tests.controller.machines.test_rescue import add_system, refusing
from tests.support.machine_api import Api
from tests.support.machines import MachineHarness, refusal, stage

OPS = ("vm.files.open", "vm.files.list", "vm.files.read", "vm.files.close")


async def backed_up(now: MachineHarness, database: Database) -> dict[str, UUID]:
    """A machine that runs with one backup, on a node that shows its files: the ids that name it."""
    node = SimulatedCopyFiles()

    async def answered(gateway: Any, node_id: UUID, operation_id: str, operation: NodeOperation) -> OperationResult:
        try:
            return node.perform(operation)  # type: ignore[arg-type]
        except HostError as error:
            raise OperationFailed(error.code, error.message, error.hint) from error

    now.service.gateway.answers |= {"vm.backup": copy_made} | dict.fromkeys(OPS, answered)
    await add_system(database)
    vm_id = (await now.created()).vm.id
    await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)
    [copy] = await now.customer("vm.backups", id=vm_id)
    return {"id": vm_id, "backup_id": copy.id}


async def opened(now: MachineHarness, which: dict[str, UUID], api: Api | None = None) -> Any:
    return await now.service.ended((await (api or now.customer)("vm.files.open", **which)).id)


async def test_a_customer_lists_folders_of_a_backup_and_downloads_a_file_while_the_machine_runs(
    database: Database,
) -> None:
    async with stage(database) as now:
        which = await backed_up(now, database)
        assert (await refusal(now.customer, "vm.files.list", **which)).code is ErrorCode.NOT_READY
        assert (await opened(now, which)).status == "succeeded"
        assert (await now.customer("vm.show", id=which["id"])).status == "running"
        [opening], [backup] = asked(now, VmFilesOpen), asked(now, VmBackup)
        assert (opening.copy_id, opening.password) == (which["backup_id"], backup.password)
        assert opening.system.kind == "rescue"
        assert opening.owner_id == UUID(str(now.world.project_id))

        top = await now.customer("vm.files.list", **which)
        assert [(each.name, each.kind) for each in top.entries] == [
            ("etc", "folder"),
            ("home", "folder"),
            ("var", "folder"),
        ]
        assert [(each.number, each.state, each.system) for each in top.volumes] == [(1, "mounted", True)]
        [large] = (await now.customer("vm.files.list", path="/var/lib", **which)).entries

        data, version = b"", None
        while len(data) < large.size_bytes:
            part = await now.customer(
                "vm.files.download", path="/var/lib/large", offset=len(data), version=version, **which
            )
            piece = base64.b64decode(part.data_base64)
            assert hashlib.sha256(piece).hexdigest() == part.sha256
            data, version = data + piece, part.version
        assert (data, part.name) == (FILES["/var/lib/large"], "large")
        other = await refusal(now.customer, "vm.files.download", path="/etc/hostname", version=version, **which)
        assert other.code is ErrorCode.CONFLICT

        await now.customer("vm.files.close", **which)
        assert (await refusal(now.customer, "vm.files.list", **which)).code is ErrorCode.NOT_READY
        # Once a download, however many parts it has
        rows = await database.fetch(
            "SELECT operation, details FROM audit WHERE operation LIKE 'vm.files.%' ORDER BY id"
        )
        assert [row["operation"] for row in rows] == ["vm.files.open", "vm.files.download", "vm.files.close"]
        told = {name: rows[1]["details"][name] for name in ("copy_id", "path", "size")}
        assert told == {"copy_id": str(which["backup_id"]), "path": "/var/lib/large", "size": len(data)}
        assert opening.password not in str([dict(row) for row in rows])


async def test_a_download_that_begins_in_the_middle_is_in_the_audit_too(database: Database) -> None:
    async with stage(database) as now:
        which = await backed_up(now, database)
        await opened(now, which)
        await now.customer("vm.files.download", path="/etc/hostname", offset=3, **which)
        assert await database.fetchval("SELECT count(*) FROM audit WHERE operation = 'vm.files.download'") == 1


async def test_staff_read_files_of_a_backup_and_nobody_else_but_the_owner(database: Database) -> None:
    async with stage(database) as now:
        which = await backed_up(now, database)
        await opened(now, which, now.staff)
        assert (await now.staff("vm.files.download", path="/etc/hostname", **which)).size == 10
        calls: list[tuple[str, dict[str, object]]] = [
            ("vm.files.open", {}),
            ("vm.files.list", {}),
            ("vm.files.download", {"path": "/etc/hostname"}),
            ("vm.files.close", {}),
        ]
        supporting = Api(now.service, replace(now.customer.principal, impersonation_id=uuid4()))
        for name, values in calls:
            assert (await refusal(now.stranger, name, **which, **values)).code is ErrorCode.NOT_FOUND
            assert (await refusal(supporting, name, **which, **values)).code is ErrorCode.FORBIDDEN
            unknown = await refusal(now.customer, name, **{**which, "backup_id": uuid4()}, **values)
            assert unknown.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nothing", ErrorCode.NOT_FOUND),
        ("/etc/100%", ErrorCode.INVALID),
        ("/etc/%00", ErrorCode.INVALID),
    ],
)
async def test_a_path_that_leads_to_nothing_says_so(database: Database, path: str, code: ErrorCode) -> None:
    async with stage(database) as now:
        which = await backed_up(now, database)
        await opened(now, which)
        for name in ("vm.files.list", "vm.files.download"):
            assert (await refusal(now.customer, name, path=path, **which)).code is code


async def test_what_cannot_be_opened_says_why_and_leaves_the_machine_as_it_was(database: Database) -> None:
    async with stage(database) as now:
        which = await backed_up(now, database)
        for failure, words in (
            (FailureCode.UNSUPPORTED, "The node's agent is of a release before this."),
            (FailureCode.CAPACITY, "The files of 2 copies are open on this node."),
        ):
            now.service.gateway.answers["vm.files.open"] = refusing(failure, words)
            task = await opened(now, which)
            assert task.status == "failed"
            assert words in (task.error_message or "")
        assert (await now.customer("vm.show", id=which["id"])).status == "running"

        await database.execute("UPDATE images SET enabled = false WHERE kind = 'rescue'")
        assert (await refusal(now.customer, "vm.files.open", **which)).code is ErrorCode.CONFLICT


async def test_while_it_is_opened_nothing_is_done_to_the_copies(database: Database) -> None:
    async with stage(database) as now:
        which = await backed_up(now, database)
        under_way = now.service.gateway.hold("vm.files.open")
        task = await now.customer("vm.files.open", **which)
        for api, name in ((now.staff, "vm.backup"), (now.customer, "vm.shutdown")):
            assert (await refusal(api, name, id=which["id"])).code is ErrorCode.NOT_READY
        await now.customer("vm.force_stop", id=which["id"], confirm="web")
        under_way.set()
        assert (await now.service.ended(task.id)).status == "cancelled"
