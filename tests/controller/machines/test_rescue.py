"""The rescue of a machine: what is recorded of it, what is refused meanwhile, and what a failure leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.images.files import ImageFiles
from svc_actors.controller.images.own_images import keep_rescue_system
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.observing import MachineReport, record_observations
from svc_actors.controller.machines.rescue import NewRescue
from svc_actors.controller.reconcile.inventory import ReportedMachine, compare, concerned_machines
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    DomainState,
    FailureCode,
    ImageKind,
    ImagePull,
    NodeOperation,
    OperationId,
    OperationResult,
    StateCause,
    VmRescue,
    VmRescueEnd,
)
from tests.support.callers import ADMINISTRATOR
from tests.support.machine_api import Api
from tests.support.machine_service import FakeGateway, make_fleet, open_service
from tests.support.machines import KEY, MachineHarness, refusal, stage

DIGEST = "b" * 64
OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHm2s8Z7p0S0u6mN0cY3m1Wc5v4w5n0cW0b1y2x3z4A5 me@work"


async def add_system(database: Database, *, digest: str | None = DIGEST) -> UUID:
    image_id: UUID = await database.fetchval(
        """INSERT INTO images (slug, name, os_family, distribution, release, login_user, format, source, digest, custom,
                               kind, min_memory_mib)
           VALUES ('rescue', 'Rescue', 'linux', 'debian', '12', 'root', 'raw', 'file', $1, true, 'rescue', 192)
           RETURNING id""",
        digest,
    )
    return image_id


async def machine(now: MachineHarness, *, running: bool = True) -> UUID:
    vm_id: UUID = (await now.created()).vm.id
    if not running:
        await done(now, "vm.shutdown", id=vm_id)
    return vm_id


async def done(now: MachineHarness, op: str, /, **values: object) -> str:
    """The status of the task that the customer's order began, once it has ended."""
    answer = await now.customer(op, **values)
    return (await now.service.ended(getattr(answer, "task", answer).id)).status


async def shown(now: MachineHarness, vm_id: UUID) -> tuple[str, bool]:
    vm = await now.customer("vm.show", id=vm_id)
    return vm.status, vm.rescue_since is not None


def told(now: MachineHarness, kind: type[Any]) -> list[Any]:
    return [each for each in now.service.gateway.asked if isinstance(each, kind)]


def refusing(code: FailureCode, words: str) -> Any:
    async def refuse(*_: Any) -> OperationResult:
        raise OperationFailed(code, words, None)

    return refuse


async def test_a_machine_is_put_into_rescue_and_boots_its_own_disk_again(database: Database) -> None:
    async with stage(database) as now:
        system = await add_system(database)
        vm_id = await machine(now)
        answer = await now.customer("vm.rescue", id=vm_id)
        assert (await now.service.ended(answer.task.id)).status == "succeeded"
        assert (answer.user, len(answer.password)) == ("root", 20)
        [begun] = told(now, VmRescue)
        assert (begun.system.image_id, begun.system.kind, begun.runs, begun.force) == (
            system,
            ImageKind.RESCUE,
            True,
            False,
        )
        assert (begun.ssh_keys, begun.password_hash[:3]) == ((KEY,), "$6$")
        assert [str(each.interface.ip) for nic in begun.network.nics for each in nic.addresses] == ["10.77.0.2"]
        assert [each.image.image_id for each in told(now, ImagePull)][-1] == system
        assert await shown(now, vm_id) == ("running", True)

        assert await done(now, "vm.rescue_end", id=vm_id, force=True) == "succeeded"
        [ended] = told(now, VmRescueEnd)
        assert (ended.runs, ended.force) == (True, True)
        assert await shown(now, vm_id) == ("running", False)
        audited = await database.fetch("SELECT operation, details FROM audit WHERE operation LIKE 'vm.rescue%'")
        assert [row["operation"] for row in audited] == ["vm.rescue", "vm.rescue_end"]
        assert answer.password not in str([dict(row) for row in audited])
        assert await database.fetchval("SELECT sealed_seed FROM vms WHERE id = $1", vm_id) is None


async def test_one_that_is_off_is_started_in_rescue_with_keys_of_the_order_and_shall_run_then(
    database: Database,
) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now, running=False)
        assert await done(now, "vm.rescue", id=vm_id, ssh_keys=[OTHER_KEY], force=True) == "succeeded"
        [begun] = told(now, VmRescue)
        assert (begun.runs, begun.force, begun.ssh_keys) == (False, True, (OTHER_KEY,))
        vm = await now.customer("vm.show", id=vm_id)
        assert (vm.status, vm.desired_power) == ("running", "running")


