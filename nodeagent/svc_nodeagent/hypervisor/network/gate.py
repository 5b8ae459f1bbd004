"""A shared and exclusive lock: changes of single machines hold it shared and run concurrently; a change of all machines
holds it exclusively."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class Gate:
    """The lock is fair: a task that waits for exclusive access is not overtaken by later tasks."""

    def __init__(self) -> None:
        self._door = trio.Lock()
        self._inside = 0
        self._empty = trio.Event()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._door:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._door:
            while self._inside:
                self._empty = trio.Event()
                await self._empty.wait()
            yield
