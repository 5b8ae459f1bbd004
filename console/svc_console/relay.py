"""The relay: joins a browser's websocket and a guest's console, both ways, until one side ends.

Invariants:

- nothing is queued: a chunk is read from one side only after the other took the previous one, so a reader that stops
  reading stops the writer, and a relay holds at most one chunk each way;
- bytes arrive unchanged and in order; chunk boundaries have no meaning;
- a relay that has ended has closed the guest's stream, whatever the browser does.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

import trio

CHUNK_BYTES = 512 * 1024
"""Bytes read from the guest at a time: enough to make the cost per websocket message negligible. Half of this was a
third slower when measured. A read returns what the guest has sent and does not wait for more."""

INPUT_SECONDS = 60.0
"""How long a guest may accept no input. While input waits for the guest, the relay does not notice that the browser has
disconnected."""

_CLOSE_SECONDS = 2.0


class Browser(Protocol):
    """An accepted websocket. When the browser disconnects, the relaying task is cancelled."""

    async def receive(self) -> bytes | str | None: ...

    async def send(self, data: bytes) -> None: ...


class Ending(Enum):
    """Why a relay ended, if it was not cancelled."""

    GUEST_ENDED = "guest_ended"
    INPUT_STALLED = "input_stalled"
    NOT_BINARY = "not_binary"


async def relay(browser: Browser, guest: trio.abc.Stream) -> Ending:
    """Pass data both ways until the guest's stream ends or the browser breaks the rules, then close the guest's
    stream."""
    endings: list[Ending] = []
    try:
        async with trio.open_nursery() as nursery:

            async def until_ended(direction: _Direction) -> None:
                endings.append(await direction(browser, guest))
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_ended, _guest_to_browser)
            nursery.start_soon(until_ended, _browser_to_guest)
        return endings[0]
    finally:
        with trio.move_on_after(_CLOSE_SECONDS) as closing:
            closing.shield = True
            await guest.aclose()


class _Direction(Protocol):
    async def __call__(self, browser: Browser, guest: trio.abc.Stream, /) -> Ending: ...


async def _guest_to_browser(browser: Browser, guest: trio.abc.Stream) -> Ending:
    while True:
        try:
            data = await guest.receive_some(CHUNK_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return Ending.GUEST_ENDED
        if not data:
            return Ending.GUEST_ENDED
        await browser.send(data if isinstance(data, bytes) else bytes(data))


async def _browser_to_guest(browser: Browser, guest: trio.abc.Stream) -> Ending:
    while True:
        data = await browser.receive()
        if isinstance(data, str):
            return Ending.NOT_BINARY
        if not data:  # Quart passes an empty message as None.
            continue
        try:
            with trio.fail_after(INPUT_SECONDS):
                await guest.send_all(data)
        except trio.TooSlowError:
            return Ending.INPUT_STALLED
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return Ending.GUEST_ENDED
