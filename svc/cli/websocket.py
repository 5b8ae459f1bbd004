"""A machine's console over the service's websocket: a ticket, then the socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import chain, repeat
from typing import Final
from urllib.parse import urlsplit

import trio
from trio_websocket import (
    ConnectionRejected,
    ConnectionTimeout,
    DisconnectionTimeout,
    HandshakeError,
    WebSocketConnection,
    open_websocket_url,
)

from svc.cli.client import API_PREFIX, Client
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import tls_context

_LARGEST_MESSAGE = 1 << 24
_DEADLINE = 15.0
_PAUSES: Final = (0.5, 1.0, 2.0)
"""Seconds between attempts, the last one repeated: a controller that is being replaced is away for about five."""


@asynccontextmanager
async def open_console(client: Client, vm_id: str, kind: str) -> AsyncIterator[WebSocketConnection]:
    """Open the console `vnc` or `serial` of a machine. Raises `Failure`."""
    ticket = await client.call("POST", f"/vms/{vm_id}/console", body={"kind": kind})
    url = f"wss://{urlsplit(client.profile.url).netloc}{API_PREFIX}/console/ws/{ticket['ticket']}"
    try:
        async with open_websocket_url(
            url,
            ssl_context=tls_context(client.profile),
            max_message_size=_LARGEST_MESSAGE,
            connect_timeout=_DEADLINE,
            disconnect_timeout=2.0,
        ) as socket:
            yield socket
    except ConnectionRejected as error:
        raise Failure(Exit.UNAVAILABLE, f"the console was refused with status {error.status_code}") from error
    except DisconnectionTimeout:
        return  # the far side did not close properly; our side is closed all the same
    except (HandshakeError, ConnectionTimeout, OSError) as error:
        raise Failure(Exit.UNAVAILABLE, f"the console cannot be opened: {error or type(error).__name__}") from error


async def open_patiently(
    stack: AsyncExitStack, client: Client, vm_id: str, kind: str, *, within: float
) -> WebSocketConnection:
    """As `open_console`, open for the length of `stack`, and retried for `within` seconds while the controller or the
    node is unavailable: each time with a new ticket, since a ticket opens one console. Raises the last `Failure`."""
    deadline = trio.current_time() + within
    for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
        try:
            return await stack.enter_async_context(open_console(client, vm_id, kind))
        except Failure as failure:
            if failure.exit_code != Exit.UNAVAILABLE or trio.current_time() + pause > deadline:
                raise
        await trio.sleep(pause)
    raise AssertionError("the last attempt returns or raises")
