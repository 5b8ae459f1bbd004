"""Every test here runs on a virtual clock, in one process, against a small actor system of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from inspect import iscoroutinefunction
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from svc_actors.runtime import ActorAlert, ActorSystem, RestartPolicy


def run_on_a_virtual_clock(
    test: Callable[[], Awaitable[None]], *, clock: None, instruments: Sequence[trio.abc.Instrument]
) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_on_a_virtual_clock), append=False)


@pytest.fixture
def alerts() -> list[ActorAlert]:
    return []


@pytest.fixture
async def system(alerts: list[ActorAlert]) -> AsyncIterator[ActorSystem]:
    """Mailboxes of four, a deadline of 20 s, live for 10 s, refusing for a minute after the third crash within 30 s."""
    policy = RestartPolicy(intensity=2, window=30.0, first_pause=1.0, longest_pause=8.0, cool_down=60.0)
    async with ActorSystem.open(
        mailbox_limit=4, idle_after=10.0, handler_deadline=20.0, restart=policy, on_alert=alerts.append
    ) as system:
        yield system
