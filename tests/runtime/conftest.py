"""Every test here runs on a virtual clock, in one process, against a small actor system of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from svc_actors.runtime import ActorSystem, Crash


def run_on_a_virtual_clock(
    test: Callable[[], Awaitable[None]], *, clock: None, instruments: Sequence[trio.abc.Instrument]
) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_on_a_virtual_clock), append=False)


@pytest.fixture
def crashes() -> list[Crash]:
    return []


@pytest.fixture
async def system(crashes: list[Crash]) -> AsyncIterator[ActorSystem]:
    async with ActorSystem.open(on_crash=crashes.append) as system:
        yield system
