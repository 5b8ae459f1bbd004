"""A nursery for the tasks behind a context manager, invisible to the user of the context manager.

Trio wraps exceptions that leave a nursery in a group. For `async with resource():` that would change the exceptions of
the caller's own body. So here the body's exception is raised as itself, and only failures of the background tasks are
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
