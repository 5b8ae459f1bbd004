"""Windows machines whose first boot is awaited: each is polled, and then given its ordered password.

Invariant: a password is sent to a guest only after it has reported the end of its first boot. Before that, Windows' own
setup could still replace the password.

The password is only in this process's memory (`WindowsPasswords`). If the controller restarts before the first boot has
ended, the password is lost, and the machine's record says so. The alternative would be a secret that stays in the
database for as long as a guest does not boot.
"""

from __future__ import annotations

from functools import partial
from typing import Final, Protocol
from uuid import UUID

import structlog
import trio

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.machine import Machine
from svc_actors.controller.machines.windows import (
    ACCOUNT,
    LOST,
    PendingFirstBoot,
    WindowsPasswords,
    pending_first_boots,
)
from svc_actors.runtime import ActorSystem, DomainError
from svc_actors.store import Database, LoopAlert, keep_repeating
from svc_nodeagent.protocol import (
    FailureCode,
    NodeOperation,
    OperationResult,
    VmWindowsPassword,
    VmWindowsReport,
    WindowsReport,
)

LOOK_SECONDS: Final = 2.0
# An installation takes minutes: a machine is asked every 5 s at first, then less and less often, down to once a minute.
_ANSWER_SECONDS: Final = 60.0
FIRST_PAUSE: Final = 5.0
_LONGEST_PAUSE: Final = 60.0
log = structlog.get_logger(__name__)


class WindowsGateway(Protocol):
    """The part of the gateway that the watch uses."""

    def is_online(self, node_id: UUID) -> bool: ...

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult: ...


class WindowsWatch:
    """One per process; `run` runs in the composer's nursery."""

    def __init__(
        self,
        database: Database,
        gateway: WindowsGateway,
        actors: ActorSystem,
        passwords: WindowsPasswords,
        *,
        interval: float = LOOK_SECONDS,
        pause: float = FIRST_PAUSE,
        alert: LoopAlert | None = None,
    ) -> None:
        self._database = database
        self._gateway = gateway
        self._actors = actors
        self._passwords = passwords
        self._interval = interval
        self._pause = pause
        self._alert = alert
        self._under_way: set[UUID] = set()
        self._resting: dict[UUID, tuple[float, float]] = {}
        """For a machine whose first boot has not ended: the time of the next question, and the length of the current
        pause in seconds."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            task_status.started()
            look = partial(self._look, nursery)
            await keep_repeating("first boots of Windows", self._interval, look, self._alert)

    async def round(self) -> None:
        """A single round, for tests: the machines asked have answered when it returns."""
        async with trio.open_nursery() as nursery:
            await self._look(nursery)

    async def _look(self, nursery: trio.Nursery) -> None:
        due = await pending_first_boots(self._database)
        ids = {each.vm_id for each in due}
        self._resting = {vm_id: rest for vm_id, rest in self._resting.items() if vm_id in ids}
        for each in due:
            rested = self._resting.get(each.vm_id, (0.0, 0.0))[0] <= trio.current_time()
            if each.vm_id not in self._under_way and rested and self._gateway.is_online(each.node_id):
                self._under_way.add(each.vm_id)
                nursery.start_soon(self._ask, each)

    async def _ask(self, machine: PendingFirstBoot) -> None:
        done = False
        try:
            done = await self._has_booted(machine)
        except (DomainError, OperationFailed) as error:
            log.info("windows.not_set_up", vm_id=str(machine.vm_id), error=str(error))
        except Exception:
            # A defect in handling this machine must not end the work on the others, or the controller.
            log.exception("windows.setup_failed", vm_id=str(machine.vm_id))
        finally:
            self._under_way.discard(machine.vm_id)
            if not done:
                pause = min(_LONGEST_PAUSE, 2 * self._resting.get(machine.vm_id, (0.0, self._pause / 2))[1])
                self._resting[machine.vm_id] = (trio.current_time() + pause, pause)

    async def _has_booted(self, machine: PendingFirstBoot) -> bool:
        report = await self._query(machine.node_id, VmWindowsReport(vm_id=machine.vm_id))
        if not isinstance(report, WindowsReport) or not report.booted:
            return False
        error = await self._set_password(machine) if machine.password_ordered else None
        actor = self._actors.ref(Machine, str(machine.vm_id))
        await actor.ask(Machine.first_boot_ended, machine.ordered_at, error)
        self._passwords.forget(machine.vm_id)
        return True

    async def _set_password(self, machine: PendingFirstBoot) -> str | None:
        """Set the password; returns why it was not set, or None. Raises `OperationFailed` for a failure that may
        pass."""
        password = self._passwords.of(machine.vm_id)
        if password is None:
            return LOST
        operation = VmWindowsPassword(vm_id=machine.vm_id, account=ACCOUNT, password=password)
        try:
            await self._query(machine.node_id, operation)
        except OperationFailed as failure:
            # With this code Windows itself has refused the password (because of its password policy, for example) and
            # would refuse it again. After any other failure the next round tries again.
            if failure.code is not FailureCode.HOST:
                raise
            return failure.message
        return None

    async def _query(self, node_id: UUID, operation: NodeOperation) -> OperationResult:
        return await self._gateway.query(node_id, operation, timeout=_ANSWER_SECONDS)
