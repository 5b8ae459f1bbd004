"""The wall clock jumps by an hour and by a day, forward and back, while the service works."""

from __future__ import annotations

import httpx
import pytest
import trio

from tests.support.deployment import GUARD, Api, Deployment, Told, open_deployment
from tests.support.faketime import Clock, clock_and_postgresql

pytestmark = [pytest.mark.system, pytest.mark.isolated]

HOUR = 3600
DAY = 24 * HOUR
JUMPS = (HOUR, HOUR + DAY, HOUR, 0, -DAY, 0)


async def sign_in(house: Deployment, http: httpx.AsyncClient) -> None:
    body = {"email": house.stack.email, "password": house.stack.password}
    answer = await http.post("/api/v1/auth/login", json=body, headers=GUARD | {"Origin": house.stack.url})
    assert answer.is_success, answer.text


async def opens_console(house: Deployment, api: Api, vm_id: str) -> None:
    async with house.console(api, vm_id) as console:
        with trio.fail_after(60):
            await console.get_message()


async def jump_during_a_task(house: Deployment, api: Api, clock: Clock, jump: int, number: int) -> None:
    answer = await house.order(api, f"across-{number}")
    with trio.fail_after(60):
        while (await api.call("GET", f"/tasks/{answer['task']['id']}"))["status"] == "queued":
            await trio.sleep(0.05)
    clock.set(jump)
    machines = await house.settled(api, 30)
    [across] = [vm for vm in machines if vm["id"] == answer["vm"]["id"]]
    assert across["status"] == "running", f"at {jump:+d} s: {across['status_reason']}"


async def test_jumps_of_the_wall_clock_end_nothing_early_and_hold_nothing_up() -> None:
    async with clock_and_postgresql() as (clock, url):
        environment = clock.environment | {"SVC_DATABASE_URL": url}
        async with (
            # The clock of libfaketime is a file that every process reads each time. On a busy machine an order took
            # four seconds with it, more than three heartbeats of a second; the service's are five seconds apart.
            open_deployment(nodes=2, seed=91, delay=(1.0, 2.0), environment=environment, heartbeat_seconds=5) as house,
            house.api() as api,
        ):
            shown = (await house.order(api, "shown"))["vm"]["id"]
            events: list[Told] = []
            opened = trio.Event()
            async with trio.open_nursery() as nursery, house.browser() as browser:
                nursery.start_soon(house.read_events, events, None, opened)
                await opened.wait()
                await sign_in(house, browser)
                for number, jump in enumerate(JUMPS):
                    told = len(events)
                    await jump_during_a_task(house, api, clock, jump, number)
                    assert len(events) > told, f"the event stream is silent since the jump to {jump:+d} s"
                    await opens_console(house, api, shown)
                    # A session may lie idle for twelve hours: an hour is nothing to it. After a day one signs in again.
                    if abs(jump) <= HOUR and number == 0:
                        assert (await browser.get("/api/v1/me")).status_code == 200
                    await sign_in(house, browser)
                    assert (await browser.get("/api/v1/me")).status_code == 200
                nursery.cancel_scope.cancel()
            lost = [data for _, kind, data in events if kind == "node" and data["payload"].get("state") == "offline"]
            assert lost == [], "a node was taken for lost"
            statuses = await house.check_truth(api)
            assert set(statuses.values()) == {"running"}
            # Ordered when the clock was a day behind: its key has had its 24 hours.
            del house.orders[f"across-{JUMPS.index(-DAY) + 1}"]
            await house.check_handles(api)
            # Started anew at another time: what is open is resumed, and told as it is.
            await house.order(api, "resumed")
            await house.stack.controller.kill()
            clock.set(DAY)
            await house.restart_controller()
            assert (await house.check_truth(api))["resumed"] == "running"
