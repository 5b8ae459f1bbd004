"""HTTPS: hypercorn on Trio, HTTP/1.1 and h2, websockets on both.

Invariants: TLS 1.2 at least; no header names the server's software; when the service stops, event streams end first,
then running requests have `GRACE` seconds. A peer that reads nothing from its socket for `UNREAD_DEADLINE` is cut off
by the kernel (TCP_USER_TIMEOUT, tcp(7)), even in the middle of a send that cannot be cancelled.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog
import trio
from hypercorn.config import Sockets
from hypercorn.trio import serve
from hypercorn.typing import ASGIFramework

from svc_actors.admission import Admission, of_clients
from svc_http import connections
from svc_http.certificates import Certificates
from svc_http.connections import BoundedConfig
from svc_http.peers import PEER, Peer, PeerKind, peer_uid

if TYPE_CHECKING:
    from svc_http.app import App

GRACE = 5.0
UNREAD_DEADLINE = 20.0
UNSENT_BYTES = 128 * 1024
"""How many unsent bytes the kernel buffers for a peer (tcp(7), TCP_NOTSENT_LOWAT). Without this bound, a peer that
reads nothing is noticed only after megabytes, which stay in memory."""
PING_INTERVAL = 20.0
KEEP_ALIVE = 65.0
HANDSHAKE_DEADLINE = 10.0
HEAD_BYTES = 64 * 1024
"""A path of 4,096 characters takes up to 48 KiB of the request's first line: %-encoded UTF-8."""
_LOCAL_CONNECTIONS = 1024
_OPERATORS = 64
"""The most connections to the loopback listener: a monitoring system needs one or two."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc_http.server")


class ListenerKeeper(Protocol):
    """Keeps listening sockets while the service restarts."""

    def bind(self, addresses: Sequence[str]) -> list[str]:
        """What to listen on for these addresses: an address itself, or a kept socket, which may accept connections to
        other addresses too."""
        ...

    def keep(self, listeners: Sequence[socket.socket]) -> None: ...


async def serve_https(
    app: App,
    bind: Sequence[str],
    certificates: Certificates,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    *,
    listener: ListenerKeeper | None = None,
) -> None:
    """Serve on `bind`, addresses and ports, until `shutdown` is set. Reports as started with the URLs listened on (the
    port is the real one if 0 was requested)."""

    async def stopped() -> None:
        await shutdown.wait()
        app.streams.stop()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(app.streams.run)
        await serve_tls(app, bind, certificates, stopped, task_status, listener=listener)
        nursery.cancel_scope.cancel()


async def serve_tls(
    app: ASGIFramework,
    bind: Sequence[str],
    certificates: Certificates,
    stopped: Callable[[], Awaitable[None]],
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
    *,
    listener: ListenerKeeper | None = None,
) -> None:
    """As `serve_https`, for an application without event streams, until `stopped` returns."""
    connections.install()
    server = _HttpsConfig(certificates, listener)
    server.admission = of_clients()
    server.bind = list(bind)
    await serve(app, server, shutdown_trigger=stopped, task_status=task_status)


async def serve_local(
    app: ASGIFramework,
    path: Path,
    web_account: str,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on a Unix socket, to root and to the processes of `web_account`, until `shutdown` is set. Then the socket
    is removed, since the command line takes an existing socket as the sign that a service runs here. If the process
    ends in another way, the socket stays.

    Raises KeyError if there is no such account."""
    connections.install()
    server = _LocalConfig(pwd.getpwnam(web_account))
    server.admission = Admission(_LOCAL_CONNECTIONS, _LOCAL_CONNECTIONS)
    server.bind = [f"unix:{path}"]
    await serve(app, server, shutdown_trigger=shutdown.wait, task_status=task_status, mode="asgi")
    await trio.Path(path).unlink(missing_ok=True)


