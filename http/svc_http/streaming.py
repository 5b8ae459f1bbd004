"""Server-sent events: a subscription to the event log as the chunks of an answer.

Each event is `id: <position>`, `event: <kind>`, and as `data` a JSON object of `id, kind, subject, project_id, at,
payload` and, for operators, `node_id`. If the log no longer reaches back to where the client left off, an event
`system` with the payload `{"reset": true}` says that the client must reload the state.

How many readers can be served depends on the number of sends, not on their size. So a reader gets all events of one
round in one chunk. An event is rendered once for all readers who see the same form of it, and the chunk for readers who
see everything is joined once. Each reader has its own turn within a round, so that a thousand sends do not hold up
requests. While every round has something to send, a reader wakes only for its turn.

Invariants: a comment is sent after 15 seconds without an event; each reader's right is checked every 3 seconds, and a
reader who has lost it is disconnected; a stream ends at once when the service stops. A person who is no operator has at
most `MOST_OF_ONE` streams over all sessions and tokens.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final
from uuid import UUID

import structlog
import trio
from pydantic_core import to_json

from svc.registry.principal import Principal
from svc.registry.streaming import EventStream, View
from svc_actors.store import Event, PositionLost, SlowReader, Subscription
from svc_common.errors import ErrorCode, ServiceError, rate_limited, unauthenticated

HEARTBEAT = 15.0
RECHECK = 3.0
BLIND = 30.0
"""How long a stream continues while its reader's right cannot be checked."""
COALESCE = 0.1
"""The least number of seconds between two chunks of a stream."""
TURN = 0.0004
"""Seconds between two sends. A send takes 0.34 ms of processor time with TLS. A round has one turn for each reader.
With a shorter turn, 2,000 readers would leave no processor time for other requests."""
LONGEST_ROUND = 1.0
MOST_OF_ONE: Final = 100
"""The most streams of one person. Each page and each waiting command needs one, and an HTTP/2 connection carries 100.
Counted by person, not by token: a person creates as many tokens as they like."""
_ASKED_TOGETHER: Final = 200
"""How many readers one query checks: decoding the answer holds up the event loop."""
_KEPT_FRAMES: Final = 1024
_KEPT_CHUNKS: Final = 64
"""How many joined chunks are kept. Readers whose turns follow one another without a new event in between get the same
chunk."""
_TOGETHER: Final = 64
"""The most events in one chunk: about a TLS record. A larger chunk is copied several times on its way to each reader,
and readers of many events have their turns one after another in any case."""
_COMMENT: Final = b":\n\n"
_OPENING: Final = b"retry: 2000\n\n"
_RESET: Final = b'event: system\ndata: {"kind":"system","payload":{"reset":true}}\n\n'

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.http")


