"""The serial line, on a real pseudo-terminal whose other end the test holds, as QEMU would."""

from __future__ import annotations

import os
import tty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from svc_nodeagent.hypervisor.consoles import BACKLOG_BYTES, SCROLLBACK_BYTES, SKIPPED, SerialLine, SerialViewer


@dataclass
class Guest:
    """The guest's end of the line."""

    line: SerialLine
    descriptor: int

    async def say(self, data: bytes) -> None:
        with trio.fail_after(60):
            while data:
                await trio.lowlevel.wait_writable(self.descriptor)
                try:
                    data = data[os.write(self.descriptor, data) :]
                except BlockingIOError:
                    continue

    async def hear(self, size: int) -> bytes:
        heard = b""
        with trio.fail_after(60):
            while len(heard) < size:
                await trio.lowlevel.wait_readable(self.descriptor)
                heard += os.read(self.descriptor, size - len(heard))
        return heard

    def stop(self) -> None:
        if self.descriptor >= 0:
            trio.lowlevel.notify_closing(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1


@asynccontextmanager
async def running(log: Path) -> AsyncIterator[Guest]:
    theirs, ours = os.openpty()
    tty.setraw(theirs)
    os.set_blocking(theirs, False)
    line = SerialLine(Path(os.ttyname(ours)), log)
    guest = Guest(line, theirs)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(line.run)
            os.close(ours)
            yield guest
            nursery.cancel_scope.cancel()
    finally:
        guest.stop()


async def received(viewer: SerialViewer, size: int) -> bytes:
    data = b""
    with trio.fail_after(60):
        while len(data) < size:
            chunk = await viewer.receive_some()
            assert chunk, f"the line ended after {len(data)} bytes"
            data += chunk
    return data


async def test_every_viewer_sees_everything(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        viewers = [guest.line.watch() for _ in range(3)]
        await guest.say(b"login: ")
        for viewer in viewers:
            assert await received(viewer, 7) == b"login: "


async def test_a_late_viewer_sees_the_boot_so_far(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        await guest.say(b"booting\r\n")
        assert await received(guest.line.watch(), 9) == b"booting\r\n"
        assert await received(guest.line.watch(), 9) == b"booting\r\n"


async def test_what_was_said_before_the_agent_came_is_seen_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * SCROLLBACK_BYTES + b"panic")
    async with running(log) as guest:
        seen = await received(guest.line.watch(), SCROLLBACK_BYTES)
        assert len(seen) == SCROLLBACK_BYTES
        assert seen.endswith(b"panic")


async def test_scrollback_is_bounded(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        viewer = guest.line.watch()
        for _ in range(6):
            await guest.say(b"y" * SCROLLBACK_BYTES)
            await received(viewer, SCROLLBACK_BYTES)
        assert guest.line.statistics()["scrollback_bytes"] == SCROLLBACK_BYTES


async def test_a_viewer_that_does_not_read_holds_up_neither_guest_nor_others(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        asleep, awake = guest.line.watch(), guest.line.watch()
        for _ in range(2 * BACKLOG_BYTES // 4096):
            await guest.say(b"z" * 4096)
            await received(awake, 4096)
        await guest.say(b"end")
        await received(awake, 3)
        asleep_saw = b""
        while not asleep_saw.endswith(b"end"):
            asleep_saw += await asleep.receive_some()
        assert SKIPPED in asleep_saw
        assert len(asleep_saw) <= BACKLOG_BYTES + len(SKIPPED)


async def test_what_is_typed_arrives_whole_and_unchanged(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        first, second = guest.line.watch(), guest.line.watch()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.send_all, b"\x03a" * 50)
            nursery.start_soon(second.send_all, b"\x04b" * 50)
        typed = await guest.hear(200)
        assert typed in (b"\x03a" * 50 + b"\x04b" * 50, b"\x04b" * 50 + b"\x03a" * 50)


async def test_when_the_guest_stops_viewers_see_the_end_and_typing_fails(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        viewer = guest.line.watch()
        await guest.say(b"bye")
        assert await received(viewer, 3) == b"bye"
        guest.stop()
        with trio.fail_after(60):
            assert await viewer.receive_some() == b""
        with pytest.raises(trio.BrokenResourceError):
            await viewer.send_all(b"anyone?")
        assert guest.line.ended


async def test_ten_reloads_leave_no_viewer(tmp_path: Path) -> None:
    async with running(tmp_path / "log") as guest:
        for _ in range(10):
            async with guest.line.watch():
                pass
        assert guest.line.statistics()["viewers"] == 0