async def serve_loopback(
    app: ASGIFramework,
    port: int,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` over plain HTTP to this machine alone."""
    connections.install()
    server = _NetworkConfig()
    server.admission = Admission(_OPERATORS, _OPERATORS)
    server.bind = [f"127.0.0.1:{port}"]
    await serve(app, server, shutdown_trigger=shutdown.wait, task_status=task_status, mode="asgi")


def plain_config(bind: Sequence[str]) -> BoundedConfig:
    """The configuration of a public listener without TLS."""
    server = _NetworkConfig()
    server.admission = of_clients()
    server.bind = list(bind)
    return server


def _bound(address: str) -> str:
    """Bind a socket for IPv6 only; returns it in the form in which hypercorn accepts sockets. Raises `OSError`."""
    host, _, port = address.removeprefix("[").rpartition("]:")
    listener = socket.socket(socket.AF_INET6)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, int(port)))
    except OSError:
        listener.close()
        raise
    return f"fd://{listener.detach()}"


def _hosts(bind: Sequence[str]) -> frozenset[str]:
    """The addresses of the hosts in `bind`, without ports, as the kernel writes them. Raises `OSError`."""
    hosts = (each.rpartition(":")[0].strip("[]") for each in bind)
    return frozenset(str(found[4][0]) for host in hosts for found in socket.getaddrinfo(host, None))


class _ServerConfig(BoundedConfig):
    include_server_header = False
    accesslog = None
    errorlog = logging.getLogger("hypercorn")
    graceful_timeout = GRACE
    shutdown_timeout = GRACE
    keep_alive_timeout = KEEP_ALIVE
    keep_alive_max_requests = 1_000_000
    ssl_handshake_timeout = HANDSHAKE_DEADLINE
    websocket_ping_interval = PING_INTERVAL
    h11_max_incomplete_size = HEAD_BYTES
    websocket_max_message_size = 1024 * 1024
    backlog = 1024
    ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20"


class _NetworkConfig(_ServerConfig):
    """The configuration of a listener on a port."""

    def create_sockets(self) -> Sockets:
        # Hypercorn's own IPv6 socket would also take the port for IPv4, and show IPv4 clients under other addresses.
        self.bind = [_bound(address) if address.startswith("[") else address for address in self.bind]
        sockets = super().create_sockets()
        for listener in (*sockets.secure_sockets, *sockets.insecure_sockets):
            # Accepted connections inherit these options.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_DEADLINE * 1000))
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
            listener.set_inheritable(False)
        return sockets


class _LocalConfig(_ServerConfig):
    """The configuration of the socket between web tier and core (`svc_http.peers`)."""

    def __init__(self, web: pwd.struct_passwd) -> None:
        super().__init__()
        self._web = web

    def create_sockets(self) -> Sockets:
        # The socket is created without access for others and then opened to the web tier's group alone, so nobody else
        # can connect in between.
        before = os.umask(0o177)
        try:
            sockets = super().create_sockets()
        finally:
            os.umask(before)
        for listener in sockets.insecure_sockets:
            os.chown(listener.getsockname(), -1, self._web.pw_gid)
            os.chmod(listener.getsockname(), 0o660)
            listener.set_inheritable(False)
        return sockets

    def admitted_as(self, connected: socket.socket) -> str | None:
        uid = peer_uid(connected)
        if uid == self._web.pw_uid and uid != 0:
            peer = Peer(PeerKind.WEB, uid)
        elif uid in (0, os.geteuid()):
            peer = Peer(PeerKind.ROOT, uid)
        else:
            log.warning("core.connection_refused", uid=uid)
            return None
        PEER.set(peer)
        return str(uid)


class _HttpsConfig(_NetworkConfig):
    def __init__(self, certificates: Certificates, listener: ListenerKeeper | None) -> None:
        super().__init__()
        self._certificates = certificates
        self._listener = listener
        self._served: frozenset[str] | None = None
        """The requested addresses, if a socket also accepts connections to others; None if each socket is bound to one
        of them."""

    def create_sockets(self) -> Sockets:
        if self._listener is None:
            return super().create_sockets()
        self._served = _hosts(self.bind)
        self.bind = self._listener.bind(self.bind)
        sockets = super().create_sockets()
        for listener in sockets.secure_sockets:
            # Hypercorn would call this later, but a socket that is kept must be listening already.
            listener.listen(self.backlog)
        self._listener.keep(sockets.secure_sockets)
        return sockets

    def admitted_as(self, connected: socket.socket) -> str | None:
        if self._served is not None:
            local = str(connected.getsockname()[0])
            if not {local, "::" if ":" in local else "0.0.0.0"} & self._served:  # noqa: S104 - recognised, not bound
                return None
        return super().admitted_as(connected)

    @property
    def ssl_enabled(self) -> bool:
        return True

    def create_ssl_context(self) -> ssl.SSLContext:
        return self._certificates.context(self._without_certificate)

    def _without_certificate(self) -> ssl.SSLContext:
        context = super().create_ssl_context()
        assert context is not None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        return context
