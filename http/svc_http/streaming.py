"""Server-sent events: a subscription to the event log as the chunks of an answer.

Each event is `id: <position>`, `event: <kind>`, and as `data` a JSON object of `id, kind, subject, project_id,
node_id, at, payload`. When the log no longer reaches back to where the client left off, an event `system` with the
payload `{"reset": true}` says that the state is to be read anew.

Invariants: a comment is sent when nothing else was for 15 seconds; who may read is asked again every 3 seconds and
the stream ends when the answer is no; a stream ends at once when the service stops.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import structlog
import trio
from pydantic_core import to_json

from svc.registry.streaming import EventStream, Visibility
from svc_actors.errors import ErrorCode, ServiceError
from svc_actors.store import Event, Gone, SlowReader, Subscription

HEARTBEAT = 15.0
RECHECK = 3.0
BLIND = 30.0
"""How long a stream goes on while it cannot be told whether it still may."""
_KEPT_FRAMES = 256
_TOGETHER = 64
"""How many events go out in one chunk when they have come together."""
_COMMENT = b":\n\n"
_OPENING = b"retry: 2000\n\n"
_RESET = b'event: system\ndata: {"kind":"system","payload":{"reset":true}}\n\n'

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


class Streams:
    """The event streams open in this process."""

    def __init__(self) -> None:
        self._stopping = False
        self._waits: set[_Wait] = set()
        self._frames: dict[int, tuple[Event, bytes]] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def stop(self) -> None:
        """End all of them, now and for ever."""
        self._stopping = True
        for wait in self._waits:
            wait.scope.cancel()

    async def read(self, stream: EventStream, visible: Visibility) -> AsyncGenerator[bytes, None]:
        """The chunks of one stream's answer. No cancel scope is open across a yield."""
        async with AsyncExitStack() as stack:
            opening = _OPENING
            try:
                events = await stack.enter_async_context(stream.subscribe(stream.after))
            except Gone:
                opening += _RESET
                events = await stack.enter_async_context(stream.subscribe(None))
            # Not before: who has read this reads everything that is changed from now on.
            yield opening
            wait = _Wait()
            self._waits.add(wait)
            stack.callback(self._waits.discard, wait)
            certain = trio.current_time()
            heartbeat_at, recheck_at = certain + HEARTBEAT, certain + RECHECK
            while not self._stopping:
                now = trio.current_time()
                if now >= recheck_at:
                    recheck_at = now + RECHECK
                    try:
                        visible = await stream.visibility()
                    except ServiceError as error:
                        if error.code is not ErrorCode.UNAVAILABLE or now - certain >= BLIND:
                            return
                    else:
                        certain = now
                if now >= heartbeat_at:
                    heartbeat_at = now + HEARTBEAT
                    yield _COMMENT
                try:
                    event = await wait.until(min(heartbeat_at, recheck_at), events)
                except StopAsyncIteration:
                    return
                except (SlowReader, Gone, ServiceError) as error:
                    log.info("event stream ended", reason=str(error))
                    return
                if event is None:
                    continue
                frames = [self._rendered(it) for it in (event, *events.ready(_TOGETHER)) if visible(it)]
                if frames:
                    heartbeat_at = trio.current_time() + HEARTBEAT
                    yield b"".join(frames)

    def _rendered(self, event: Event) -> bytes:
        """The frame of an event; the log hands one object to all streams, so it is made once for all of them."""
        known = self._frames.get(event.position)
        if known is not None and known[0] is event:
            return known[1]
        frame = _frame(event)
        self._frames[event.position] = (event, frame)
        if len(self._frames) > _KEPT_FRAMES:
            del self._frames[next(iter(self._frames))]
        return frame


class _Wait:
    """A stream's wait for its next event, which `Streams.stop` cuts short."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        self.scope = trio.CancelScope()

    async def until(self, deadline: float, events: Subscription) -> Event | None:
        with trio.CancelScope(deadline=deadline) as self.scope:
            return await anext(events)
        return None


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
