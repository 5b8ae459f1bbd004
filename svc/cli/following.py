"""Waiting for a task: its log to stderr as it grows, a progress bar, and an exit code that says how it ended."""

from __future__ import annotations

import math
from typing import Any

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure

_ENDED = {"succeeded", "failed", "cancelled"}
_POLL_SECONDS = 0.5


async def wait(client: Client, task_id: str, *, timeout: float = math.inf) -> dict[str, Any]:
    """Follow a task to its end and return it. Raises `Failure` for one that failed or was cancelled."""
    task = await follow(client, task_id, timeout=timeout)
    check(task)
    return task


async def follow(client: Client, task_id: str, *, timeout: float = math.inf) -> dict[str, Any]:
    """The task as it ended, however that was. Running out of time is a `Failure` with an exit code of its own, and so
    is an interruption: the task itself goes on."""
    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    hint = f"follow it with `svc task watch {task_id}`, stop it with `svc task cancel {task_id}`"
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    try:
        with trio.move_on_after(timeout), shown as progress:
            bar = progress.add_task("waiting", total=100)
            after = 0
            while True:
                task: dict[str, Any] = await client.call("GET", f"/tasks/{task_id}")
                after = await _print_log(client, task_id, after, console)
                progress.update(bar, description=f"{task['op']} {task['resource_name']}", completed=task["progress"])
                if task["status"] in _ENDED:
                    return task
                await trio.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        raise Failure(Exit.INTERRUPTED, "interrupted; the task goes on", hint) from None
    raise Failure(Exit.WAIT_TIMED_OUT, f"the task has not ended within {timeout:g} s; it goes on", hint)


def check(task: dict[str, Any]) -> None:
    """Raises `Failure` unless the task succeeded."""
    if task["status"] != "succeeded":
        why = task.get("error_message") or task.get("message") or "no reason was given"
        code = f" ({task['error_code']})" if task.get("error_code") else ""
        what = f"{task['op']} of {task['resource_name']} was cancelled"
        if task["status"] == "failed":
            what = f"{task['op']} of {task['resource_name']} failed"
        hint = f"its log: svc task log {task['id']}"
        raise Failure(Exit.TASK_FAILED, f"{what}: {why}{code}", hint, request_id=task.get("request_id"))


async def _print_log(client: Client, task_id: str, after: int, console: Console) -> int:
    while lines := await client.call("GET", f"/tasks/{task_id}/events", query={"after": after}):
        for line in lines:
            console.print(line["message"], style="dim" if line["level"] == "info" else "yellow", soft_wrap=True)
            after = line["position"]
    return after
