"""Somebody who works while a disk is full, and what is expected of the service meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.support.deployment import POLL, Api, Unavailable

BACK_WITHIN = 10.0


class Work:
    """Somebody who makes projects and reads lists all the time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.acknowledged: set[str] = set()
        self.refused: list[str] = []
        self.reads = 0
        self.reads_refused = 0

    async def change(self) -> None:
        number = 0
        while True:
            number += 1
            try:
                made = await self._api.call("POST", "/projects", {"name": f"project-{number}"})
                self.acknowledged.add(made["id"])
            except Unavailable as refusal:
                self.refused.append(str(refusal))
            await trio.sleep(POLL / 2)

    async def read(self) -> None:
        while True:
            try:
                await self._api.call("GET", "/projects", page_size=1)
                self.reads += 1
            except Unavailable:
                self.reads_refused += 1
            await trio.sleep(POLL / 2)


@asynccontextmanager
async def working(api: Api) -> AsyncIterator[Work]:
    work = Work(api)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work.change)
        nursery.start_soon(work.read)
        yield work
        nursery.cancel_scope.cancel()


async def until_refused(work: Work, within: float = 10) -> None:
    with trio.fail_after(within):
        while not work.refused:
            await trio.sleep(POLL)


async def until_changes_are_taken(work: Work, within: float = BACK_WITHIN) -> float:
    """How long it took."""
    known, began = len(work.acknowledged), trio.current_time()
    with trio.fail_after(within):
        while len(work.acknowledged) == known:
            await trio.sleep(POLL)
    return trio.current_time() - began
