"""The event loop passed to asyncpg: awaiting one of its futures reads from the connection it belongs to.

asyncpg needs of a loop only futures and transports. Each connection gets its own `Loop`; while one of its futures is
awaited, the link reads the socket and feeds the protocol until the future is done.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Generator
from typing import Any

import trio

from svc_actors.store.transport import Link, TLSLink, Traffic

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class Future:
    """A future reply. Awaiting it reads from the connection of the loop that created it."""

    __slots__ = ("_callbacks", "_error", "_loop", "_result", "finished")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._result: object = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future], object]] = []
        self.finished = False

    def __await__(self) -> Generator[Any, Any, object]:
        if not self.finished:
            link = self._loop.link
            if link is None:
                raise ConnectionResetError("the connection is closed")
            yield from link.pump(self).__await__()
        return self.result()

    def done(self) -> bool:
        return self.finished

    def cancelled(self) -> bool:
        return False

    def result(self) -> object:
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self) -> BaseException | None:
        return self._error

    def set_result(self, result: object) -> None:
        self._result = result
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def cancel(self) -> bool:
        if not self.finished:
            self.set_exception(ConnectionAbortedError("the connection was given up"))
        return True

    def add_done_callback(self, callback: Callable[[Future], object]) -> None:
        if self.finished:
            callback(self)
        else:
            self._callbacks.append(callback)

    def _finish(self) -> None:
        self.finished = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


class Loop:
    """The part of an asyncio event loop that asyncpg uses, for one connection."""

    __slots__ = ("_traffic", "link")

    def __init__(self, traffic: Traffic) -> None:
        self.link: Link | None = None
        self._traffic = traffic

    def create_future(self) -> Future:
        return Future(self)

    def time(self) -> float:
        return trio.current_time()

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    async def create_unix_connection(self, factory: Callable[[], Any], path: str) -> tuple[Link, Any]:
        stream = await trio.open_unix_socket(path)
        return await self._adopt(stream.socket, factory, None, None)

    async def create_connection(
        self, factory: Callable[[], Any], host: str, port: int, *, ssl: ssl.SSLContext | None = None
    ) -> tuple[Link, Any]:
        stream = await trio.open_tcp_stream(host, port)
        sock = stream.socket
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        return await self._adopt(sock, factory, ssl, host)

    async def start_tls(self, link: Link, protocol: Any, context: ssl.SSLContext, *, server_hostname: str) -> Link:
        secured = TLSLink(link.hand_over(), protocol, self._traffic, context, server_hostname)
        self.link = secured
        await secured.handshake()
        return secured

    async def _adopt(
        self, sock: trio.socket.SocketType, factory: Callable[[], Any], context: ssl.SSLContext | None, host: str | None
    ) -> tuple[Link, Any]:
        plain = socket.socket(fileno=sock.detach())
        plain.setblocking(False)
        protocol = factory()
        if context is None:
            self.link = Link(plain, protocol, self._traffic)
        else:
            secured = TLSLink(plain, protocol, self._traffic, context, host)
            self.link = secured
            await secured.handshake()
        protocol.connection_made(self.link)
        return self.link, protocol
