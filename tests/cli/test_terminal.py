"""`svc` as a program of its own at a terminal: the console, pipes that close, interruptions."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import trio

from svc.cli.failures import Exit
from tests.cli.conftest import House, Terminal

SVC = str(Path(sys.executable).parent / "svc")
PATIENCE = 60.0


async def test_the_console_echoes_and_the_escape_key_gives_the_terminal_back(house: House) -> None:
    await house.node()
    await house.image()
    await house.machine("web-1", "--password", "--wait")
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    process = await trio.lowlevel.open_process(
        [SVC, "vm", "console", "web-1"], stdin=slave, stdout=slave, stderr=slave, env=house.variables()
    )
    async with trio.lowlevel.FdStream(master) as screen:
        with trio.fail_after(PATIENCE):
            await _until(screen, b"Ctrl-] leaves")
            while termios.tcgetattr(slave)[3] & termios.ICANON:
                await trio.sleep(0.01)
            await screen.send_all(b"\x03hello\r")
            await _until(screen, b"hello")
            await screen.send_all(b"\x1d")
            assert await process.wait() == 0
        assert termios.tcgetattr(slave) == before
        assert os.get_blocking(slave)
    os.close(slave)


async def test_a_console_without_a_terminal_is_refused(house: House) -> None:
    ended = await trio.run_process(
        [SVC, "vm", "console", "web-1"], env=house.variables(), stdin=b"", capture_stderr=True, check=False
    )
    assert ended.returncode == Exit.INVALID
    assert b"terminal" in ended.stderr


async def test_a_reader_that_has_enough_ends_a_command_quietly(terminal: Terminal) -> None:
    process = await trio.lowlevel.open_process(
        [SVC, "openapi", "controller"], env=terminal.variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with trio.fail_after(PATIENCE):
        await process.stdout.receive_some(1)
        await process.stdout.aclose()
        complaints = b"".join([chunk async for chunk in process.stderr])
        assert await process.wait() == Exit.BROKEN_PIPE
    assert complaints == b""


async def test_an_interruption_has_its_exit_code_and_no_traceback(house: House) -> None:
    process = await trio.lowlevel.open_process(
        [SVC, "event", "stream", "--after", "0"],
        env=house.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with trio.fail_after(PATIENCE):
        await process.stdout.receive_some(1)
        process.send_signal(signal.SIGINT)
        complaints = b"".join([chunk async for chunk in process.stderr])
        assert await process.wait() == Exit.INTERRUPTED
    assert complaints.strip() == b"svc: interrupted"


async def _until(screen: trio.lowlevel.FdStream, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        seen += await screen.receive_some(4096)
