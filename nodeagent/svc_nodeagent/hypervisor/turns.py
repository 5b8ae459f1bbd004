"""Serialises the work on a machine: one step at a time, and later orders replace earlier ones.

Invariants: steps of one machine do not overlap (a lock a machine); nothing waits under the lock for a guest or a
download, so a forced stop or a deletion can start at once, and the operation that it replaces notices this (`Order`); a
decided reinstallation is completed before any step.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import reinstallation
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import FailureCode


@dataclass
class _Turn:
    """The lock for the steps of one machine, and the number of its orders so far."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    orders: int = 0


@dataclass(frozen=True)
class Order:
    """An order about a machine, which later orders supersede: a superseded creation, orderly shutdown or restart ends
    as cancelled."""

    what: str
    turn: _Turn
    number: int

    @property
    def stands(self) -> bool:
        return self.turn.orders == self.number

    def check(self) -> None:
        """Raise `HostError(cancelled)` if a later order has superseded this one."""
        if not self.stands:
            raise HostError(FailureCode.CANCELLED, f"A later order for the machine replaced {self.what}.")


class Turns:
    def __init__(self, guests: Guests, folders: Folders) -> None:
        self._guests = guests
        self._folders = folders
        self._turns: dict[UUID, _Turn] = {}

    @asynccontextmanager
    async def steps(self, vm_id: UUID) -> AsyncIterator[None]:
        """No other step of the machine runs for the length of the block."""
        async with self._turns.setdefault(vm_id, _Turn()).lock:
            if await in_thread(reinstallation.is_decided, self._folders, vm_id):
                await self._complete_reinstallation(vm_id)
            yield

    def order(self, vm_id: UUID, what: str) -> Order:
        """Supersede earlier orders."""
        turn = self._turns.setdefault(vm_id, _Turn())
        turn.orders += 1
        return Order(what, turn, turn.orders)

    async def _complete_reinstallation(self, vm_id: UUID) -> None:
        await self._guests.destroy(vm_id)
        await in_thread(reinstallation.complete, self._folders, vm_id)
