"""Waiting in a test for what happens in its own process: the double tells of each change, and nobody polls."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Changes:
    """Call `tell` after each change. `until` waits for the change after which a condition holds, for as long as a test
    may take."""

    def __init__(self) -> None:
        self._next = trio.Event()

    def tell(self) -> None:
        changed, self._next = self._next, trio.Event()
        changed.set()

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            await self._next.wait()
