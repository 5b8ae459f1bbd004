"""Server-sent events: a subscription to the event log as the body of a response.

Each event is `id: <position>`, `event: <kind>`, and as `data` a JSON object of `id, kind, subject, project_id,
node_id, at, payload`. When the log no longer reaches back to where the client left off, an event `system` with the
payload `{"reset": true}` says that the state is to be read anew.

Invariants: a comment is sent when nothing else was for 15 seconds; who may read is asked again every 3 seconds and
the stream ends when the answer is no; a stream ends at once when the service stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any

import structlog
import trio
from pydantic_core import to_json
from quart.wrappers.response import ResponseBody

from svc.registry.streaming import EventStream, Visibility
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import Event, Gone, SlowReader

HEARTBEAT = 15.0
RECHECK = 3.0
BLIND = 30.0
"""How long a stream goes on while it cannot be told whether it still may."""
_KEPT_FRAMES = 256
_COMMENT = b":\n\n"
_OPENING = b"retry: 2000\n\n"
_RESET = b'event: system\ndata: {"kind":"system","payload":{"reset":true}}\n\n'

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


class Streams:
    """The event streams open in this process, so that they can be ended together."""

    def __init__(self) -> None:
        self.stopping = False
        self._open: set[EventStreamBody] = set()
        self._frames: dict[int, tuple[Event, bytes]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def stop(self) -> None:
        self.stopping = True
        for body in self._open:
            body.wake()

    def rendered(self, event: Event) -> bytes:
        """The frame of an event; the log hands one object to all streams, so it is made once for all of them."""
        known = self._frames.get(event.position)
        if known is not None and known[0] is event:
            return known[1]
        frame = _frame(event)
        self._frames[event.position] = (event, frame)
        if len(self._frames) > _KEPT_FRAMES:
            del self._frames[next(iter(self._frames))]
        return frame

    def add(self, body: EventStreamBody) -> None:
        self._open.add(body)

    def discard(self, body: EventStreamBody) -> None:
        self._open.discard(body)


class EventStreamBody(ResponseBody):
    def __init__(self, stream: EventStream, visible: Visibility, streams: Streams) -> None:
        self._stream = stream
        self._visible = visible
        self._streams = streams
        self._stack = AsyncExitStack()
        self._events: AsyncIterator[Event]
        self._waiting: trio.CancelScope | None = None
        self._first: list[bytes] = [_OPENING]

    async def __aenter__(self) -> EventStreamBody:
        now = trio.current_time()
        self._certain = now
        self._heartbeat_at, self._recheck_at = now + HEARTBEAT, now + RECHECK
        await self._stack.__aenter__()
        try:
            self._events = await self._stack.enter_async_context(self._stream.subscribe(self._stream.after))
        except Gone:
            self._first.append(_RESET)
            self._events = await self._stack.enter_async_context(self._stream.subscribe(None))
        self._streams.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._streams.discard(self)
        await self._stack.__aexit__(kind, value, traceback)

    def __aiter__(self) -> EventStreamBody:
        return self

    async def __anext__(self) -> bytes:
        if self._first:
            return self._first.pop(0)
        while not self._streams.stopping:
            now = trio.current_time()
            if now >= self._recheck_at and not await self._may_go_on():
                break
            if now >= self._heartbeat_at:
                self._heartbeat_at = now + HEARTBEAT
                return _COMMENT
            event = await self._next(min(self._heartbeat_at, self._recheck_at))
            if event is not None and self._visible(event):
                self._heartbeat_at = trio.current_time() + HEARTBEAT
                return self._streams.rendered(event)
        raise StopAsyncIteration

    def wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    async def _next(self, deadline: float) -> Event | None:
        event: Event | None = None
        with trio.CancelScope(deadline=deadline) as self._waiting:
            try:
                event = await anext(self._events)
            except SlowReader as error:
                log.info("event stream cut off", reason=str(error))
                raise StopAsyncIteration from None
            except Gone:
                # The log was pruned past a reader that was still catching up.
                raise StopAsyncIteration from None
            except ServiceError as error:
                log.warning("event stream ended", reason=error.message)
                raise StopAsyncIteration from None
        return event

    async def _may_go_on(self) -> bool:
        now = trio.current_time()
        self._recheck_at = now + RECHECK
        try:
            self._visible = await self._stream.visibility()
        except ServiceError as error:
            return error.code is ErrorCode.UNAVAILABLE and now - self._certain < BLIND
        self._certain = now
        return True


def _frame(event: Event) -> bytes:
    data: dict[str, Any] = {
        "id": event.position,
        "kind": event.kind.value,
        "subject": event.subject,
        "project_id": event.project_id,
        "node_id": event.node_id,
        "at": event.at,
        "payload": event.payload,
    }
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.kind.value.encode(), to_json(data))
