"""Waiting for work to end: its log to stderr as it grows, a progress bar, and an exit code that says how it ended.

The controller's tasks and the panel's jobs are followed alike; they differ in how they describe a failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.terminal import visible
from svc.cli.work import Work

_ENDED = {"succeeded", "failed", "cancelled"}
_POLL_SECONDS = 0.5


async def wait(client: Client, work: Work, *, timeout: float = math.inf) -> dict[str, Any]:
    """Follow the work to its end and return it. Raises `Failure` if it failed or was cancelled."""
    ended = await follow(client, work, timeout=timeout)
    check(work, ended)
    return ended


async def follow(client: Client, work: Work, *, timeout: float = math.inf) -> dict[str, Any]:
    """Follow the work until it has ended, and return it, whether it succeeded or not. A timeout or an interruption
    raises `Failure`, each with its own exit code; the work itself continues."""
    console = Console(stderr=True, highlight=False, markup=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    noun = work.kind.noun
    hint = f"follow it with `svc {noun} watch {work.id}`, stop it with `svc {noun} cancel {work.id}`"
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    try:
        with trio.move_on_after(timeout), shown as progress:
            bar = progress.add_task("waiting", total=100)
            after = 0
            while True:
                now: dict[str, Any] = await client.call("GET", work.path)
                after = await _print_log(client, work, after, console)
                progress.update(bar, description=_title(now), completed=now["progress"])
                if now["status"] in _ENDED:
                    return now
                await trio.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        raise Failure(Exit.INTERRUPTED, f"interrupted; the {noun} continues in the background", hint) from None
    raise Failure(
        Exit.WAIT_TIMED_OUT, f"the {noun} has not ended within {timeout:g} s; it continues in the background", hint
    )


def check(work: Work, ended: Mapping[str, Any]) -> None:
    """Raises `Failure` unless the work succeeded."""
    if ended["status"] == "succeeded":
        return
    what = "failed" if ended["status"] == "failed" else "was cancelled"
    log = f"its log: svc {work.kind.noun} log {work.id}"
    match ended:
        case {"error": {"message": why, "code": code, "hint": hint}}:
            log = f"{hint.rstrip('.')}; {log}" if hint else log
        case _:
            why = ended.get("error_message") or ended.get("message") or "no reason was given"
            code = ended.get("error_code")
    of = f" ({code})" if code else ""
    raise Failure(Exit.TASK_FAILED, f"{_title(ended)} {what}: {why}{of}", log, request_id=ended.get("request_id"))


def _title(work: Mapping[str, Any]) -> str:
    return visible(str(work["title"]) if "title" in work else f"{work['op']} of {work['resource_name']}")


async def _print_log(client: Client, work: Work, after: int, console: Console) -> int:
    while lines := await client.call("GET", f"{work.path}/{work.kind.log}", query={"after": after}):
        for line in lines:
            plain = line.get("level", "info") == "info"
            console.print(visible(line["message"]), style="dim" if plain else "yellow", soft_wrap=True)
            after = line[work.kind.numbered_by]
    return after
