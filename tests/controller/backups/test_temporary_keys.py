"""A node gets keys for its own machines' copies and no others, where the target's server can give such; where it
cannot, the target says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import httpx
import pytest

from svc_actors.controller.backups import temporary_keys
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import BucketPlace, VmBackup, VmBackupsForget, VmCreateFromCopy, VmRestore
from tests.controller.backups.test_backups import asked, planned
from tests.controller.backups.test_moved import a_moved_machine
from tests.controller.backups.test_targets import BUCKET, SECRET, SFTP, alerts, back_up, look
from tests.support.machines import MachineHarness, refusal, stage

ROLE = "arn:aws:iam::123456789012:role/backups"
STS = {**BUCKET, "sts_endpoint": "https://sts.example.com", "sts_role": ROLE}
ANSWER = """<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>
<AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>secret{number}</SecretAccessKey>
<SessionToken>token{number}</SessionToken><Expiration>2026-11-28T20:00:00Z</Expiration></Credentials></{action}Result>
</{action}Response>"""


@dataclass
class Service:
    """An STS that gives keys to all, and remembers what was asked."""

    forms: list[dict[str, str]] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    answer: httpx.Response | None = None
    passing: list[httpx.Response | httpx.ConnectError] = field(default_factory=list)
    """What it says before it answers as it does."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        form = {name: value for name, [value] in parse_qs(request.content.decode()).items()}
        self.forms.append(form)
        self.requests.append(request)
        if self.passing:
            said = self.passing.pop(0)
            if isinstance(said, httpx.ConnectError):
                raise said
            return said
        if self.answer is not None:
            return self.answer
        return httpx.Response(200, text=ANSWER.format(action=form["Action"], number=len(self.forms)))

    def policies(self) -> list[Any]:
        return [json.loads(form["Policy"]) for form in self.forms]


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Service:
    service = Service()
    transport = httpx.MockTransport(service)
    monkeypatch.setattr(temporary_keys, "open_client", lambda: httpx.AsyncClient(transport=transport))
    return service


async def used(now: MachineHarness, **use: object) -> UUID:
    added = await now.administrator("backup.target.add_bucket", **STS)
    await now.administrator("backup.target.use", id=added.id, **use)
    target_id: UUID = added.id
    return target_id


def opens(policy: Any) -> tuple[set[str], set[str]]:
    """The folders that a policy lets its keys open, and what may be done there."""
    objects, listed, _ = policy["Statement"]
    [resource] = objects["Resource"]
    assert listed["Condition"] == {"StringLike": {"s3:prefix": [resource.removeprefix("arn:aws:s3:::backups/")]}}
    return {resource}, set(objects["Action"])


WRITES = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"}


async def test_each_operation_gets_keys_of_its_own_for_one_machines_copies(database: Database, sts: Service) -> None:
    assert VmBackup.facts.task_seconds is not None
    async with stage(database) as now:
        _, first = await planned(now, database)
        second = (await now.created(name="other")).vm.id
        await used(now)
        for vm_id in (first, second, first):
            assert (await back_up(now, vm_id)).status == "succeeded"

        places = [each.place for each in asked(now, VmBackup)]
        assert [(each.access_key, each.secret_key, each.session_token) for each in places] == [
            (f"ASIA{n}", f"secret{n}", f"token{n}") for n in (1, 2, 3)
        ]
        assert SECRET not in "".join(each.model_dump_json() for each in asked(now, VmBackup))
        assert "token1" not in repr(asked(now, VmBackup))
        assert [opens(each) for each in sts.policies()] == [
            ({f"arn:aws:s3:::backups/machines/{vm_id}/*"}, WRITES) for vm_id in (first, second, first)
        ]
        # They end with the operation's deadline, and the request is signed with the target's key, which is not in it
        for form, request in zip(sts.forms, sts.requests, strict=True):
            assert (form["Action"], form["RoleArn"]) == ("AssumeRole", ROLE)
            assert int(form["DurationSeconds"]) == VmBackup.facts.task_seconds + 300
            assert "Credential=AKIAEXAMPLE/" in request.headers["authorization"]
            assert SECRET.encode() not in request.content


