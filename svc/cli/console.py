"""`svc vm console NAME`: an interactive serial terminal over the console websocket.

The local terminal is raw while connected, so every key goes to the guest but one: Ctrl-] leaves. However it ends, the
terminal is as it was before.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from svc.cli.failures import Exit, Failure
from svc.cli.naming import resolve
from svc.cli.output import say
from svc.cli.session import Session
from svc.cli.websocket import open_console

ESCAPE = b"\x1d"
_CHUNK = 4096


async def console(session: Session, name: str) -> None:
    """Until the guest's side closes, the person types the escape key, or the terminal goes away."""
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    if not os.isatty(keyboard):
        raise Failure(Exit.INVALID, "the console needs a terminal on standard input")
    async with session.client() as client:
        vm_id = await resolve(client, session.listing("/vms"), name)
        async with open_console(client, vm_id, "serial") as socket:
            say(f"connected to {name}; Ctrl-] leaves, Enter wakes a silent login prompt", style="dim")
            with _raw_terminal(keyboard), _as_they_were(keyboard, screen):
                left = await _join(socket, keyboard, screen)
        reason = socket.closed.reason if socket.closed and not left else None
    say(f"\nconsole closed{f': {reason}' if reason else ''}", style="dim")


async def _join(socket: WebSocketConnection, keyboard: int, screen: int) -> bool:
    """True when it was this side that left."""
    left = False
    # Duplicates: closing a stream closes its descriptor, and the terminal stays ours.
    async with (
        trio.lowlevel.FdStream(os.dup(keyboard)) as keys,
        trio.lowlevel.FdStream(os.dup(screen)) as shown,
        trio.open_nursery() as nursery,
    ):

        async def guest_to_terminal() -> None:
            try:
                while True:
                    message = await socket.get_message()
                    await shown.send_all(message if isinstance(message, bytes) else message.encode())
            except (ConnectionClosed, trio.BrokenResourceError):
                nursery.cancel_scope.cancel()

        async def terminal_to_guest() -> None:
            nonlocal left
            try:
                while typed := await keys.receive_some(_CHUNK):
                    before, escape, _ = typed.partition(ESCAPE)
                    if before:
                        await socket.send_message(before)
                    if escape:
                        break
                left = True
            except (ConnectionClosed, trio.BrokenResourceError):
                left = False  # the other task knows why
            nursery.cancel_scope.cancel()

        async def told_to_stop() -> None:
            nonlocal left
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
                async for _ in signals:
                    left = True
                    nursery.cancel_scope.cancel()

        nursery.start_soon(told_to_stop)
        nursery.start_soon(guest_to_terminal)
        nursery.start_soon(terminal_to_guest)
    return left


@contextmanager
def _raw_terminal(keyboard: int) -> Iterator[None]:
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _as_they_were(*descriptors: int) -> Iterator[None]:
    """Trio's streams make the shared file descriptions non-blocking; the shell expects them as they were."""
    before = [(descriptor, os.get_blocking(descriptor)) for descriptor in descriptors]
    try:
        yield
    finally:
        for descriptor, blocking in before:
            os.set_blocking(descriptor, blocking)
