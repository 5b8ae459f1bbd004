"""Runs statements in an engine's own client program (psql, mariadb), with a limit on its output.

An owner's client prints what customers have stored, which may be any number of rows of 64 MB.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from svc_webhost.databases.server import DatabaseError
from svc_webhost.programs import ENVIRONMENT, KILL_SECONDS

STATEMENT_SECONDS: Final = 120.0
MOST_ERROR_CHARACTERS: Final = 600
"""The most characters of an engine's error message within our own."""
_MOST_BYTES: Final = 16 << 20
"""The most bytes of an answer: the core asks only for names of databases, users and tables, and for counts."""


async def ask_client(command: tuple[str, ...], sql: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the client with `sql` as its standard input; return its standard output. Raises `DatabaseError`."""
    process = await trio.lowlevel.open_process(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**ENVIRONMENT, **(environment or {})},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = _Output(process), _Output(process)
    try:
        with trio.move_on_after(STATEMENT_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write, process.stdin, sql.encode())
                nursery.start_soon(errors.read, process.stderr)
                nursery.start_soon(output.read, process.stdout)
            status = await process.wait()
            if output.is_too_long or errors.is_too_long:
                raise DatabaseError(f"The database server answered more than {_MOST_BYTES:,} bytes.")
            if status != 0:
                message = " ".join(errors.content.decode(errors="replace").split())
                raise DatabaseError(message[:MOST_ERROR_CHARACTERS] or f"exit status {status}")
            return output.content.decode(errors="replace")
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + KILL_SECONDS):
            await process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            await trio.aclose_forcefully(stream)
    raise DatabaseError(f"The database server did not complete the statement within {STATEMENT_SECONDS:.0f} seconds.")


@dataclass
class _Output:
    """Output of a program, which is killed once it has written too much."""

    process: trio.Process
    content: bytearray = field(default_factory=bytearray)
    is_too_long: bool = False

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        async for chunk in stream:
            if len(self.content) + len(chunk) > _MOST_BYTES:
                self.is_too_long = True
                self.process.kill()
                return
            self.content += chunk


async def _write(stream: trio.abc.SendStream, text: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # The client has ended; its errors say why.
        await stream.send_all(text)
    await stream.aclose()
