"""`svc vm console NAME`: an interactive serial terminal over the console websocket.

The local terminal is raw while connected, so every key goes to the guest but one: Ctrl-] leaves.
"""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import asyncclick as click
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from svc.cli.client import API_PREFIX
from svc.cli.failures import Exit, Failure
from svc.cli.naming import resolve
from svc.cli.output import MESSAGES
from svc.cli.profiles import tls_context
from svc.cli.session import Session, narrow, session_options

ESCAPE = b"\x1d"
_CHUNK = 4096


@click.command("console")
@click.argument("name")
@session_options
@click.pass_obj
async def console(session: Session, /, name: str, **given: object) -> None:
    """Open a machine's serial console. Ctrl-] leaves."""
    session = narrow(session, dict(given))
    async with session.client() as client:
        vm_id = await resolve(client, "/vms", name)
        ticket = await client.call("POST", f"/vms/{vm_id}/console", body={"kind": "serial"})
        address = urlsplit(client.profile.url)
        url = f"wss://{address.netloc}{API_PREFIX}/console/ws/{ticket['ticket']}"
        context = tls_context(client.profile)
        MESSAGES.print(f"connected to {name}; Ctrl-] leaves", style="dim")
        async with open_websocket_url(url, ssl_context=context, max_message_size=1 << 20) as socket:
            with _raw_terminal():
                await _join(socket)
        reason = socket.closed.reason if socket.closed else None
    MESSAGES.print(f"\nconsole closed{f': {reason}' if reason else ''}", style="dim")


async def _join(socket: WebSocketConnection) -> None:
    """Until the guest's side closes or the person types the escape key."""
    async with trio.open_nursery() as nursery:

        async def guest_to_terminal() -> None:
            try:
                while True:
                    message = await socket.get_message()
                    await trio.to_thread.run_sync(_write, message if isinstance(message, bytes) else message.encode())
            except ConnectionClosed:
                nursery.cancel_scope.cancel()

        async def terminal_to_guest() -> None:
            async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as keys:
                while typed := await keys.receive_some(_CHUNK):
                    before, escape, _ = typed.partition(ESCAPE)
                    if before:
                        await socket.send_message(before)
                    if escape:
                        break
            nursery.cancel_scope.cancel()

        nursery.start_soon(guest_to_terminal)
        nursery.start_soon(terminal_to_guest)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@contextmanager
def _raw_terminal() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        raise Failure(Exit.INVALID, "the console needs a terminal on standard input")
    before = termios.tcgetattr(descriptor)
    blocking = os.get_blocking(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        # FdStream made the shared file description non-blocking; the shell expects it as it was.
        os.set_blocking(descriptor, blocking)
