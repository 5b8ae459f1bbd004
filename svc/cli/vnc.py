"""`svc vm vnc NAME`: a machine's screen for any VNC viewer, on a port of this computer's loopback.

Each viewer that connects gets a ticket and a websocket of its own; nothing listens beyond loopback.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

import asyncclick as click
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from svc.cli.client import API_PREFIX, Client
from svc.cli.failures import Failure
from svc.cli.naming import resolve
from svc.cli.output import MESSAGES
from svc.cli.profiles import tls_context
from svc.cli.session import Session, narrow, session_options

_CHUNK = 65536


@click.command("vnc")
@click.argument("name")
@click.option("--port", default=0, help="The port on 127.0.0.1; 0 takes a free one.")
@session_options
@click.pass_obj
async def vnc(session: Session, /, name: str, port: int, **given: object) -> None:
    """Offer a machine's screen to a VNC viewer on this computer, until interrupted."""
    session = narrow(session, dict(given))
    async with session.client() as client:
        vm_id = await resolve(client, "/vms", name)
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        bound = listeners[0].socket.getsockname()[1]
        click.echo(f"127.0.0.1:{bound}")
        MESSAGES.print(f"point a VNC viewer at 127.0.0.1:{bound} for {name}; Ctrl-C ends it", style="dim")
        await trio.serve_listeners(partial(_viewer, client, vm_id), listeners)


async def _viewer(client: Client, vm_id: str, viewer: trio.SocketStream) -> None:
    async with viewer:
        try:
            ticket = await client.call("POST", f"/vms/{vm_id}/console", body={"kind": "vnc"})
        except Failure as failure:
            failure.show()
            return
        url = f"wss://{urlsplit(client.profile.url).netloc}{API_PREFIX}/console/ws/{ticket['ticket']}"
        async with open_websocket_url(url, ssl_context=tls_context(client.profile), max_message_size=1 << 24) as socket:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_to_viewer, socket, viewer, nursery.cancel_scope)
                nursery.start_soon(_to_guest, viewer, socket, nursery.cancel_scope)


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
        MESSAGES.print("the viewer or the guest went away", style="dim")
    done.cancel()
