"""Live moves of a simulated machine: nothing is dialled, so the guest has left when it was sent, and has arrived when
it was received."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import DomainState, FailureCode, LivePlace, LiveResult


class Moving(Protocol):
    @property
    def vm_id(self) -> UUID: ...

    @property
    def state(self) -> DomainState: ...

    @property
    def place(self) -> LivePlace: ...


def require_running(machine: Moving) -> None:
    if machine.state is not DomainState.RUNNING:
        raise HostError(FailureCode.CONFLICT, "The guest does not run, so it was not moved.")


def live_result(vm_id: UUID, machine: Moving | None) -> LiveResult:
    if machine is None:
        return LiveResult(vm_id=vm_id, place=LivePlace.ABSENT, state=DomainState.ABSENT)
    return LiveResult(vm_id=vm_id, place=machine.place, state=machine.state)
