"""A person at a serial console: types, and waits for what the guest writes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio_websocket import WebSocketConnection

from svc.cli.client import Client
from svc.cli.websocket import open_console

_ESCAPES = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")
_ECHO = "echo end''ed-$?"


class Terminal:
    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._unread = b""
        self._prompt = ""
        self.transcript = b""

    async def expect(self, text: str, timeout: float = 300.0) -> str:
        """Wait until the guest has written `text`, and return what came before it."""
        wanted = text.encode()
        try:
            with trio.fail_after(timeout):
                while wanted not in self._unread:
                    message = await self._socket.get_message()
                    data = message if isinstance(message, bytes) else message.encode()
                    self.transcript += data
                    self._unread = _ESCAPES.sub(b"", self._unread + data)
        except trio.TooSlowError:
            seen = self.transcript[-2000:].decode(errors="replace")
            raise AssertionError(f"the guest did not write {text!r} within {timeout:g} s; it wrote:\n{seen}") from None
        before, _, self._unread = self._unread.partition(wanted)
        return before.decode(errors="replace")

    async def send(self, text: str) -> None:
        await self._socket.send_message(text.encode())

    async def log_in(self, user: str, password: str, *, prompt: str = "# ", boots_within: float = 300.0) -> None:
        """From a silent line to a shell's prompt."""
        await self.send("\r")
        await self.expect("login: ", boots_within)
        await self.send(user + "\r")
        await self.expect("assword: ")
        for _ in range(5):
            # login discards what is typed before it has turned the echo off, which it does unseen just after the
            # prompt: a person whose password was not taken types it again.
            await trio.sleep(1.0)
            await self.send(password + "\r")
            with trio.move_on_after(10):
                await self.expect(prompt)
                # Of 80 columns, a long command would be shown on two lines.
                await self.send("stty cols 250\r")
                await self.expect(prompt)
                self._prompt = prompt
                return
        raise AssertionError(f"{user} was not let in; the guest wrote:\n{self.transcript[-2000:]!r}")

    async def take_up(self, prompt: str = "# ") -> None:
        """At the shell of somebody who has logged in before."""
        await self.send("\r")
        await self.expect(prompt)
        self._prompt = prompt

    async def run(self, command: str, timeout: float = 120.0) -> str:
        """At a prompt: what a command printed, and its exit status on the last line.

        The mark's echo differs from the mark by its quotes: what the system itself writes to its console may stand in
        the midst of an echo.
        """
        await self.send(f"{command}; {_ECHO}\r")
        output = await self.expect("ended-", timeout)
        status = await self.expect("\n")
        # What is typed before the prompt is there stands before it.
        await self.expect(self._prompt)
        return output.replace("\r", "").rpartition(f"{_ECHO}\n")[2].strip() + "\n" + status.strip()


@asynccontextmanager
async def serial_console(client: Client, vm_id: str) -> AsyncIterator[Terminal]:
    async with open_console(client, vm_id, "serial") as socket:
        yield Terminal(socket)
