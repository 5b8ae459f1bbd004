"""A nursery for the tasks behind a context manager, invisible to the one who uses it.

Trio wraps what leaves a nursery in an exception group. For `async with resource():` that would change the exceptions of
the caller's own body, so here the body's exception leaves as itself, and only failures of the tasks behind it are
grouped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled when the body ends, however it ends."""
    from_body: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except BaseException as error:
                from_body = error
                raise
            finally:
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if from_body is not None and group.exceptions == (from_body,):
            raise from_body from from_body.__cause__
        raise
