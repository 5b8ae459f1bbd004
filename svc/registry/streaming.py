"""What the handler of an event stream returns: where its events come from, and who may go on reading them.

Invariant: an event is sent only when the `Visibility` in force says so, and that is asked for again every few
seconds, so that a session which ended, or a project that was left, ends or narrows a stream which was opened before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from svc_actors.store import Event, Subscription

Visibility = Callable[[Event], bool]


@dataclass(frozen=True)
class EventStream:
    """`visibility` gives the filter for the moment, or raises `ServiceError` when the stream must end; `after` is the
    position behind which to start, None for now."""

    subscribe: Callable[[int | None], AbstractAsyncContextManager[Subscription]]
    visibility: Callable[[], Awaitable[Visibility]]
    after: int | None
