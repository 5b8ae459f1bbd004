"""Runs work after every change of a site, and regularly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from svc_actors.panel.event_kinds import PanelEvent
from svc_actors.store import EventLog


async def repeat_on_site_changes(events: EventLog, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
    """Run `work` now, after each change of a site, and after as many `seconds` without one; until cancelled. Raises
    what `work` raises; the caller starts it again."""
    async with events.subscribe(None) as changes:
        while True:
            await work()
            with trio.move_on_after(seconds):
                async for event in changes:
                    if event.kind == PanelEvent.SITE:
                        break
            # Sites change in bursts, so all events that have come by now are taken at once.
            changes.ready(1000)
