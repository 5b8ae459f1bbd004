"""The interface between the core of the agent and a hypervisor, implemented by the libvirt host and by the simulated
one.

Invariants a host keeps:

- an operation states a desired state: performing it again after it was interrupted at any point ends in the same state;
- operations on different machines run side by side; the host itself serialises what must not overlap on one machine,
  and a forced stop never waits for the orderly shutdown that it replaces;
- cancelling `perform` abandons the operation if that is possible; the operation can be repeated in any case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol
from uuid import UUID

import trio

from svc_nodeagent.protocol import (
    Capacity,
    ConsoleKind,
    DomainChanged,
    FailureCode,
    NodeFacts,
    NodeOperation,
    OperationResult,
)

Report = Callable[[int, str], Awaitable[None]]
"""`await report(percent, message)`: progress of one operation as a whole. Never blocks for long."""

OpenStream = Callable[[str], Awaitable[trio.abc.Stream]]
"""Opens a stream to the controller with a stream token (`ControllerSource.token`). A file's stream ends where the file
ends; the reader checks its length and digest. Raises `OSError` if the controller cannot be reached."""


class HostError(Exception):
    """Why an operation failed on the host: `code` for programs, `message` for people, `hint` for what to do."""

    def __init__(self, code: FailureCode, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class Host(Protocol):
    """A hypervisor. Each implementation has its own way to open and close; the agent gets an open one."""

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        """Perform the operation and return the result model that its docstring in the protocol names.

        `console.open`, `node.certificate.renew` and `node.upgrade` never arrive here: the core handles them. Raises
        `HostError`."""
        ...

    async def capacity(self) -> Capacity:
        """The total and the free capacity. Cheap: called at every heartbeat."""
        ...

    async def facts(self) -> NodeFacts: ...

    def domain_changes(self) -> AsyncIterator[DomainChanged]:
        """Every change of state of one of our guests from now on, whatever caused it. Iterated once, for as long as the
        agent runs."""
        ...

    async def open_console(self, vm_id: UUID, kind: ConsoleKind) -> trio.abc.Stream:
        """The raw byte stream of a running guest's screen (RFB) or serial line. Raises `HostError` (`not_found`,
        `conflict` if the guest is not running)."""
        ...
