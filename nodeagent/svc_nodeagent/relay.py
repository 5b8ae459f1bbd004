"""Joins two byte streams: each side's input is sent to the other, at the pace of the slower, until either side ends."""

from __future__ import annotations

import trio

_CHUNK = 64 * 1024
_CLOSING_SECONDS = 5.0


async def relay(one: trio.abc.Stream, other: trio.abc.Stream) -> None:
    """Takes both streams over: they are closed when it returns."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_copy, one, other, nursery.cancel_scope)
            nursery.start_soon(_copy, other, one, nursery.cancel_scope)
    finally:
        with trio.move_on_after(_CLOSING_SECONDS, shield=True):
            await _close(one)
            await _close(other)


async def _copy(source: trio.abc.Stream, sink: trio.abc.Stream, over: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(_CHUNK):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # one side has closed: that is the normal end of a console, not an error
    finally:
        over.cancel()


async def _close(stream: trio.abc.Stream) -> None:
    try:
        await stream.aclose()
    except trio.BrokenResourceError:
        return
