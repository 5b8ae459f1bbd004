"""Targets that every node reaches: who uses which, what a node is told of one, and what is said of one that fails."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines import work
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    BackupResult,
    BucketPlace,
    FailureCode,
    NodeOperation,
    OperationResult,
    SftpPlace,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
    VmCreateFromCopy,
    VmRestore,
    needed,
)
from tests.controller.backups.test_backups import asked, copy_made, planned
from tests.controller.backups.test_moved import Moved, a_moved_machine, done
from tests.support.collisions import collide_once
from tests.support.machines import MachineHarness, refusal, stage

SECRET = "a-secret-key-of-the-bucket"
BUCKET = {
    "name": "bucket",
    "endpoint": "https://s3.example.com",
    "bucket": "backups",
    "prefix": "machines",
    "access_key": "AKIAEXAMPLE",
    "secret_key": SECRET,
}
SFTP = {
    "name": "nas",
    "host": "10.0.0.9",
    "user": "backup",
    "path": "/srv/machines",
    "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJhhOGuQFkx0wC1k2bn7L2sR5x2n5rC3bqf0Yd3q3s4B",
}


async def bucket(now: MachineHarness, **use: object) -> UUID:
    added = await now.administrator("backup.target.add_bucket", **BUCKET)
    await now.administrator("backup.target.use", id=added.id, **use)
    target_id: UUID = added.id
    return target_id


async def back_up(now: MachineHarness, vm_id: UUID) -> Any:
    return await now.service.ended((await now.staff("vm.backup", id=vm_id)).id)


async def away(*_: Any) -> OperationResult:
    raise OperationFailed(FailureCode.TARGET, "The backup target bucket does not answer.", "See to it.")


async def lost(gateway: Any, node_id: UUID, operation_id: str, operation: NodeOperation) -> OperationResult:
    made = await copy_made(gateway, node_id, operation_id, operation)
    assert isinstance(made, BackupResult)
    return made.model_copy(update={"lost": True})


async def alerts(database: Database) -> dict[str, str]:
    rows = await database.fetch("SELECT key, message FROM alerts WHERE closed_at IS NULL")
    return {row["key"]: row["message"] for row in rows}


async def test_a_nodes_own_target_goes_before_its_locations_and_that_before_the_one_of_all_others(
    database: Database,
) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        nas = await now.administrator("backup.target.add_sftp", **SFTP)
        target_id = await bucket(now)
        await now.administrator("backup.target.use", id=nas.id, location_id=now.world.location_id)
        listed = {each.name: each for each in await now.administrator("backup.target.list")}
        assert (listed["bucket"].of_all_others, listed["nas"].location_ids) == (True, [now.world.location_id])
        assert listed["nas"].public_key.startswith("ssh-ed25519 ")
        await back_up(now, vm_id)
        await now.administrator("backup.target.use", id=target_id, node_id=now.world.node_id)
        await back_up(now, vm_id)
        await now.administrator("backup.target.unuse", node_id=now.world.node_id, mounted=True)
        await back_up(now, vm_id)
        for whose in ({"node_id": now.world.node_id}, {"location_id": now.world.location_id}):
            await now.administrator("backup.target.unuse", **whose)
        await back_up(now, vm_id)

        own, of_node, mounted, of_all = (each.place for each in asked(now, VmBackup))
        assert isinstance(own, SftpPlace)
        assert (own.host, own.port, own.host_key) == ("10.0.0.9", 22, SFTP["host_key"])
        assert "OPENSSH PRIVATE KEY" in own.private_key
        assert isinstance(of_node, BucketPlace)
        assert (of_node.bucket, of_node.prefix, of_node.secret_key) == ("backups", "machines", SECRET)
        assert (mounted, of_all) == (None, of_node)
        names = [each.target_name for each in await now.staff("vm.backups", id=vm_id)]
        assert sorted(map(str, names)) == ["None", "bucket", "bucket", "nas"]
        assert {each.target_name for each in await now.customer("vm.backups", id=vm_id)} == {None}


async def test_what_opens_a_target_is_sealed_and_never_told_again(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        await bucket(now)
        await back_up(now, vm_id)
        assert SECRET not in str(await now.administrator("backup.target.list"))
        for table in ("machine_backup_targets", "audit", "tasks", "task_events"):
            held = await database.fetch(f"SELECT to_jsonb(t)::text AS told FROM {table} t")
            assert not [row for row in held if SECRET in row["told"]]
        assert SECRET not in repr(asked(now, VmBackup))
        for name in ("backup.target.list", "backup.target.add_bucket"):
            values = BUCKET if name.endswith("bucket") else {}
            assert (await refusal(now.staff, name, **values)).code is ErrorCode.FORBIDDEN


async def test_an_agent_of_the_version_before_is_not_asked_for_a_copy_elsewhere(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        await back_up(now, vm_id)
        await bucket(now)
        await back_up(now, vm_id)
        at_its_own, elsewhere = asked(now, VmBackup)
        assert (needed(at_its_own), needed(elsewhere)) == (4, 5)


async def test_a_copy_at_a_target_is_restored_wherever_the_machine_is_and_made_anew_on_any_node(
    database: Database,
) -> None:
    async with a_moved_machine(database) as moved:
        now = moved.now
        await bucket(now, node_id=moved.beta)
        third = await moved.back_up()
        assert (await moved.listed())[third] is False
        # Its node of now uses none any more
        await now.administrator("backup.target.unuse", node_id=moved.beta)
        order = {"id": moved.vm_id, "backup_id": third, "confirm": "web"}
        assert (await now.service.ended((await now.customer("vm.restore", **order)).id)).status == "succeeded"
        assert isinstance(asked(now, VmRestore)[-1].place, BucketPlace)

        await database.execute("UPDATE nodes SET maintenance = true WHERE id = $1", moved.beta)
        made = await now.customer("vm.create", name="again", backup_id=third)
        assert (await now.service.ended(made.task.id)).status == "succeeded"
        [told] = asked(now, VmCreateFromCopy)
        assert isinstance(told.restoration.place, BucketPlace)
        assert moved.asked_of(VmCreateFromCopy) == [moved.alpha]


async def test_a_target_that_fails_is_told_until_it_works(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        target_id = await bucket(now)
        now.service.gateway.answers["vm.backup"] = away
        failed = await back_up(now, vm_id)
        assert (failed.status, failed.error_code) == ("failed", ErrorCode.UNAVAILABLE)
        told = await alerts(database)
        assert told.keys() == {f"backup-target:{target_id}", f"machine-backup:{vm_id}"}
        assert "bucket fails; its backups stay" in told[f"backup-target:{target_id}"]
        [shown] = await now.administrator("backup.target.list")
        assert "does not answer" in shown.problem

        now.service.gateway.answers["vm.backup"] = copy_made
        assert (await back_up(now, vm_id)).status == "succeeded"
        assert await alerts(database) == {}
        # What the attempt has left goes with the copy, at the target
        assert asked(now, VmBackup)[-1].forget == (failed.id,)


async def test_a_target_that_fails_is_told_though_its_alert_meets_another_change(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without asking the node again for what has failed there."""
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        target_id = await bucket(now)
        now.service.gateway.answers["vm.backup"] = away
        calls = collide_once(monkeypatch, work, "tell_failed")
        failed = await back_up(now, vm_id)
        assert (failed.status, len(calls), len(asked(now, VmBackup))) == ("failed", 2, 1)
        assert "does not answer" in failed.error_message
        assert f"backup-target:{target_id}" in await alerts(database)


