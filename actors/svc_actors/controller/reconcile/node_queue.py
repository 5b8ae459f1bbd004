"""A queue of work about nodes for a few workers: if a thousand nodes come at once, a few are processed at a time.

Rejected: a task for each piece of work, without a bound. A hundred nodes with a hundred machines each took every
connection of the database that background work has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Generic, TypeVar
from uuid import UUID

import trio

T = TypeVar("T")


class NodeQueue(Generic[T]):
    """A queue in the order in which nodes started to wait. New work for a node that already waits replaces the earlier
    work. Only one worker at a time has a node, so work that is put later is done later."""

    def __init__(self) -> None:
        self._waiting: dict[UUID, T] = {}
        self._taken: set[UUID] = set()
        self._idle = trio.lowlevel.ParkingLot()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and no worker is busy."""
        return not self._waiting and not self._taken

    def get(self, node_id: UUID) -> T | None:
        return self._waiting.get(node_id)

    def put(self, node_id: UUID, what: T) -> None:
        # A dict keeps the place of a key that is assigned again, so a node keeps its turn however often it is put.
        self._waiting[node_id] = what
        self._idle.unpark()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[tuple[UUID, T]]:
        """The node that has waited longest; no other worker gets this node until the block ends."""
        async with self.next_few(1) as few:
            [node] = few.items()
            yield node

    @asynccontextmanager
    async def next_few(self, most: int) -> AsyncIterator[dict[UUID, T]]:
        """The nodes that have waited longest, at least one; no other worker gets these nodes until the block ends."""
        # A loop, because several workers may have been woken and another one may have taken the node already.
        while not (few := list(islice((each for each in self._waiting if each not in self._taken), most))):
            await self._idle.park()
        self._taken.update(few)
        try:
            yield {node_id: self._waiting.pop(node_id) for node_id in few}
        finally:
            self._taken.difference_update(few)
            # While these nodes were taken, they may have been put again, and no other worker could take them then.
            self._idle.unpark(count=len(few))
