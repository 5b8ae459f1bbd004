"""A man in the middle between a pool and its server, who can cut a connection at the worst moment."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import trio

_SOCKET_NAME = ".s.PGSQL.5432"


class Proxy:
    """Forwards a unix socket. `before` and `after` are asked about each piece that a client sends, before and after it
    is forwarded; True cuts the connection there."""

    def __init__(self, server: Path, url: str) -> None:
        self.url = url
        self.before: Callable[[bytes | bytearray], bool] = lambda piece: False
        self.after: Callable[[bytes | bytearray], bool] = lambda piece: False
        self._server = server

    async def forward(self, client: trio.SocketStream) -> None:
        async with client, await trio.open_unix_socket(str(self._server)) as server, trio.open_nursery() as nursery:

            async def answers() -> None:
                async for piece in server:
                    await client.send_all(piece)
                nursery.cancel_scope.cancel()

            nursery.start_soon(answers)
            async for piece in client:
                if self.before(piece):
                    break
                await server.send_all(piece)
                if self.after(piece):
                    break
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    """A proxy to the server of `url`, whose own URL is `proxy.url`."""
    parts = urlsplit(url)
    server = Path(parse_qs(parts.query)["host"][0]) / _SOCKET_NAME
    with tempfile.TemporaryDirectory() as folder:
        own = urlunsplit(parts._replace(query=f"host={quote(folder, safe='')}"))
        proxy = Proxy(server, own)
        listener_socket = trio.socket.socket(trio.socket.AF_UNIX)
        await listener_socket.bind(str(Path(folder) / _SOCKET_NAME))
        listener_socket.listen(16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, proxy.forward, [trio.SocketListener(listener_socket)])
            yield proxy
            nursery.cancel_scope.cancel()