async def test_data_that_a_target_has_lost_is_told_until_no_copy_needs_it(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        now.service.gateway.answers["vm.backup"] = lost
        assert (await back_up(now, vm_id)).status == "succeeded"
        [(key, message)] = (await alerts(database)).items()
        assert (key, "has lost data" in message) == (f"machine-backup-data:{vm_id}", True)
        now.service.gateway.answers["vm.backup"] = copy_made
        await back_up(now, vm_id)
        assert await alerts(database) == {}


async def test_what_is_superseded_at_a_target_is_removed_there_by_the_node_of_now(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        now = moved.now
        await bucket(now, node_id=moved.beta)
        third = await moved.back_up()
        fourth = await moved.back_up()
        await now.administrator("backup.target.unuse", node_id=moved.beta)
        await moved.back_up()
        await moved.back_up()
        await look(moved)
        forgotten = {each.copies: each.place for each in asked(now, VmBackupsForget)}
        assert {type(place) for copies, place in forgotten.items() if third in copies} == {BucketPlace}
        assert fourth not in await moved.listed()
        assert moved.asked_of(VmBackupsForget).count(moved.beta) >= 1


async def test_a_deleted_machines_copies_at_a_target_are_removed_by_a_node_that_is_there(database: Database) -> None:
    async with a_moved_machine(database) as moved:
        now = moved.now
        await bucket(now, node_id=moved.beta)
        await moved.back_up()
        await moved.delete()
        await database.execute("UPDATE nodes SET state = 'offline', lost_at = now() WHERE id = $1", moved.beta)
        await look(moved)
        told = [each for each in asked(now, VmBackupsRemove) if each.place is not None]
        assert [each.password for each in told] == [asked(now, VmBackup)[0].password]
        assert set(moved.asked_of(VmBackupsRemove)) == {moved.alpha}
        assert (await now.administrator("backup.deleted")).total == 0


async def test_a_target_with_copies_is_removed_only_by_giving_them_up(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        target_id = await bucket(now)
        await back_up(now, vm_id)
        kept = await refusal(now.administrator, "backup.target.remove", id=target_id, confirm="bucket")
        assert (kept.code, kept.details) == (ErrorCode.CONFLICT, {"copies": 1})
        wrong = await refusal(now.administrator, "backup.target.remove", id=target_id, confirm="nas")
        assert wrong.code is ErrorCode.INVALID
        await now.administrator("backup.target.remove", id=target_id, confirm="bucket", forget_copies=True)
        assert await now.administrator("backup.target.list") == []
        assert await now.customer("vm.backups", id=vm_id) == []
        await back_up(now, vm_id)
        assert asked(now, VmBackup)[-1].place is None


async def test_a_target_is_not_removed_while_a_task_works_with_it(database: Database) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        target_id = await bucket(now)
        now.service.gateway.answers["vm.backup"] = until_cancelled
        task = await now.staff("vm.backup", id=vm_id)
        busy = await refusal(now.administrator, "backup.target.remove", id=target_id, confirm="bucket")
        assert busy.code is ErrorCode.CONFLICT
        await now.staff("task.cancel", id=task.id)
        await now.service.ended(task.id)
        await now.administrator("backup.target.remove", id=target_id, confirm="bucket")


async def until_cancelled(gateway: Any, _: UUID, operation_id: str, __: NodeOperation) -> OperationResult:
    await gateway.until_cancelled(operation_id)
    raise AssertionError


async def look(moved: Moved) -> None:
    moved.now.service.gateway.answers |= {"vm.backups.forget": done, "vm.backups.remove": done}
    for _ in range(4):
        await moved.an_hour_passes()
        await moved.look()
