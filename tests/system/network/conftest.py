"""One laboratory a test process, and for each test guests as the last one found them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import trio

from tests.system.network.agent import Killed
from tests.system.network.lab import Lab, laboratory
from tests.system.network.matrix import Matrix


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with laboratory() as lab:
        trio.run(_renew, lab)
        yield lab


@pytest.fixture
async def matrix(lab: Lab) -> AsyncIterator[Matrix]:
    try:
        async with lab.agent() as agent:
            matrix = Matrix(lab, agent)
            yield matrix
            await matrix.restore()
    except* Killed:
        await _renew(lab)
        raise


@pytest.fixture
async def alone(lab: Lab) -> AsyncIterator[Lab]:
    """For tests that run agents of their own: every guest is as found, and its agent comes back afterwards."""
    yield lab
    await _renew(lab)


async def _renew(lab: Lab) -> None:
    """A new agent, every guest as found, and those running again whose tap went."""
    lab.renew_agent()
    async with lab.agent() as agent:
        await agent.restore()
    for guest in lab.guests:
        if not lab.copied(guest).attached:
            lab.attach(guest)
