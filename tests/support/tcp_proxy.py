"""A TCP proxy that misbehaves on demand: cuts its connections, after so many bytes or now, takes no new ones, swallows
everything, or keeps what comes for a while."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio


@dataclass
class Proxy:
    target: int
    port: int = 0
    cut_after: tuple[int, int] | None = None
    """Every new connection is cut once it has carried a number of bytes drawn from this range."""
    random: random.Random = field(default_factory=lambda: random.Random(0))
    swallowing: bool = False
    """Half-open: connections stay, and nothing goes through any more."""
    refusing: bool = False
    """Whoever connects is let go at once."""
    passing: trio.Event | None = None
    """What comes is kept until this is set: a network that loses packets for a while, of which TCP loses none."""
    accepted: int = 0
    _connections: set[trio.CancelScope] = field(default_factory=set)

    def cut(self) -> None:
        for scope in list(self._connections):
            scope.cancel()

    async def serve(self, client: trio.SocketStream) -> None:
        if self.refusing:
            await trio.aclose_forcefully(client)
            return
        self.accepted += 1
        budget = self.random.randint(*self.cut_after) if self.cut_after else None
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                server = await trio.open_tcp_stream("127.0.0.1", self.target)
                async with client, server, trio.open_nursery() as nursery:
                    left = [budget]
                    nursery.start_soon(self._copy, client, server, left, scope)
                    nursery.start_soon(self._copy, server, client, left, scope)
            except OSError:
                await trio.aclose_forcefully(client)
            finally:
                self._connections.discard(scope)

    async def _copy(
        self, source: trio.SocketStream, sink: trio.SocketStream, left: list[int | None], scope: trio.CancelScope
    ) -> None:
        try:
            while data := await source.receive_some(1024):
                if self.swallowing:
                    continue
                if self.passing is not None:
                    await self.passing.wait()
                allowed = left[0]
                if allowed is not None:
                    data = data[:allowed]
                    left[0] = allowed - len(data)
                if data:
                    await sink.send_all(data)
                if left[0] == 0:
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()


@asynccontextmanager
async def proxy_to(port: int, *, seed: int = 0) -> AsyncIterator[Proxy]:
    proxy = Proxy(port, random=random.Random(seed))
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
