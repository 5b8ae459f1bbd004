"""What the handler of an event stream returns: where its events come from, and what its reader may see of them.

Invariant: an event is sent only when the `View` in force says so, and that is asked for again every few seconds, for
all readers together, so that a session which ended, or a project that was left, ends or narrows a stream which was
opened before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from svc.registry.principal import Principal
from svc_actors.store import Event, Subscription


@dataclass(frozen=True)
class View:
    """What one reader sees: which events, and whether with what only operators are told (the node). `everything`: every
    event, as an operator."""

    sees: Callable[[Event], bool]
    operator: bool
    everything: bool = False


Views = Callable[[Sequence[Principal]], Awaitable[Sequence[View | None]]]
"""What each of these may see now; None once their session, token or account has ended."""


@dataclass(frozen=True)
class EventStream:
    """`after` is the position behind which to start, None for now. Streams of one service share its `views`."""

    subscribe: Callable[[int | None], AbstractAsyncContextManager[Subscription]]
    principal: Principal
    views: Views
    after: int | None
