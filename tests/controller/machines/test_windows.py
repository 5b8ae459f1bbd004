"""A Windows machine's password: ordered, set after the first boot, kept nowhere; the machine's own in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio

from svc.registry.principal import Role
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.windows import LOST
from svc_actors.controller.reconcile.windows_watch import WindowsWatch
from svc_actors.store import Database
from svc_common.errors import ErrorCode
from svc_nodeagent.protocol import (
    Done,
    FailureCode,
    NodeOperation,
    OperationId,
    OperationResult,
    VmCreate,
    VmReinstall,
    VmWindowsPassword,
    VmWindowsReport,
    WindowsReport,
)
from tests.support.gateway import until
from tests.support.machine_api import Api, person
from tests.support.machine_service import FakeGateway, Service, open_service
from tests.support.machines import MachineHarness, refusal, stage

CHOSEN = "Correct-Horse-7"
OWN = "made-at-First-Boot-3"


@dataclass
class WindowsGuest:
    """`refuses` what it is given, in words that repeat it."""

    booted: bool = False
    own: str | None = OWN
    refuses: bool = False
    given: list[tuple[str, str]] = field(default_factory=list)

    def live_on(self, gateway: FakeGateway) -> None:
        gateway.answers |= {"vm.windows.report": self._report, "vm.windows.password": self._take}

    async def _report(self, _: FakeGateway, __: UUID, ___: OperationId, asked: NodeOperation) -> OperationResult:
        await trio.lowlevel.checkpoint()
        assert isinstance(asked, VmWindowsReport)
        return WindowsReport(vm_id=asked.vm_id, booted=self.booted, password=self.own if self.booted else None)

    async def _take(self, _: FakeGateway, __: UUID, ___: OperationId, asked: NodeOperation) -> OperationResult:
        await trio.lowlevel.checkpoint()
        assert isinstance(asked, VmWindowsPassword)
        if not self.booted:
            raise OperationFailed(FailureCode.CONFLICT, "The guest's agent is not running.", None)
        if self.refuses:
            raise OperationFailed(FailureCode.HOST, "Windows refused the password of Administrator.", None)
        self.given.append((asked.account, asked.password))
        return Done()


@asynccontextmanager
async def windows_stage(database: Database, guest: WindowsGuest) -> AsyncIterator[MachineHarness]:
    async with stage(database) as now:
        await database.execute("UPDATE images SET os_family = 'windows'")
        guest.live_on(now.service.gateway)
        yield now


async def looked(service: Service) -> None:
    """Every machine whose first boot is awaited has been asked."""
    await WindowsWatch(service.database, service.gateway, service.actors, service.passwords).round()


async def setup(service: Service, api: Api, vm_id: UUID, *, booted: bool = True) -> Any:
    """What is shown of the first boot once the machine has been asked, whose system is `booted`."""
    await looked(service)
    shown = await api("vm.windows", id=vm_id)
    assert (shown.booted_at is not None) is booted
    return shown


async def running(now: MachineHarness, **order: object) -> Any:
    made = await now.customer("vm.create", **now.order(ssh_keys=[], **order))
    await now.service.ended(made.task.id)
    return made


async def everything_stored(database: Database) -> str:
    tables = await database.fetch(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = current_schema()"
    )
    rows = [await database.fetch(f"SELECT t::text AS row FROM {table['name']} t") for table in tables]
    return "\n".join(row["row"] for of_table in rows for row in of_table)


async def test_a_chosen_password_is_set_after_the_first_boot_and_stored_nowhere(database: Database) -> None:
    guest = WindowsGuest()
    async with windows_stage(database, guest) as now:
        made = await running(now, set_password=CHOSEN)
        early = await setup(now.service, now.customer, made.vm.id, booted=False)
        before = list(guest.given)
        stored = await everything_stored(database)
        guest.booted = True
        shown = await setup(now.service, now.customer, made.vm.id)
        taken = await refusal(now.customer, "vm.windows_credential", id=made.vm.id)
        [created] = [asked for asked in now.service.gateway.asked if isinstance(asked, VmCreate)]
        stored += await everything_stored(database)

    assert (made.password, made.password_chosen, made.user) == (None, True, "Administrator")
    assert (early.password_set_at, early.password_error, early.credential_offered) == (None, None, False)
    assert before == []
    assert guest.given == [("Administrator", CHOSEN)]
    assert shown.password_set_at is not None
    assert not shown.credential_offered
    assert taken.code is ErrorCode.CONFLICT
    assert created.machine.seed.account.password_hash is None
    assert CHOSEN not in stored


async def test_a_generated_password_is_answered_once_and_is_the_one_that_is_set(database: Database) -> None:
    guest = WindowsGuest(booted=True)
    async with windows_stage(database, guest) as now:
        made = await running(now, password=True)
        await setup(now.service, now.customer, made.vm.id)

    assert guest.given == [("Administrator", made.password)]


async def test_in_place_of_a_refused_password_the_machines_own_is_offered_once(database: Database) -> None:
    guest = WindowsGuest(booted=True, refuses=True)
    async with windows_stage(database, guest) as now:
        made = await running(now, set_password=CHOSEN)
        shown = await setup(now.service, now.customer, made.vm.id)
        given: list[Any] = []
        refused: list[Any] = []

        async def take() -> None:
            try:
                given.append(await now.customer("vm.windows_credential", id=made.vm.id))
            except Exception as error:  # noqa: BLE001 - looked at below
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            nursery.start_soon(take)
        again = await refusal(now.customer, "vm.windows_credential", id=made.vm.id)
        after = await now.customer("vm.windows", id=made.vm.id)
        audited = await database.fetchval("SELECT count(*) FROM audit WHERE operation = 'vm.windows_credential'")
        stored = await everything_stored(database)

    assert shown.password_error == "Windows refused the password of Administrator."
    assert shown.credential_offered
    assert [(each.user, each.password) for each in given] == [("Administrator", OWN)]
    assert [each.code for each in refused] == [ErrorCode.CONFLICT]
    assert again.code is ErrorCode.CONFLICT
    assert (after.credential_offered, after.credential_taken_at is None) == (False, False)
    assert audited == 1
    assert CHOSEN not in stored
    assert OWN not in stored


async def test_a_restart_before_the_first_boot_has_ended_loses_the_password_and_says_so(database: Database) -> None:
    guest = WindowsGuest()
    async with windows_stage(database, guest) as now:
        made = await running(now, set_password=CHOSEN)
        gateway = now.service.gateway
    guest.booted = True
    async with open_service(database, gateway) as service:
        api = Api(service, await person(database, Role.ADMINISTRATOR))
        shown = await setup(service, api, made.vm.id)
        own = await api("vm.windows_credential", id=made.vm.id)

    assert shown.password_error == LOST
    assert guest.given == []
    assert own.password == OWN


async def test_without_an_ordered_password_the_machines_own_is_offered_while_it_runs(database: Database) -> None:
    guest = WindowsGuest(booted=True)
    async with windows_stage(database, guest) as now:
        made = await running(now)
        shown = await setup(now.service, now.customer, made.vm.id)
        guest.booted = False
        off = await refusal(now.customer, "vm.windows_credential", id=made.vm.id)
        guest.booted, guest.own = True, None
        none = await refusal(now.customer, "vm.windows_credential", id=made.vm.id)
        guest.own = OWN
        own = await now.customer("vm.windows_credential", id=made.vm.id)

    assert (shown.password_set_at, shown.password_error, shown.credential_offered) == (None, None, True)
    assert (off.code, none.code) == (ErrorCode.NOT_READY, ErrorCode.CONFLICT)
    assert own.password == OWN


async def test_nothing_is_set_or_offered_before_the_first_boot_has_ended(database: Database) -> None:
    guest = WindowsGuest()
    async with windows_stage(database, guest) as now:
        made = await running(now, set_password=CHOSEN)
        await looked(now.service)
        refused = [
            await refusal(now.customer, name, id=made.vm.id) for name in ("vm.windows_credential", "vm.reset_password")
        ]

    assert [each.code for each in refused] == [ErrorCode.NOT_READY] * 2
    assert guest.given == []


async def test_a_running_windows_is_given_another_password_by_its_agent(database: Database) -> None:
    guest = WindowsGuest(booted=True)
    async with windows_stage(database, guest) as now:
        made = await running(now)
        await setup(now.service, now.customer, made.vm.id)
        chosen = await now.customer("vm.reset_password", id=made.vm.id, password=CHOSEN)
        first = await now.service.ended(chosen.task_id)
        generated = await now.customer("vm.reset_password", id=made.vm.id)
        await now.service.ended(generated.task_id)
        guest.refuses = True
        refused = await now.customer("vm.reset_password", id=made.vm.id)
        last = await now.service.ended(refused.task_id)
        shown = await now.customer("vm.windows", id=made.vm.id)
        stored = await everything_stored(database)

    assert first.status.value == "succeeded"
    assert (chosen.user, chosen.chosen, chosen.password) == ("Administrator", True, None)
    assert guest.given == [("Administrator", CHOSEN), ("Administrator", generated.password)]
    assert last.status.value == "failed"
    assert shown.password_set_at is not None
    assert CHOSEN not in stored


async def test_a_reinstallation_has_a_first_boot_of_its_own(database: Database) -> None:
    guest = WindowsGuest(booted=True)
    async with windows_stage(database, guest) as now:
        made = await running(now)
        await setup(now.service, now.customer, made.vm.id)
        guest.booted = False
        order = {"id": made.vm.id, "confirm": made.vm.name, "set_password": CHOSEN}
        begun = await now.customer("vm.reinstall", **order)
        ended = await now.service.ended(begun.task.id)
        during = await now.customer("vm.windows", id=made.vm.id)
        guest.booted = True
        shown = await setup(now.service, now.customer, made.vm.id)
        [asked] = [asked for asked in now.service.gateway.asked if isinstance(asked, VmReinstall)]

    assert ended.status.value == "succeeded"
    assert during.booted_at is None
    assert guest.given == [("Administrator", CHOSEN)]
    assert shown.password_set_at is not None
    assert asked.seed.account.password_hash is None


async def test_a_machine_of_another_system_has_no_windows_setup(database: Database) -> None:
    async with stage(database) as now:
        made = await now.created()
        refused = [await refusal(now.customer, name, id=made.vm.id) for name in ("vm.windows", "vm.windows_credential")]
        foreign = await refusal(now.stranger, "vm.windows_credential", id=made.vm.id)

    assert [each.code for each in refused] == [ErrorCode.CONFLICT] * 2
    assert foreign.code is ErrorCode.NOT_FOUND


async def test_a_machine_that_was_not_made_or_is_deleted_leaves_no_password_in_memory(database: Database) -> None:
    async def fails(*_: object) -> OperationResult:
        await trio.lowlevel.checkpoint()
        raise OperationFailed(FailureCode.HOST, "No room.", None)

    async with windows_stage(database, WindowsGuest()) as now:
        deleted = await running(now, set_password=CHOSEN)
        begun = await now.customer("vm.delete", id=deleted.vm.id, confirm=deleted.vm.name)
        await now.service.ended(begun.id)
        now.service.gateway.answers["vm.create"] = fails
        failed = await running(now, name="other", set_password=CHOSEN)

        # A machine forgets right behind the end of its task.
        await until(lambda: [now.service.passwords.of(made.vm.id) for made in (deleted, failed)] == [None, None])