async def test_power_orders_and_a_power_cut_leave_it_in_rescue(database: Database) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now)
        await done(now, "vm.rescue", id=vm_id)
        since = (await now.customer("vm.show", id=vm_id)).rescue_since
        for op in ("vm.reboot", "vm.reset", "vm.force_stop", "vm.start", "vm.shutdown", "vm.start"):
            more = {"confirm": "web"} if op in ("vm.reset", "vm.force_stop") else {}
            assert await done(now, op, id=vm_id, **more) == "succeeded"
            assert (await now.customer("vm.show", id=vm_id)).rescue_since == since
        node = now.world.node_id
        async with database.transaction() as tx:
            await record_observations(
                tx, {vm_id: MachineReport(node, DomainState.STOPPED, "", None, True)}, asked_at=None
            )
        assert await shown(now, vm_id) == ("stopped", True)
        task = await now.service.machine(vm_id).ask(Machine.restore)
        assert task is not None
        assert (task.op, (await now.service.ended(task)).status) == ("vm.start", "succeeded")
        assert (await now.customer("vm.show", id=vm_id)).rescue_since == since


async def test_what_would_take_the_disks_from_whoever_mends_them_is_refused_with_the_reason(
    database: Database,
) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now)
        await done(now, "vm.rescue", id=vm_id)
        for caller, name, values in (
            (now.administrator, "vm.migrate", {"node_id": vm_id, "restart": True}),
            (now.staff, "vm.backup", {}),
            (now.staff, "vm.resize", {"disk_gib": 2}),
            (now.administrator, "vm.cpu", {"cpu_mode": "maximum"}),
            (now.customer, "vm.reinstall", {"confirm": "web"}),
            (now.customer, "vm.reset_password", {}),
            (now.customer, "vm.rescue", {}),
        ):
            refused = await refusal(caller, name, id=vm_id, **values)
            assert (refused.code, "in rescue" in refused.message) == (ErrorCode.CONFLICT, True), name
        await done(now, "vm.shutdown", id=vm_id)
        restored = await refusal(now.staff, "vm.restore", id=vm_id, backup_id=vm_id, confirm="web")
        assert "in rescue" in restored.message
        assert await done(now, "vm.snapshot.take", id=vm_id, name="before fsck") == "succeeded"
        assert await done(now, "vm.delete", id=vm_id, confirm="web") == "succeeded"


async def test_it_is_refused_where_it_cannot_be_and_nothing_is_asked_of_the_node(database: Database) -> None:
    async with stage(database) as now:
        vm_id = await machine(now)
        missing = await refusal(now.customer, "vm.rescue", id=vm_id)
        assert (missing.code, "no rescue system" in missing.message) == (ErrorCode.CONFLICT, True)
        system = await add_system(database)
        none = await refusal(now.customer, "vm.rescue_end", id=vm_id)
        assert (none.code, "not in rescue" in none.message) == (ErrorCode.CONFLICT, True)
        await now.administrator("image.update", id=system, enabled=False)
        assert "no rescue system" in (await refusal(now.customer, "vm.rescue", id=vm_id)).message
        await now.administrator("image.update", id=system, enabled=True)
        await database.execute("UPDATE vms SET memory_mib = 128 WHERE id = $1", vm_id)
        small = await refusal(now.customer, "vm.rescue", id=vm_id)
        assert (small.code, "192" in small.message) == (ErrorCode.CONFLICT, True)
        await database.execute("UPDATE vms SET memory_mib = 256 WHERE id = $1", vm_id)
        let_go = now.service.gateway.hold("vm.reboot")
        reboot = await now.customer("vm.reboot", id=vm_id)
        assert (await refusal(now.customer, "vm.rescue", id=vm_id)).code is ErrorCode.NOT_READY
        let_go.set()
        await now.service.ended(reboot.id)
        assert told(now, VmRescue) == []


async def test_the_owner_and_staff_may_and_nobody_else_nor_a_support_session(database: Database) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now)
        looking = replace(now.customer.principal, impersonation_id=uuid4())
        for name in ("vm.rescue", "vm.rescue_end"):
            assert (await refusal(now.stranger, name, id=vm_id)).code is ErrorCode.NOT_FOUND
            support = await refusal(Api(now.service, looking), name, id=vm_id)
            assert (support.code, support.message) == (ErrorCode.FORBIDDEN, "a support session can look, not act")
        begun = await now.staff("vm.rescue", id=vm_id)
        await now.service.ended(begun.task.id)
        assert await done(now, "vm.rescue_end", id=vm_id) == "succeeded"


async def test_an_order_that_comes_again_is_the_same_rescue_with_the_same_password(database: Database) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now)
        let_go = now.service.gateway.hold("vm.rescue")
        first = await now.customer("vm.rescue", id=vm_id, idempotency_key="k")
        again = await now.customer("vm.rescue", id=vm_id, idempotency_key="k")
        assert (again.task.id, again.replayed) == (first.task.id, True)
        let_go.set()
        await now.service.ended(first.task.id)
        late = await now.customer("vm.rescue", id=vm_id, idempotency_key="k")
        assert (late.task.id, late.replayed) == (first.task.id, True)
        assert len(told(now, VmRescue)) == 1


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("code", [FailureCode.TIMED_OUT, FailureCode.HOST, FailureCode.UNSUPPORTED])
async def test_a_failure_leaves_the_machine_as_it_was_and_its_node_is_looked_at(
    database: Database, code: FailureCode, running: bool
) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now, running=running)
        now.service.gateway.answers["vm.rescue"] = refusing(code, "the host said no")
        assert await done(now, "vm.rescue", id=vm_id) == "failed"
        status = "running" if running else "stopped"
        assert await shown(now, vm_id) == (status, False)
        assert (await now.customer("vm.show", id=vm_id)).desired_power == status
        assert now.service.rechecked == [now.world.node_id]
        assert await database.fetchval("SELECT sealed_seed FROM vms WHERE id = $1", vm_id) is None

        del now.service.gateway.answers["vm.rescue"]
        await done(now, "vm.rescue", id=vm_id)
        now.service.gateway.answers["vm.rescue_end"] = refusing(code, "it does not shut down")
        assert await done(now, "vm.rescue_end", id=vm_id) == "failed"
        assert await shown(now, vm_id) == ("running", True)


