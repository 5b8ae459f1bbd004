"""`svc vm console NAME`: an interactive serial terminal over the console websocket.

The local terminal is raw while connected, so the guest gets every key but Ctrl-], which leaves. The terminal is
restored however the command ends.

A lost connection (the controller was replaced, the node's agent upgraded, the guest restarted) is opened again with a
new ticket. Keys typed meanwhile are discarded: nobody would see what they do.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Final

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.naming import resolve
from svc.cli.session import Session
from svc.cli.terminal import say
from svc.cli.websocket import open_console, open_patiently

ESCAPE = b"\x1d"
_CHUNK = 4096
_AGAIN_WITHIN: Final = 60.0
"""For how many seconds to retry a lost console."""
_PAUSE: Final = 1.0
_SETTLED: Final = 5.0
_MOST_SHORT: Final = 5
"""The retries end after this many consoles in a row that each ended within `_SETTLED` seconds: then the machine has no
usable console."""
_LOST: Final = frozenset({1001, 1006, 4409, 4503})
"""Close codes after which the machine may have a console again (docs/consoles.md)."""


async def console(session: Session, name: str) -> None:
    """Runs until the machine is off, the user types the escape key, or the terminal goes away."""
    keyboard, screen = sys.stdin.fileno(), sys.stdout.fileno()
    if not os.isatty(keyboard):
        raise Failure(Exit.INVALID, "the console needs a terminal on standard input")
    async with session.client() as client:
        vm_id = await resolve(client, session.listing("/vms"), name)
        async with open_console(client, vm_id, "serial") as socket:
            say(f"connected to {name}; Ctrl-] leaves, Enter wakes a silent login prompt", style="dim")
            # Trio's streams get duplicates of the terminal's descriptors: closing a stream closes its descriptor, and
            # the terminal must stay open.
            with _raw_terminal(keyboard), _as_they_were(keyboard, screen):
                async with (
                    trio.lowlevel.FdStream(os.dup(keyboard)) as keys,
                    trio.lowlevel.FdStream(os.dup(screen)) as shown,
                ):
                    reason = await _Person(client, vm_id, keys, shown).stay(socket)
    say(f"\nconsole closed{f': {reason}' if reason else ''}", style="dim")


class _Person:
    """The user's terminal, and the console to which the keys currently go."""

    def __init__(self, client: Client, vm_id: str, keys: trio.lowlevel.FdStream, shown: trio.lowlevel.FdStream) -> None:
        self._client = client
        self._vm_id = vm_id
        self._keys = keys
        self._shown = shown
        self._socket: WebSocketConnection | None = None

    async def stay(self, socket: WebSocketConnection) -> str | None:
        """Keep a console open until the user leaves, or until it ends for good; then return the reason. Raises
        `Failure` if a lost console could not be opened again."""
        reason: str | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_told_to_stop, nursery.cancel_scope)
            nursery.start_soon(self._until_escape, nursery.cancel_scope)
            try:
                reason = await self._follow(socket)
            except trio.BrokenResourceError:
                reason = "the terminal is gone"
            nursery.cancel_scope.cancel()
        return reason

    async def _follow(self, socket: WebSocketConnection) -> str | None:
        lost, reason = await self._show(socket)
        short = 0
        while lost and short < _MOST_SHORT:
            await self._tell(f"{reason or 'The connection was lost.'} Connecting again; Ctrl-] leaves.")
            await trio.sleep(_PAUSE)
            async with AsyncExitStack() as stack:
                try:
                    socket = await open_patiently(stack, self._client, self._vm_id, "serial", within=_AGAIN_WITHIN)
                except Failure as failure:
                    if failure.exit_code == Exit.CONFLICT:
                        return reason  # The machine is off.
                    raise
                await self._tell("Connected again.")
                began = trio.current_time()
                lost, reason = await self._show(socket)
                short = short + 1 if trio.current_time() - began < _SETTLED else 0
        return reason

    async def _show(self, socket: WebSocketConnection) -> tuple[bool, str | None]:
        """Print the guest's output until the console ends; returns whether it may be opened again, and the reason."""
        self._socket = socket
        try:
            while True:
                message = await socket.get_message()
                await self._shown.send_all(message if isinstance(message, bytes) else message.encode())
        except ConnectionClosed:
            said = socket.closed
            return said is None or said.code in _LOST, said.reason if said else None
        finally:
            self._socket = None

    async def _tell(self, text: str) -> None:
        # The terminal is raw, so each line needs its own carriage return.
        await self._shown.send_all(f"\r\n{text}\r\n".encode())

    async def _until_escape(self, person: trio.CancelScope) -> None:
        """Send keys until the escape key, or until the terminal is closed."""
        with suppress(trio.BrokenResourceError):
            while typed := await self._keys.receive_some(_CHUNK):
                before, escape, _ = typed.partition(ESCAPE)
                if before:
                    await self._type(before)
                if escape:
                    break
        person.cancel()

    async def _type(self, keys: bytes) -> None:
        if self._socket is None:
            return
        try:
            await self._socket.send_message(keys)
        except ConnectionClosed:
            self._socket = None

    async def _until_told_to_stop(self, person: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
            async for _ in signals:
                person.cancel()


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
    """Restore the flags of the terminal's file descriptions after the block. Trio's streams make them non-blocking; the
    shell shares them, and expects them to block."""
    before = [(descriptor, os.get_blocking(descriptor)) for descriptor in descriptors]
    try:
        yield
    finally:
        for descriptor, blocking in before:
            os.set_blocking(descriptor, blocking)
