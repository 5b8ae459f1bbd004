"""Task logs followed through restarts and crashes of the controller: no gap, no repeat, whoever asks how."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.support.deployment import ENDED, Api, Deployment, Told, open_deployment

pytestmark = [pytest.mark.system, pytest.mark.isolated]

TASKS = 12
CRASHES = 3


async def follow(api: Api, task_id: str) -> list[dict[str, Any]]:
    """A log as one reads it who always asks for what comes after the last line seen, until the task has ended."""
    lines: list[dict[str, Any]] = []
    while True:
        ended = (await api.insist("GET", f"/tasks/{task_id}"))["status"] in ENDED
        after = lines[-1]["position"] if lines else 0
        new = await api.insist("GET", f"/tasks/{task_id}/events", after=after)
        lines += new
        if ended and not new:
            return lines
        await trio.sleep(0.05)


async def crash(house: Deployment) -> None:
    for number in range(CRASHES):
        await trio.sleep(house.random.uniform(0.3, 1.2))
        if number % 2:
            await house.stack.controller.stop()
        else:
            await house.stack.controller.kill()
        await house.restart_controller()


async def test_a_log_has_no_gap_and_no_repeat_for_those_who_follow_it_through_crashes() -> None:
    followed: dict[str, list[dict[str, Any]]] = {}

    async with open_deployment(nodes=2, seed=71, delay=(0.2, 1.5)) as house, house.api() as api:

        async def order_and_follow(number: int) -> None:
            answer = await house.order(api, f"order-{number}")
            followed[answer["task"]["id"]] = await follow(api, answer["task"]["id"])

        events: list[Told] = []
        async with trio.open_nursery() as readers:
            readers.start_soon(house.follow_events, events)
            async with trio.open_nursery() as nursery:
                for number in range(TASKS):
                    nursery.start_soon(order_and_follow, number)
                nursery.start_soon(crash, house)
            await house.settled(api, 30)
            whole = {task_id: await api.insist("GET", f"/tasks/{task_id}/events", after=0) for task_id in followed}
            with trio.move_on_after(10):
                while streamed(events, whole) != whole:
                    await trio.sleep(0.1)
            assert streamed(events, whole) == whole
            readers.cancel_scope.cancel()
        assert len(followed) == TASKS
        assert followed == whole
        for lines in whole.values():
            assert [line["position"] for line in lines] == list(range(1, len(lines) + 1))
            assert [line["message"] for line in lines].count("Done.") == 1
        ids = [position for position, _, _ in events]
        assert ids == list(range(ids[0], ids[0] + len(ids))), "the stream of an administrator has a gap or a repeat"


def streamed(events: list[Told], whole: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The logs as the event stream told them."""
    logs: dict[str, list[dict[str, Any]]] = {task_id: [] for task_id in whole}
    for _, kind, data in events:
        if kind == "task_log":
            told = data["payload"]
            logs[told["task_id"]].append({key: told[key] for key in ("position", "level", "progress", "message")})
    return {
        task_id: [line | {"at": full["at"]} for line, full in zip(lines, whole[task_id], strict=False)]
        for task_id, lines in logs.items()
    }
