"""What waits to be done about nodes, for a few workers: of a thousand that come at once, a few are taken at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar
from uuid import UUID

import trio

T = TypeVar("T")


class NodeQueue(Generic[T]):
    """In the order in which nodes began to wait; what comes for a node that waits already takes the place of what was
    there. One worker at a time has a node, so what is put later is done later."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, T] = {}
        self._taken: set[UUID] = set()
        self._idle = trio.lowlevel.ParkingLot()

    def get(self, node_id: UUID) -> T | None:
        return self._waiting.get(node_id)

    def put(self, node_id: UUID, what: T) -> None:
        self._waiting[node_id] = what
        self._idle.unpark()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[tuple[UUID, T]]:
        """The node that has waited longest, its worker's until the end of the block."""
        while (node_id := next((each for each in self._waiting if each not in self._taken), None)) is None:
            await self._idle.park()
        self._taken.add(node_id)
        try:
            yield node_id, self._waiting.pop(node_id)
        finally:
            self._taken.discard(node_id)
            self._idle.unpark()  # It may have been put again meanwhile, when nobody could take it.