async def test_a_forced_stop_takes_the_place_of_a_rescue_and_the_host_says_how_far_it_had_come(
    database: Database,
) -> None:
    async with stage(database) as now:
        await add_system(database)
        vm_id = await machine(now)

        async def goes_on(gateway: FakeGateway, _: UUID, operation_id: OperationId, __: NodeOperation) -> Any:
            await gateway.until_cancelled(operation_id)

        now.service.gateway.answers["vm.rescue"] = goes_on
        begun = await now.customer("vm.rescue", id=vm_id)
        await now.service.until_asked("vm.rescue")
        assert await done(now, "vm.force_stop", id=vm_id, confirm="web") == "succeeded"
        assert (await now.service.ended(begun.task.id)).status == "cancelled"
        assert await shown(now, vm_id) == ("stopped", False)
        assert now.service.rechecked == [now.world.node_id]

        asked_at = datetime.now(UTC)
        node = now.world.node_id
        for in_rescue in (True, False):
            reported = {vm_id: ReportedMachine(DomainState.STOPPED, StateCause.FORCED, in_rescue)}
            [found] = compare(node, await concerned_machines(database, node, [vm_id]), reported).differences
            seen = MachineReport(node, found.state, found.reason, found.cause, found.rescue)
            async with database.transaction() as tx:
                await tx.execute("UPDATE vms SET observed_at = NULL")
                await record_observations(tx, {vm_id: seen}, asked_at=asked_at)
            assert await shown(now, vm_id) == ("stopped", in_rescue)
            assert compare(node, await concerned_machines(database, node, [vm_id]), reported).differences == ()


async def test_a_controller_that_dies_over_it_goes_on_with_the_same_rescue(database: Database) -> None:
    world, gateway = await make_fleet(database), FakeGateway()
    await add_system(database)
    async with open_service(database, gateway) as service:
        created = await service.create(world.machine())
        await service.ended(created.task)
        let_go = gateway.hold("vm.rescue")
        new = NewRescue(password_hash="$6$x$y", generated="secret", ssh_keys=(), force=False)
        task, _ = await service.machine(created.vm_id).ask(Machine.rescue, ADMINISTRATOR, new)
        first = await service.until_asked("vm.rescue")
    let_go.set()
    async with open_service(database, gateway) as service:
        assert (await service.ended(task)).status == "succeeded"
        instances = {each.instance_id for each in gateway.asked if isinstance(each, VmRescue)}
        assert (instances, set(gateway.asked_ids[gateway.asked_ids.index(first) :])) == ({str(task.id)}, {first})
        assert (await service.vm(created.vm_id))["rescue_since"] is not None


async def test_no_machine_is_made_from_a_rescue_system_and_customers_are_not_shown_it(database: Database) -> None:
    async with stage(database) as now:
        system = await add_system(database)
        assert [each.slug for each in await now.customer("image.list")] == ["demo"]
        assert {each.slug for each in await now.administrator("image.list")} == {"demo", "rescue"}
        refused = await refusal(now.customer, "vm.create", **now.order(image_id=system))
        assert refused.code is ErrorCode.NOT_FOUND
        vm_id = await machine(now)
        assert (await refusal(now.customer, "vm.reinstall", id=vm_id, confirm="web", image="rescue")).code is (
            ErrorCode.NOT_FOUND
        )


async def test_the_controllers_own_rescue_system_is_kept_as_an_image_and_follows_its_file(
    database: Database, tmp_path: Any
) -> None:
    files, source = ImageFiles(tmp_path), trio.Path(tmp_path / "rescue.tar")
    await keep_rescue_system(database, files, tmp_path / "rescue.tar")
    assert await database.fetchval("SELECT count(*) FROM images WHERE kind <> 'empty'") == 0
    for content in (b"first", b"first", b"second"):
        await source.write_bytes(content)
        await keep_rescue_system(database, files, tmp_path / "rescue.tar")
        row = await database.fetchone("SELECT id, kind, size_bytes, enabled FROM images WHERE slug = 'rescue'")
        path = files.find(str(row["id"]))
        assert path is not None
        assert (await trio.Path(path).read_bytes(), row["kind"], row["enabled"]) == (content, "rescue", True)
