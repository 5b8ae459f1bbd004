"""A machine's console over the service's websocket: a ticket, then the socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

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


@asynccontextmanager
async def open_console(client: Client, vm_id: str, kind: str) -> AsyncIterator[WebSocketConnection]:
    """The console `vnc` or `serial` of a machine. Raises `Failure`."""
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
        return  # the far side did not say good-bye; ours is closed all the same
    except (HandshakeError, ConnectionTimeout, OSError) as error:
        raise Failure(Exit.UNAVAILABLE, f"the console cannot be opened: {error or type(error).__name__}") from error
