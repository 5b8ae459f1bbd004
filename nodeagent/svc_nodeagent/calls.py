"""Records the calls that an operation makes on the host (libvirt, programs, downloads), each with its duration and its
error.

Calls are recorded only for an operation that is part of a trace (`Request.traceparent`). The operation's result
contains them, and the controller turns them into spans. Calls outside of an operation are not recorded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import MOST_CALLS, HostCall

_CALLS: ContextVar[list[HostCall] | None] = ContextVar("svc_nodeagent.calls", default=None)


def note_calls() -> list[HostCall]:
    """Record from now on the calls of this task and of the tasks that it starts. They are added to the returned list in
    the order in which they end."""
    calls: list[HostCall] = []
    _CALLS.set(calls)
    return calls


@contextmanager
def host_call(name: str) -> Iterator[None]:
    """Record this block as one call."""
    calls = _CALLS.get()
    if calls is None:
        yield
        return
    at, began = datetime.now(UTC), time.monotonic()
    error: str | None = None
    try:
        yield
    except BaseException as raised:
        error = _in_a_word(raised)
        raise
    finally:
        if len(calls) < MOST_CALLS:
            calls.append(HostCall(name=name, at=at, seconds=time.monotonic() - began, error=error))


def _in_a_word(error: BaseException) -> str:
    if isinstance(error, HostError):
        return error.code.value
    return "cancelled" if isinstance(error, trio.Cancelled) else type(error).__name__