class Streams:
    """The event streams open in this process. `run` must run: without it, streams outlive the sessions of their
    readers."""

    def __init__(self) -> None:
        self._stopping = False
        self._readers: set[_Reader] = set()
        self._open: Counter[tuple[UUID | None, UUID | None]] = Counter()
        self._frames: dict[tuple[int, bool], tuple[Event, bytes]] = {}
        self._chunks: dict[tuple[int, int], tuple[Event, bytes]] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def stop(self) -> None:
        """End all of them, and accept no new ones."""
        self._stopping = True
        for reader in self._readers:
            reader.end()

    async def run(self) -> None:
        """Check repeatedly, until cancelled, which readers may continue, and what they may see."""
        while True:
            await trio.sleep(RECHECK)
            readers = list(self._readers)
            for first in range(0, len(readers), _ASKED_TOGETHER):
                await _recheck(readers[first : first + _ASKED_TOGETHER])

    async def open(self, stream: EventStream) -> AsyncGenerator[bytes, None]:
        """The chunks of one stream's answer; closing them frees its place. Raises `unauthenticated` for a reader whose
        session has ended, and `rate_limited`."""
        [view] = await stream.views([stream.principal])
        if view is None:
            raise unauthenticated("This session has ended: sign in again.")
        chunks = self._read(stream, _Reader(stream, view))
        await anext(chunks)
        return chunks

    @contextmanager
    def _place(self, principal: Principal, view: View) -> Iterator[None]:
        """Count one more stream of the person for the length of the block. Raises `rate_limited` at the limit.
        Operators have no limit, since their programs watch events of all customers. A support session is counted
        separately, so the customer's own streams do not prevent it."""
        if view.operator:
            yield
            return
        whose = (principal.user_id, principal.impersonator_id)
        if self._open[whose] >= MOST_OF_ONE:
            raise rate_limited(
                f"{MOST_OF_ONE} event streams of this account are open, the most that it may have; none was opened.",
                hint="Close pages and programs that no longer need theirs.",
                details={"limit": MOST_OF_ONE},
            )
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open[whose] -= 1
            if not self._open[whose]:
                del self._open[whose]

    async def _read(self, stream: EventStream, reader: _Reader) -> AsyncGenerator[bytes, None]:
        """No cancel scope is open across a yield. The first yield is empty and for `open` alone: only a started
        generator frees its place when it is closed, even if its reader goes before the first chunk."""
        async with AsyncExitStack() as stack:
            stack.enter_context(self._place(stream.principal, reader.view))
            yield b""
            opening = _OPENING
            try:
                events = await stack.enter_async_context(stream.subscribe(stream.after))
            except PositionLost:
                opening += _RESET
                events = await stack.enter_async_context(stream.subscribe(None))
            # Sent only now: a client that has read this gets every change from here on.
            yield opening
            self._readers.add(reader)
            stack.callback(self._readers.discard, reader)
            quiet_since, turn_at = trio.current_time(), -math.inf
            while not self._stopping:
                taken = events.ready(_TOGETHER)
                if not taken:
                    try:
                        event = await reader.next(events, quiet_since + HEARTBEAT)
                    except StopAsyncIteration:
                        return
                    except (SlowReader, PositionLost, ServiceError) as error:
                        log.info("events.stream_ended", reason=str(error))
                        return
                    if event is None and not reader.ended:
                        quiet_since = trio.current_time()
                        yield _COMMENT
                        continue
                    await reader.wait(self._turn(reader, turn_at))
                    taken = [] if event is None else [event, *events.ready(_TOGETHER - 1)]
                if reader.ended:
                    return
                turn_at = trio.current_time()
                if chunk := self._chunk(reader.view, taken):
                    quiet_since = turn_at
                    yield chunk
                if len(taken) < _TOGETHER:
                    await reader.wait(self._turn(reader, turn_at))

    def _turn(self, reader: _Reader, last: float) -> float:
        """The time of this reader's next turn after its `last`: one round later, which is as long as the sends of all
        readers take."""
        now = trio.current_time()
        length = min(max(len(self._readers) * TURN, 0.001), LONGEST_ROUND)
        earliest = max(now, last + COALESCE)
        return earliest + (reader.place * length - earliest) % length

    def _chunk(self, view: View, events: Sequence[Event]) -> bytes:
        """The consecutive events that this view shows, as one chunk."""
        if not view.everything:
            return b"".join([self._rendered(event, view.operator) for event in events if view.sees(event)])
        run = (events[0].position, events[-1].position)
        known = self._chunks.get(run)
        if known is not None and known[0] is events[0]:
            return known[1]
        chunk = b"".join([self._rendered(event, view.operator) for event in events])
        self._chunks[run] = (events[0], chunk)
        if len(self._chunks) > _KEPT_CHUNKS:
            del self._chunks[next(iter(self._chunks))]
        return chunk

    def _rendered(self, event: Event, operator: bool) -> bytes:
        """The frame of an event, rendered once for all who see the same: the log passes one object to all streams."""
        known = self._frames.get((event.position, operator))
        if known is not None and known[0] is event:
            return known[1]
        frame = _frame(event, operator=operator)
        self._frames[event.position, operator] = (event, frame)
        if len(self._frames) > _KEPT_FRAMES:
            del self._frames[next(iter(self._frames))]
        return frame


class _Reader:
    """The reader of one stream: what it may see, and its place in each round. `end` interrupts its waits."""

    def __init__(self, stream: EventStream, view: View) -> None:
        self.stream = stream
        self.view = view
        self.certain_at = trio.current_time()
        self.ended = False
        self.place = random.random()  # noqa: S311 - spreads load, protects nothing
        self._wait = trio.CancelScope()

    def end(self) -> None:
        self.ended = True
        self._wait.cancel()

    async def next(self, events: Subscription, deadline: float) -> Event | None:
        """The next event; None if the deadline passes, or the stream has ended."""
        if self.ended:
            return None
        with trio.CancelScope(deadline=deadline) as self._wait:
            return await anext(events)
        return None

    async def wait(self, moment: float) -> None:
        if not self.ended:
            with trio.CancelScope() as self._wait:
                await trio.sleep_until(moment)


async def _recheck(readers: Sequence[_Reader]) -> None:
    """Check what these readers may see now. If that cannot be checked, they continue unchanged for `BLIND` seconds."""
    now = trio.current_time()
    try:
        views = await readers[0].stream.views([reader.stream.principal for reader in readers])
    except ServiceError as error:
        for reader in readers:
            if error.code is not ErrorCode.UNAVAILABLE or now - reader.certain_at >= BLIND:
                reader.end()
        return
    for reader, view in zip(readers, views, strict=True):
        if view is None:
            reader.end()
        else:
            reader.view, reader.certain_at = view, now


def _frame(event: Event, *, operator: bool) -> bytes:
    data: dict[str, Any] = {
        "id": event.position,
        "kind": event.kind,
        "subject": event.subject,
        "project_id": event.project_id,
        "at": event.at,
        "payload": event.payload,
    }
    if operator:
        data["node_id"] = event.node_id
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.kind.encode(), to_json(data))
