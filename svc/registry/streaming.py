"""The result of an event stream's handler: the source of the events, and which of them the reader may see.

Invariant: an event is sent only if the current `View` allows it. Views are computed again every few seconds, for all
readers together, so that the end of a session, or of a project membership, ends or narrows a stream that was opened
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from svc.registry.principal import Principal
from svc_actors.store import Event, Subscription


@dataclass(frozen=True)
class View:
    """What one reader may see: which events, and with `operator` also those of their fields that only operators see
    (the node). `everything`: every event, as an operator."""

    sees: Callable[[Event], bool]
    operator: bool
    everything: bool = False


Views = Callable[[Sequence[Principal]], Awaitable[Sequence[View | None]]]
"""Returns what each of these callers may see now; None for a caller whose session, token or account has ended."""


@dataclass(frozen=True)
class EventStream:
    """Events after the position `after` are sent; None: only new ones. All streams of a service share one `views`."""

    subscribe: Callable[[int | None], AbstractAsyncContextManager[Subscription]]
    principal: Principal
    views: Views
    after: int | None
