"""LISTEN on a dedicated connection that reconnects by itself.

A notification sent while the connection was down is lost. So the reader gets `RECONNECTED` after every gap, and a
reader that must miss nothing reads the tables then: a notification is only a hint to look.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import trio

from svc_actors.store.driver import Connection
from svc_actors.store.failures import DRIVER_ERRORS, cannot_connect
from svc_actors.store.nurseries import background_nursery
from svc_common.errors import ServiceError

_BUFFER = 1024
_SUBSCRIBE_TIMEOUT = 10.0
_LOST = (ServiceError, trio.ClosedResourceError, trio.TooSlowError, *DRIVER_ERRORS)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class NotificationKind(StrEnum):
    NOTIFICATION = "notification"
    RECONNECTED = "reconnected"


@dataclass(frozen=True)
class Notification:
    """A NOTIFY, or `RECONNECTED` (then `channel` and `payload` are empty)."""

    kind: NotificationKind
    channel: str = ""
    payload: str = ""


@asynccontextmanager
async def listening(
    connect: Callable[[], Awaitable[Connection]], discard: Callable[[Connection], None], channels: Sequence[str]
) -> AsyncIterator[trio.MemoryReceiveChannel[Notification]]:
    """Listen to `channels` until the block ends; a reader that is slow holds up this connection and nothing else."""
    send, receive = trio.open_memory_channel[Notification](_BUFFER)
    # The channel is closed last, so that the listener never finds it closed while it is still sending.
    async with receive, background_nursery() as nursery:
        await nursery.start(_keep_listening, connect, discard, channels, send)
        yield receive


async def _keep_listening(
    connect: Callable[[], Awaitable[Connection]],
    discard: Callable[[Connection], None],
    channels: Sequence[str],
    send: trio.MemorySendChannel[Notification],
    task_status: trio.TaskStatus[None],
) -> None:
    pause = _FIRST_PAUSE
    started = False
    with send:
        while True:
            try:
                connection = await connect()
                try:
                    arrived = await _subscribe(connection, channels)
                    if started:
                        await send.send(Notification(NotificationKind.RECONNECTED))
                    else:
                        task_status.started()
                    started, pause = True, _FIRST_PAUSE
                    while True:
                        while arrived:
                            await send.send(arrived.popleft())
                        await connection.pump_notifications()
                finally:
                    discard(connection)
            except _LOST as error:
                if not started:
                    raise error if isinstance(error, ServiceError) else cannot_connect(error) from error
                await trio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


async def _subscribe(connection: Connection, channels: Sequence[str]) -> deque[Notification]:
    arrived: deque[Notification] = deque()
    connection.notification_sink = lambda channel, payload: arrived.append(
        Notification(NotificationKind.NOTIFICATION, channel, payload)
    )
    with trio.fail_after(_SUBSCRIBE_TIMEOUT):
        for channel in channels:
            await connection.execute(f'LISTEN "{channel.replace(chr(34), chr(34) * 2)}"')
    return arrived
