"""A man in the middle between a pool and its server, who can cut a connection at the worst moment, and speaks TLS."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import trio

_SOCKET_NAME = ".s.PGSQL.5432"
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class Proxy:
    """Forwards to a server's socket. `before` and `after` are asked about each piece that a client sends; True cuts the
    connection before it is forwarded, or once it is: no answer to it gets through. Without `answering`, answers
    get lost on the way. `encrypted` counts the connections that came over TLS."""

    def __init__(self, server: Path, tls: ssl.SSLContext | None = None) -> None:
        self.url = ""
        self.encrypted = 0
        self.before: Callable[[bytes | bytearray], bool] = lambda piece: False
        self.after: Callable[[bytes | bytearray], bool] = lambda piece: False
        self.answering = True
        self._server = server
        self._tls = tls

    async def forward(self, client: trio.abc.Stream) -> None:
        """Serve one connection; the ways in which clients leave are all fine here."""
        try:
            first = await client.receive_some(8 if self._tls else None)
            if self._tls and first == _SSL_REQUEST:
                await client.send_all(b"S")
                client = trio.SSLStream(client, self._tls, server_side=True, https_compatible=True)
                await client.do_handshake()
                self.encrypted += 1
                first = b""
            await self._relay(client, first)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass
        finally:
            await trio.aclose_forcefully(client)

    async def _relay(self, client: trio.abc.Stream, first: bytes | bytearray) -> None:
        async with await trio.open_unix_socket(str(self._server)) as server, trio.open_nursery() as nursery:
            answering = trio.CancelScope()

            async def answers() -> None:
                with answering:
                    async for piece in server:
                        if self.answering:
                            await client.send_all(piece)
                    nursery.cancel_scope.cancel()

            nursery.start_soon(answers)
            piece = first or await client.receive_some()
            while piece and not self.before(piece):
                last = self.after(piece)
                if last:
                    answering.cancel()
                await server.send_all(piece)
                if last:
                    break
                piece = await client.receive_some()
            nursery.cancel_scope.cancel()


def server_socket(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0]) / _SOCKET_NAME


@asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    """A proxy to the server of `url` on a unix socket, whose own URL is `proxy.url`."""
    with tempfile.TemporaryDirectory() as folder:
        proxy = Proxy(server_socket(url))
        proxy.url = urlunsplit(urlsplit(url)._replace(query=f"host={quote(folder, safe='')}"))
        listener_socket = trio.socket.socket(trio.socket.AF_UNIX)
        await listener_socket.bind(str(Path(folder) / _SOCKET_NAME))
        listener_socket.listen(16)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, proxy.forward, [trio.SocketListener(listener_socket)])
            yield proxy
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def tls_proxy_to(url: str, tls: ssl.SSLContext) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy to the server of `url` on a TCP port of the loopback, with TLS for those who ask for it."""
    proxy = Proxy(server_socket(url), tls)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, proxy.forward, listeners)
        yield proxy, port
        nursery.cancel_scope.cancel()
