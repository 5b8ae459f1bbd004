"""Handles libvirt's events about guests, such as changes of state outside of operations (`connection.Listener`).

Invariant: after a reconnection the states are compared with those last seen, so the last reported state of each machine
is correct, however many events were missed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import inventory
from svc_nodeagent.hypervisor.connection import Connection, LifecycleEvent
from svc_nodeagent.hypervisor.consoles import SerialLines
from svc_nodeagent.hypervisor.domain_changes import DomainChanges
from svc_nodeagent.hypervisor.domains import (
    guest_agent_is_connected,
    lifecycle_cause,
    lifecycle_reason,
    lifecycle_state,
)
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.machines import Machines
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import DomainChanged, DomainState, StateCause

log = structlog.get_logger()


class MachineEvents:
    """`after_connecting`: further work to do after each connection to libvirt. Start `run` before the connection's
    `run`."""

    def __init__(
        self,
        *,
        connection: Connection,
        folders: Folders,
        naming: Naming,
        guests: Guests,
        machines: Machines,
        lines: SerialLines,
        after_connecting: Sequence[Callable[[], Awaitable[Any]]],
    ) -> None:
        self._connection = connection
        self._folders = folders
        self._naming = naming
        self._guests = guests
        self._machines = machines
        self._lines = lines
        self._after_connecting = after_connecting
        self._changes = DomainChanges()
        self._nursery: trio.Nursery

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do the work that events require, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def changes(self) -> AsyncIterator[DomainChanged]:
        return self._changes.fetch()

    def reconnected(self) -> None:
        for work in (self.compare, *self._after_connecting):
            self._nursery.start_soon(self._guarded, work)

    def lifecycle(self, event: LifecycleEvent) -> None:
        vm_id = self._naming.machine(event.uuid, event.name)
        state = lifecycle_state(event.event, event.detail)
        if vm_id is None or state is None:
            return
        if state is DomainState.ABSENT:
            self._nursery.start_soon(self._guarded, self._look_after_undefined, vm_id)
            return
        cause = lifecycle_cause(event.event, event.detail)
        self._saw(vm_id, state, lifecycle_reason(event.event, event.detail), cause)
        if event.event == libvirt.VIR_DOMAIN_EVENT_STARTED:
            self._nursery.start_soon(self._guarded, self._read_line, vm_id)
        if (event.event, event.detail) == (
            libvirt.VIR_DOMAIN_EVENT_STOPPED,
            libvirt.VIR_DOMAIN_EVENT_STOPPED_SHUTDOWN,
        ):
            self._nursery.start_soon(self._guarded, self._machines.forget_first_boot, vm_id)

    def guest_agent_connected(self, uuid: UUID, name: str) -> None:
        if (vm_id := self._naming.machine(uuid, name)) is not None:
            self._nursery.start_soon(self._guarded, self._machines.forget_first_boot, vm_id)

    async def compare(self) -> None:
        """After a (re)connection: report the differences from what was last seen, and read the serial lines of running
        guests. A failure for one machine does not affect the others."""
        observed = {
            domain.vm_id: (domain.state, domain.cause)
            for domain in await inventory.domains(self._connection, self._naming, self._folders)
            if domain.vm_id is not None
        }
        for vm_id, state, cause in self._changes.missed(observed):
            self._saw(vm_id, state, "seen when libvirt answered again", cause)
        for vm_id, (state, _) in observed.items():
            if state is DomainState.RUNNING:
                await self._guarded(self._look_after_running, vm_id)

    async def _look_after_running(self, vm_id: UUID) -> None:
        """Look after a guest that runs. It may be off by now, for example if a reinstallation was completed first."""
        await self._machines.keep_defined(vm_id)
        await self._read_line(vm_id)
        if guest_agent_is_connected(await self._guests.domain_xml(vm_id)):
            await self._machines.forget_first_boot(vm_id)

    async def _look_after_undefined(self, vm_id: UUID) -> None:
        """Handle the removal of a definition. If the guest still runs, its definition is stored again; otherwise the
        machine is reported as absent."""
        await self._machines.keep_defined(vm_id)
        if await self._guests.state(vm_id) is DomainState.ABSENT:
            self._saw(vm_id, DomainState.ABSENT, "removed from the host")

    async def _read_line(self, vm_id: UUID) -> None:
        await self._lines.attach(vm_id, self._nursery)

    def _saw(self, vm_id: UUID, state: DomainState, reason: str, cause: StateCause | None = None) -> None:
        if state in (DomainState.STOPPED, DomainState.CRASHED, DomainState.ABSENT):
            self._lines.forget(vm_id)
        self._changes.saw(vm_id, state, reason, cause)

    async def _guarded(self, work: Callable[..., Awaitable[Any]], *arguments: object) -> None:
        """Do the work that an event requires. No caller waits for it, so a failure is only logged; the next event
        repeats the work."""
        try:
            await work(*arguments)
        except (HostError, OSError, ValueError) as error:
            log.warning("libvirt.event_not_handled", work=work.__name__, error=str(error))
