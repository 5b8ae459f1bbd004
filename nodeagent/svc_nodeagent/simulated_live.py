"""Live migration of a simulated machine: nothing is dialled, so the guest has left when it was sent, and has arrived
when it was received."""

from __future__ import annotations

from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import DomainState, FailureCode, LivePlace, LiveResult
from svc_nodeagent.simulated_machines import SimulatedMachine


def require_running(machine: SimulatedMachine) -> None:
    if machine.state is not DomainState.RUNNING:
        raise HostError(FailureCode.CONFLICT, "The guest does not run, so it was not moved.")


def live_result(vm_id: UUID, machine: SimulatedMachine | None) -> LiveResult:
    if machine is None:
        return LiveResult(vm_id=vm_id, place=LivePlace.ABSENT, state=DomainState.ABSENT)
    return LiveResult(vm_id=vm_id, place=machine.place, state=machine.state)
