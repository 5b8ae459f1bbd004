"""What the tests of a module or of a session share: it stays open in a thread with a Trio of its own, since each test
has an event loop of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

import trio
from anyio.from_thread import start_blocking_portal

_T = TypeVar("_T")


@contextmanager
def open_for_many(context: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
    """What `context` gives. It is about programs and files: what belongs to the other Trio stays there."""
    assert not trio.lowlevel.in_trio_run(), "a test that runs would wait for another Trio for ever"
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(context) as given:
        yield given