async def test_what_only_reads_gets_keys_that_only_read(database: Database, sts: Service) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        await used(now)
        await back_up(now, vm_id)
        [copy] = [each.id for each in await now.customer("vm.backups", id=vm_id)]
        await now.service.ended((await now.customer("vm.force_stop", id=vm_id, confirm="web")).id)
        restored = await now.customer("vm.restore", id=vm_id, backup_id=copy, confirm="web")
        assert (await now.service.ended(restored.id)).status == "succeeded"
        made = await now.customer("vm.create", name="again", backup_id=copy)
        await now.service.ended(made.task.id)

        [restoration] = asked(now, VmRestore)
        [creation] = asked(now, VmCreateFromCopy)
        assert [each.place.session_token for each in (restoration, creation.restoration)] == ["token2", "token3"]
        of_the_source = {f"arn:aws:s3:::backups/machines/{vm_id}/*"}
        assert [opens(each) for each in sts.policies()[1:]] == [(of_the_source, {"s3:GetObject"})] * 2


async def test_a_node_that_a_machine_has_left_gets_keys_only_to_forget_its_copies(
    database: Database, sts: Service
) -> None:
    async with a_moved_machine(database) as moved:
        now = moved.now
        await used(now, node_id=moved.beta)
        for _ in range(2):
            await moved.back_up()
        await now.administrator("backup.target.unuse", node_id=moved.beta)
        for _ in range(2):
            await moved.back_up()
        before = len(sts.forms)
        await look(moved)
        forgetting = [each for each in asked(now, VmBackupsForget) if each.place is not None]
        assert len(forgetting) == len(sts.forms) - before > 0
        assert {str(opens(each)[0]) for each in sts.policies()} == {
            str({f"arn:aws:s3:::backups/machines/{moved.vm_id}/*"})
        }


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(403, text="<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"),
        httpx.Response(200, text="no XML"),
        httpx.Response(200, text="<AssumeRoleResponse/>"),
        httpx.Response(200, text="x" * 100_000),
    ],
    ids=["refused", "no XML", "no keys", "endless"],
)
async def test_without_temporary_keys_no_node_is_asked_and_the_target_says_why(
    database: Database, sts: Service, answer: httpx.Response
) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        target_id = await used(now)
        sts.answer = answer
        failed = await back_up(now, vm_id)
        assert (failed.status, failed.error_code) == ("failed", ErrorCode.UNAVAILABLE)
        assert "gave no keys" in failed.error_message
        assert asked(now, VmBackup) == []
        assert "STS" in (await alerts(database))[f"backup-target:{target_id}"]


@pytest.mark.parametrize("status", [503, 502, 429])
async def test_a_task_outlives_a_short_failure_of_the_sts(database: Database, sts: Service, status: int) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        target_id = await used(now)
        sts.passing = [httpx.Response(status, text="<html>busy"), httpx.ConnectError("refused")]
        assert (await back_up(now, vm_id)).status == "succeeded"
        assert len(sts.forms) == 3
        assert f"backup-target:{target_id}" not in await alerts(database)


async def test_a_target_whose_key_every_node_gets_says_so_and_what_bounds_it(database: Database) -> None:
    async with stage(database) as now:
        shared = await now.administrator("backup.target.add_bucket", **BUCKET)
        nas = await now.administrator("backup.target.add_sftp", **SFTP)
        temporary = await now.administrator("backup.target.add_bucket", **{**STS, "name": "temporary"})
        listed = {each.name: (each.keys, each.warning) for each in await now.administrator("backup.target.list")}
        assert listed["temporary"] == ("temporary", None)
        for target, bound in ((shared, "object lock"), (nas, "snapshots")):
            answer = await now.administrator("backup.target.use", id=target.id)
            assert listed[target.name] == (answer.keys, answer.warning) == ("shared", answer.warning)
            assert "root of any of these nodes can remove" in answer.warning
            assert bound in answer.warning
            assert "node_id" in answer.warning
        assert (await now.administrator("backup.target.use", id=temporary.id)).warning is None
        alone = {**BUCKET, "name": "role", "sts_role": ROLE}
        assert (await refusal(now.administrator, "backup.target.add_bucket", **alone)).code is ErrorCode.INVALID


async def test_without_a_role_the_account_of_the_key_is_asked(database: Database, sts: Service) -> None:
    async with stage(database) as now:
        _, vm_id = await planned(now, database)
        added = await now.administrator("backup.target.add_bucket", **{**STS, "sts_role": None})
        await now.administrator("backup.target.use", id=added.id)
        await back_up(now, vm_id)
        [form] = sts.forms
        assert (form["Action"], len(form["Name"]) <= 32, "RoleArn" in form) == ("GetFederationToken", True, False)
        assert isinstance(asked(now, VmBackup)[0].place, BucketPlace)
