"""The changes of guests' states that wait to be sent: the latest change of each machine, in the order of arrival.

A change that was not sent yet is replaced by the next change of the same machine. So the last state that is sent for a
machine is correct, however many changes were left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from uuid import UUID

import trio

from svc_nodeagent.hypervisor.programs import host_is_stopping
from svc_nodeagent.protocol import DomainChanged, DomainState, StateCause


class DomainChanges:
    def __init__(self) -> None:
        self._states: dict[UUID, DomainState] = {}
        """The last seen state of each machine; an absent machine has no entry."""
        self._changes: dict[UUID, DomainChanged] = {}
        self._changed = trio.Event()

    def saw(self, vm_id: UUID, state: DomainState, reason: str, cause: StateCause | None = None) -> None:
        if state is DomainState.ABSENT:
            self._states.pop(vm_id, None)
        else:
            self._states[vm_id] = state
        self._changes.pop(vm_id, None)  # so that the machine moves to the end: changes are sent in the order of arrival
        change = DomainChanged(vm_id=vm_id, state=state, reason=reason, cause=cause, at=datetime.now(UTC))
        self._changes[vm_id] = change
        self._changed.set()

    def missed(
        self, observed: Mapping[UUID, tuple[DomainState, StateCause | None]]
    ) -> list[tuple[UUID, DomainState, StateCause | None]]:
        """The changes that were missed: where the states in `observed` differ from those last seen. A machine that is
        not in `observed` is absent."""
        now = {
            vm_id: observed.get(vm_id, (DomainState.ABSENT, None)) for vm_id in self._states.keys() | observed.keys()
        }
        return [(vm_id, *seen) for vm_id, seen in now.items() if self._states.get(vm_id) is not seen[0]]

    async def fetch(self) -> AsyncIterator[DomainChanged]:
        while True:
            while self._changes:
                change = self._changes.pop(next(iter(self._changes)))
                if change.cause is StateCause.GUEST and await host_is_stopping():
                    # The host has asked all its guests to shut down, so this shutdown was not ordered by the machine's
                    # owner.
                    change = change.model_copy(update={"cause": None, "reason": "the host is shutting down"})
                yield change
            self._changed = trio.Event()
            await self._changed.wait()
