"""`svc vm vnc NAME`: a machine's screen for any VNC viewer, on a port of this computer's loopback.

Each viewer that connects gets a ticket and a websocket of its own; nothing listens beyond loopback.
"""

from __future__ import annotations

from functools import partial

import asyncclick as click
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.naming import resolve
from svc.cli.output import say
from svc.cli.session import Session
from svc.cli.websocket import open_console

_CHUNK = 65536


async def vnc(session: Session, name: str, port: int) -> None:
    """Serve viewers until interrupted."""
    async with session.client() as client:
        vm_id = await resolve(client, session.listing("/vms"), name)
        try:
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        except OSError as error:
            raise Failure(Exit.INVALID, f"cannot listen on 127.0.0.1:{port}: {error.strerror}") from error
        bound = listeners[0].socket.getsockname()[1]
        click.echo(f"127.0.0.1:{bound}")
        say(f"point a VNC viewer at 127.0.0.1:{bound} for {name}; Ctrl-C ends it", style="dim")
        await trio.serve_listeners(partial(_viewer, client, vm_id), listeners)


async def _viewer(client: Client, vm_id: str, viewer: trio.SocketStream) -> None:
    async with viewer:
        try:
            async with open_console(client, vm_id, "vnc") as socket, trio.open_nursery() as nursery:
                nursery.start_soon(_to_viewer, socket, viewer, nursery.cancel_scope)
                nursery.start_soon(_to_guest, viewer, socket, nursery.cancel_scope)
        except Failure as failure:
            failure.show()
    say("a viewer has gone", style="dim")


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
