"""Reads a serial console as a person would: until something is there to be read."""

from __future__ import annotations

import trio

_PATIENCE = 300.0


class ConsoleReader:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.text = ""

    async def until(self, *expected: str, seconds: float = _PATIENCE) -> str:
        """What was said up to and including the first of `expected`."""
        with trio.move_on_after(seconds):
            while True:
                for words in expected:
                    if words in self.text:
                        said, _, self.text = self.text.partition(words)
                        return said + words
                chunk = await self.stream.receive_some()
                assert chunk, f"the console ended before {expected}: {self.text[-2000:]}"
                self.text += chunk.decode(errors="replace").replace("\r", "")
        raise AssertionError(f"{expected} did not appear on the console: {self.text[-2000:]}")

    async def type(self, line: str) -> None:
        await self.stream.send_all(f"{line}\n".encode())

    async def until_prompted(self) -> None:
        """Until the guest that runs now asks who is there. The scrollback, which comes first, is of its earlier boots
        too, with their prompts: so one is asked for."""
        await self.quiet()
        self.text = ""
        with trio.fail_after(_PATIENCE):
            while True:
                await self.type("")
                with trio.move_on_after(2):
                    await self.until("login:")
                    return

    async def log_in(self, account: str, password: str) -> None:
        """A prompt shows before the guest listens, and what is typed into that gap is lost, without an echo: so it is
        waited out, and where it was longer than that the name is typed again."""
        with trio.fail_after(_PATIENCE):
            await self.quiet()
            await self.type(account)
            while not await self._echoed(account):
                await self.type(account)
        await self.until("assword:")
        await self.quiet()
        await self.type(password)
        said = await self.until("$ ", "# ", "ncorrect", "imed out")
        assert said.endswith(("$ ", "# ")), said

    async def _echoed(self, line: str) -> bool:
        with trio.move_on_after(15):
            await self.until(line)
            return True
        return False

    async def quiet(self) -> None:
        """Until nothing has been said for a moment."""
        heard = True
        while heard:
            heard = False
            with trio.move_on_after(0.5):
                self.text += (await self.stream.receive_some()).decode(errors="replace").replace("\r", "")
                heard = True

    async def run(self, command: str, seconds: float = 60) -> str:
        """A shell command's output. The marker is typed in two halves, so the echo of the line is not taken for it."""
        await self.type(f"{command}; echo end''mark")
        return await self.until("endmark", seconds=seconds)
