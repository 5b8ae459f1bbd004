"""kill -9 of the controller, of the nodes' agents and of PostgreSQL in the midst of fifty orders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum

import pytest
import trio

from tests.support.deployment import Deployment, open_deployment

pytestmark = pytest.mark.system

ORDERS = 50
KILLS = 4
ENDED_WITHIN = 60.0


class Victim(StrEnum):
    CONTROLLER = "controller"
    AGENTS = "agents"
    POSTGRESQL = "postgresql"


async def kill(house: Deployment, victim: Victim) -> None:
    """Kill it and see that it comes back, as a service manager would."""
    match victim:
        case Victim.CONTROLLER:
            await house.stack.controller.kill()
            await house.restart_controller()
        case Victim.AGENTS:
            await house.fleet.kill()
            house.fleet.start()
        case Victim.POSTGRESQL:
            house.kill_postmaster()


async def kill_at_random(house: Deployment, victim: Victim, under_way: Callable[[], Awaitable[bool]]) -> None:
    """At random instants, until enough was killed and nobody is left to be disturbed."""
    for _ in range(KILLS):
        await trio.sleep(house.random.uniform(0.2, 1.5))
        await kill(house, victim)
        if not await under_way():
            break


@pytest.mark.parametrize("victim", Victim)
async def test_every_order_ends_once_whoever_is_killed(victim: Victim) -> None:
    async with open_deployment(nodes=3, seed=41, delay=(0.05, 0.6)) as house, house.api() as api:
        left = list(range(ORDERS))

        async def place_orders() -> None:
            while left:
                await house.order(api, f"order-{left.pop()}")

        async def under_way() -> bool:
            return bool(left)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(place_orders)
            nursery.start_soon(kill_at_random, house, victim, under_way)
        statuses = await house.check_truth(api, within=ENDED_WITHIN)
        assert len(statuses) == ORDERS
        assert list(statuses.values()).count("running") > ORDERS // 2
        await house.check_handles(api)
