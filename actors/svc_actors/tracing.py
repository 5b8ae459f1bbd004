"""The origin of the running code: the request it works for, and its span of the trace.

The origin is a context variable. It follows the calls of a task, and the messages that it sends to actors if the actor
system is configured to carry `ORIGIN`. Work that outlives its request (`svc_actors.controller.tasks`) stores both in
its row.

Invariants:

- a span is started only within another span. Only a `Tracer` starts a trace, and without tracing there is no `Tracer`.
  So nothing is traced by accident, and with tracing off a span costs one look at the variable;
- this module imports no tracing library: `svc_actors.spans` does, and is imported only if tracing is on;
- attributes are ids, names defined by the service, and numbers: no SQL arguments, no addresses, no text of customers.

Why: docs/decisions/0017-traces.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self
from uuid import UUID

import trio

Attributes = Mapping[str, str | int | float | bool]


class TracingSettingsError(ValueError):
    """The tracing settings of the environment are unusable; the message says why."""


class Kind(StrEnum):
    """OpenTelemetry's kinds of spans: a request to this service, a request by this service, and work inside it."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class Span(Protocol):
    """One step of a trace. If the trace is not sampled, the span has its ids and everything else has no effect."""

    @property
    def trace_id(self) -> str: ...

    @property
    def traceparent(self) -> str:
        """The header that makes this span the parent of other services' spans (W3C Trace Context)."""
        ...

    @property
    def sampled(self) -> bool: ...

    def child(self, name: str, kind: Kind, attributes: Attributes, *, started_at: datetime | None = None) -> Span: ...

    def note(self, attributes: Attributes) -> None: ...

    def fail(self, error: str) -> None:
        """`error` is a code or the name of an exception, never a message."""
        ...

    def end(self, *, at: datetime | None = None) -> None: ...


class Tracer(Protocol):
    def start(self, name: str, kind: Kind, attributes: Attributes, *, caller: str | None) -> Span:
        """Start a trace, or continue one that its `caller` has started (the header `traceparent`). Whether it is
        sampled is decided here."""
        ...

    def resume(self, name: str, kind: Kind, attributes: Attributes, *, parent: str | None) -> Span:
        """Continue a trace of this service, under its own `traceparent`, which says whether it is sampled."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """`owner_id`: the project of the running task; None for a task without a project, and within a request."""

    request_id: str | None
    span: Span | None = None
    owner_id: UUID | None = None


ORIGIN: ContextVar[Origin | None] = ContextVar("svc_actors.tracing.origin", default=None)
"""The origin of the running code; None in the background."""


def request_id() -> str | None:
    origin = ORIGIN.get()
    return origin.request_id if origin is not None else None


def current_span() -> Span | None:
    """The parent of new spans; None if nothing is traced."""
    origin = ORIGIN.get()
    return origin.span if origin is not None else None


class in_span:  # noqa: N801 - reads as the function that it would be, at a tenth of a generator's cost
    """Runs a block as a span under the current one: `with in_span("vm.create", Kind.INTERNAL, {}) as span`. `span` is
    None if nothing is traced."""

    __slots__ = ("_attributes", "_before", "_kind", "_name", "_span")

    def __init__(self, name: str, kind: Kind, attributes: Attributes) -> None:
        self._name = name
        self._kind = kind
        self._attributes = attributes
        self._before: Origin | None = None
        self._span: Span | None = None

    def __enter__(self) -> Span | None:
        before = self._before = ORIGIN.get()
        if before is None or before.span is None:
            return None
        span = self._span = before.span.child(self._name, self._kind, self._attributes)
        ORIGIN.set(Origin(before.request_id, span, before.owner_id))
        return span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is not None:
            ORIGIN.set(self._before)
            _end(self._span, error)


class working_for:  # noqa: N801 - as above
    """Runs a block for `origin`, whose span ends with the block."""

    __slots__ = ("_before", "_origin")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._before: Origin | None = None

    def __enter__(self) -> Self:
        self._before = ORIGIN.get()
        ORIGIN.set(self._origin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ORIGIN.set(self._before)
        if self._origin.span is not None:
            _end(self._origin.span, error)


def _end(span: Span, error: BaseException | None) -> None:
    """Mark the span as failed by the error's code, or its class name without one. A cancellation is no failure."""
    if error is not None and not isinstance(error, trio.Cancelled):
        code = getattr(error, "code", None)
        span.fail(code.value if isinstance(code, StrEnum) else type(error).__name__)
    span.end()
