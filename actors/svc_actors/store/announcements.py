"""Notify listeners, after a commit, of what it changed.

Rejected: NOTIFY inside the transaction. It takes a lock of the whole cluster that is held until the commit is on disk,
so commits that notify happen one after the other (399 a second instead of 3,534 with 16 writers and a flush of 2 ms).
Transactions only note what they will announce. After the commit a listener in this process is called directly; for
other processes, one statement that writes nothing notifies of all announcements that have gathered since the previous
one.

An announcement is a hint to look, and is lost if the process ends between its commit and the notification: so every
listener also looks by itself from time to time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import trio

from svc_actors.store.failures import DRIVER_ERRORS
from svc_common.errors import ServiceError

Announcement = tuple[str, str]
"""Channel and payload."""
Listener = Callable[[str], None]
"""Called with the payload, right after a commit, in the committing task: it must neither wait nor raise."""


class Announcements:
    def __init__(self, notify: Callable[[Sequence[Announcement]], Awaitable[None]]) -> None:
        self._notify = notify
        self._listeners: dict[str, list[Listener]] = {}
        self._pending: dict[Announcement, None] = {}
        self._woken = trio.Event()

    def publish(self, announcements: Sequence[Announcement]) -> None:
        """Announce for a transaction that is now committed."""
        for channel, payload in announcements:
            listeners = self._listeners.get(channel)
            if listeners:
                for listener in listeners:
                    listener(payload)
            else:
                # A dict is used as an ordered set: a thousand commits on one channel become one notification.
                self._pending[channel, payload] = None
                self._woken.set()

    @contextmanager
    def listener(self, channel: str, listener: Listener) -> Iterator[None]:
        """Have `listener` called for the commits of this process, for the length of the block."""
        listeners = self._listeners.setdefault(channel, [])
        listeners.append(listener)
        try:
            yield
        finally:
            listeners.remove(listener)

    async def run(self) -> None:
        """Notify other processes, until cancelled. What cannot be sent now is left to their own looks."""
        while True:
            await self._woken.wait()
            # The event is replaced before the list is taken, so that what is published while `_notify` runs is sent in
            # the next round.
            self._woken = trio.Event()
            pending, self._pending = list(self._pending), {}
            try:
                await self._notify(pending)
            except (ServiceError, *DRIVER_ERRORS):
                # Dropped and not kept for later: in a long outage the list would grow without limit, and listeners find
                # the same by looking.
                continue
