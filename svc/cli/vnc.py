"""`svc vm vnc NAME`: a machine's screen for any VNC viewer, on a port of this computer's loopback.

Each viewer that connects gets its own ticket and websocket. The port is on loopback only. RFB cannot be resumed, so a
viewer whose console is lost (when the controller was replaced, for example) is disconnected. A viewer that connects
while the controller or the node is unavailable waits until it is back. Every user of this computer can reach the port,
so a viewer is accepted only if the kernel says that it runs as this user.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.naming import resolve
from svc.cli.session import Session
from svc.cli.terminal import say, write
from svc.cli.websocket import open_patiently

_CHUNK = 65536
_PATIENCE: Final = 30.0
"""Seconds for which a connected viewer waits for the controller or the node."""
_CONNECTIONS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_IPV6_DIGITS: Final = 32


async def vnc(session: Session, name: str, port: int) -> None:
    """Serve viewers until interrupted."""
    async with session.client() as client:
        vm_id = await resolve(client, session.listing("/vms"), name)
        try:
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        except OSError as error:
            raise Failure(Exit.INVALID, f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
        bound = listeners[0].socket.getsockname()[1]
        write(f"127.0.0.1:{bound}")
        say(f"point a VNC viewer at 127.0.0.1:{bound} for {name}; Ctrl-C ends it", style="dim")
        await trio.serve_listeners(partial(_viewer, client, vm_id), listeners)


async def _viewer(client: Client, vm_id: str, viewer: trio.SocketStream) -> None:
    async with viewer:
        try:
            require_own(viewer)
            async with AsyncExitStack() as stack:
                socket = await open_patiently(stack, client, vm_id, "vnc", within=_PATIENCE)
                nursery = await stack.enter_async_context(trio.open_nursery())
                nursery.start_soon(_to_viewer, socket, viewer, nursery.cancel_scope)
                nursery.start_soon(_to_guest, viewer, socket, nursery.cancel_scope)
        except Failure as failure:
            failure.show()
    say("a viewer disconnected", style="dim")


def require_own(viewer: trio.SocketStream, tables: Sequence[Path] = _CONNECTIONS) -> None:
    """Raise `Failure` unless the program at the other end of a loopback connection runs as this user, or as root.

    The tables (proc(5), /proc/net/tcp) have a line for each end of each connection: its own address and port, the other
    end's, and the owner's user id."""
    try:
        wanted = viewer.socket.getpeername()[:2], viewer.socket.getsockname()[:2]
        lines = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    except FileNotFoundError as error:
        raise Failure(
            Exit.INVALID, "this computer does not tell which user has connected; use the screen on the web page"
        ) from error
    except OSError as error:
        raise Failure(Exit.UNAVAILABLE, f"a viewer was refused: {error.strerror}") from error
    owners = [int(fields[7]) for fields in lines if (_endpoint(fields[1]), _endpoint(fields[2])) == wanted]
    if not owners:
        raise Failure(Exit.UNAVAILABLE, "a viewer that has gone already was refused")
    if owners[0] not in (os.getuid(), 0):
        raise Failure(Exit.FORBIDDEN, f"a viewer of another user of this computer (id {owners[0]}) was refused")


def _endpoint(text: str) -> tuple[str, int] | None:
    """0100007F:1F90 is 127.0.0.1:8080, the address in the machine's byte order. Also reads the IPv6 form of an IPv4
    address (RFC 4291, 2.5.5.2), which a dual-stack viewer connects from. None for any other IPv6 address."""
    address, _, port = text.partition(":")
    if len(address) == _IPV6_DIGITS:
        words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, _IPV6_DIGITS, 8)]
        if words[:3] != [bytes(4), bytes(4), b"\0\0\xff\xff"]:
            return None
        return socket.inet_ntoa(words[3]), int(port, 16)
    return socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder)), int(port, 16)


async def _to_viewer(socket: WebSocketConnection, viewer: trio.SocketStream, done: trio.CancelScope) -> None:
    try:
        while True:
            message = await socket.get_message()
            await viewer.send_all(message if isinstance(message, bytes) else message.encode())
    except (ConnectionClosed, trio.BrokenResourceError):
        done.cancel()


async def _to_guest(viewer: trio.SocketStream, socket: WebSocketConnection, done: trio.CancelScope) -> None:
    try:
        while data := await viewer.receive_some(_CHUNK):
            await socket.send_message(data)
    except (ConnectionClosed, trio.BrokenResourceError):
        done.cancel()
    done.cancel()
