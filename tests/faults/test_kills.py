"""kill -9 of the controller, of the nodes' agents and of PostgreSQL in the midst of orders."""

from __future__ import annotations

from enum import StrEnum

import pytest
import trio

from tests.faults.conftest import Extent
from tests.support.deployment import Deployment, open_deployment
from tests.support.figures import report_figure

pytestmark = [pytest.mark.system, pytest.mark.isolated]

CLIENTS = 6
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
            async with house.api() as api:
                await api.insist("GET", "/vms", page_size=1)


@pytest.mark.parametrize("victim", Victim)
async def test_every_order_ends_once_whoever_is_killed(victim: Victim, extent: Extent, seed: int) -> None:
    """Orders are handed out by turns, and the kill of each turn comes at a random instant, while some of that turn's
    and of earlier ones' are being placed and carried out."""
    async with open_deployment(nodes=3, seed=seed, delay=(0.05, 0.6)) as house, house.api() as api:
        hand_out, orders = trio.open_memory_channel[str](extent.orders)

        async def place_orders() -> None:
            async for key in orders:
                await house.order(api, key)

        async def hand_out_and_kill() -> None:
            with hand_out:
                for turn in range(extent.kills):
                    for number in range(turn, extent.orders, extent.kills):
                        hand_out.send_nowait(f"order-{number}")
                    await trio.sleep(house.random.uniform(0.1, 1.2))
                    await kill(house, victim)

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(place_orders)
            nursery.start_soon(hand_out_and_kill)

        began = trio.current_time()
        statuses = await house.check_truth(api, within=ENDED_WITHIN)
        ended = trio.current_time() - began
        report_figure(
            f"{victim}: {extent.kills} kills, {extent.orders} orders, all ended {ended:.1f} s after the last answer, "
            f"{list(statuses.values()).count('running')} running"
        )
        assert len(statuses) == extent.orders
        assert list(statuses.values()).count("running") > extent.orders // 2
        await house.check_handles(api)
