"""Waiting for a task: its log to stderr as it grows, a progress bar, and an exit code that says how it ended."""

from __future__ import annotations

import math
from typing import Any

import trio
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.output import MESSAGES

_ENDED = {"succeeded", "failed", "cancelled"}
_POLL_SECONDS = 0.5


async def wait(client: Client, task_id: str, *, timeout: float = math.inf, after: int = 0) -> dict[str, Any]:
    """Follow a task to its end and return it. A failed or cancelled task is a `Failure`; so is running out of time,
    with an exit code of its own: the task itself goes on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with trio.move_on_after(timeout), Progress(*columns, console=MESSAGES, transient=True) as progress:
        bar = progress.add_task("waiting", total=100)
        while True:
            task = await client.call("GET", f"/tasks/{task_id}")
            after = await _print_log(client, task_id, after)
            progress.update(bar, description=f"{task['op']} {task['resource_name']}", completed=task["progress"])
            if task["status"] in _ENDED:
                return _ended(task)
            await trio.sleep(_POLL_SECONDS)
    raise Failure(
        Exit.WAIT_TIMED_OUT, f"the task has not ended within {timeout:g} s; it goes on", f"svc task watch {task_id}"
    )


async def _print_log(client: Client, task_id: str, after: int) -> int:
    for line in await client.call("GET", f"/tasks/{task_id}/events", query={"after": after}):
        MESSAGES.print(line["message"], style="yellow" if line.get("level") != "info" else "dim", markup=False)
        after = line["position"]
    return after


def _ended(task: dict[str, Any]) -> dict[str, Any]:
    if task["status"] == "succeeded":
        return task
    error = task.get("error") or {}
    why = error.get("message") or task.get("message") or "no reason was given"
    raise Failure(
        Exit.TASK_FAILED, f"{task['op']} of {task['resource_name']} {task['status']}: {why}", error.get("hint")
    )
