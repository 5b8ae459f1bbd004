"""SIGTERM in the midst of work: streams and consoles end properly, and what was begun goes on afterwards."""

from __future__ import annotations

import pytest
import trio
from trio_websocket import ConnectionClosed

from tests.support.deployment import Told, open_deployment

pytestmark = [pytest.mark.system, pytest.mark.isolated]

STOPPED_WITHIN = 15.0


async def test_a_stop_ends_streams_and_consoles_and_tasks_go_on_at_the_next_start() -> None:
    async with open_deployment(nodes=1, seed=81, delay=(3.0, 3.0)) as house, house.api() as api:
        shown = await house.order(api, "shown")
        await house.settled(api, 30)
        events: list[Told] = []
        endings: list[str] = []
        opened = trio.Event()
        async with house.console(api, shown["vm"]["id"]) as console, trio.open_nursery() as nursery:
            await console.get_message()

            async def watch_console() -> None:
                try:
                    while True:
                        await console.get_message()
                except ConnectionClosed as closed:
                    endings.append(f"console {closed.reason.code if closed.reason else 'without a word'}")

            async def watch_events() -> None:
                # Raises when the stream breaks off in the midst of an answer instead of ending.
                await house.read_events(events, None, opened)
                endings.append("events")

            nursery.start_soon(watch_console)
            nursery.start_soon(watch_events)
            await opened.wait()
            under_way = await house.order(api, "under-way")
            while (await api.call("GET", f"/tasks/{under_way['task']['id']}"))["status"] == "queued":
                await trio.sleep(0.05)
            assert await house.stack.controller.stop(STOPPED_WITHIN) == 0
        assert sorted(endings) in (["console 1001", "events"], ["console 1012", "events"])
        assert house.postmaster == 0
        await house.restart_controller()
        assert await house.check_truth(api) == {"shown": "running", "under-way": "running"}
        tasks = [task for task in await api.everything("/tasks") if task["resource_name"] == "under-way"]
        assert [task["status"] for task in tasks] == ["succeeded"]
