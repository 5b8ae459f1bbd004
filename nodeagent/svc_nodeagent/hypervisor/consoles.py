"""Consoles of guests: the serial line, which any number of viewers share, and the screen, for which libvirt gives a
descriptor.

One task reads a running guest's pseudo-terminal from its start to its end, whether or not there are viewers, so the
guest never blocks on output. The output goes into a bounded scrollback and to each viewer; a viewer that does not read
loses the oldest part of its backlog, and a note in its output says so; other viewers and the guest are not affected.
"""

from __future__ import annotations

import errno
import os
import socket
import termios
import tty
from collections import deque
from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.domains import serial_path
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import FailureCode

SCROLLBACK_BYTES = 64 * 1024
BACKLOG_BYTES = 256 * 1024
READ_BYTES = 16 * 1024
SKIPPED = b"\r\n[output skipped]\r\n"

log = structlog.get_logger()


class SerialLine:
    """A guest's serial line. `run` owns the terminal; `watch` gives a viewer's stream."""

    def __init__(self, path: Path, serial_log: Path) -> None:
        self._path = path
        self._log = serial_log
        self._scrollback = Scrollback(SCROLLBACK_BYTES)
        self._viewers: set[SerialViewer] = set()
        self._descriptor: int | None = None
        self._writing = trio.Lock()
        self.ended = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read until the guest is gone. Reports as started once the terminal is open; raises `OSError` if it cannot be
        opened."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            tty.setraw(descriptor)
            # Earlier output is read from the log file. So what the terminal has buffered of it is discarded, or viewers
            # would get it twice.
            termios.tcflush(descriptor, termios.TCIFLUSH)
            self._scrollback.add(await in_thread(_tail, self._log, SCROLLBACK_BYTES))
            self._descriptor = descriptor
            task_status.started()
            while data := await _read(descriptor):
                self._scrollback.add(data)
                for viewer in self._viewers:
                    viewer.give(data)
        finally:
            self.ended = True
            self._descriptor = None
            trio.lowlevel.notify_closing(descriptor)
            os.close(descriptor)
            for viewer in tuple(self._viewers):
                viewer.end()

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def watch(self) -> SerialViewer:
        """Add a viewer, which first gets the scrollback."""
        viewer = SerialViewer(self)
        viewer.give(self._scrollback.content())
        if self.ended:
            viewer.end()
        else:
            self._viewers.add(viewer)
        return viewer

    def leave(self, viewer: SerialViewer) -> None:
        self._viewers.discard(viewer)

    async def write(self, data: bytes) -> None:
        """Type `data`, without mixing it with other viewers' input. Waits for the guest."""
        async with self._writing:
            view = memoryview(data)
            while view:
                if self._descriptor is None:
                    raise trio.BrokenResourceError("the guest is no longer running")
                try:
                    await trio.lowlevel.wait_writable(self._descriptor)
                    view = view[os.write(self._descriptor, view) :]
                except BlockingIOError:
                    continue
                except (OSError, trio.ClosedResourceError) as error:
                    raise trio.BrokenResourceError("the guest is no longer running") from error

    def statistics(self) -> dict[str, int]:
        return {"viewers": len(self._viewers), "scrollback_bytes": len(self._scrollback.content())}


class SerialLines:
    """The lines of all running guests. Each is read in the nursery that attached it."""

    def __init__(self, guests: Guests, folders: Folders) -> None:
        self._guests = guests
        self._folders = folders
        self._lines: dict[UUID, SerialLine] = {}

    async def watch(self, vm_id: UUID, nursery: trio.Nursery) -> SerialViewer:
        line = self._lines.get(vm_id)
        if line is None or line.ended:
            line = await self.attach(vm_id, nursery)
        return line.watch()

    async def attach(self, vm_id: UUID, nursery: trio.Nursery) -> SerialLine:
        """Read the guest's serial line from now on. Raises `HostError(conflict)` if the guest is not running."""
        line = self._lines.get(vm_id)
        if line is not None and not line.ended:
            return line
        path = serial_path(await self._guests.domain_xml(vm_id))
        line = self._lines.get(vm_id)
        if line is not None and not line.ended:  # another viewer has opened the line meanwhile
            return line
        if path is None:
            raise HostError(
                FailureCode.CONFLICT, "The machine is not running, so it has no console.", "Start it first."
            )
        line = self._lines[vm_id] = SerialLine(path, self._folders.serial_log(vm_id))
        try:
            await nursery.start(line.run)
        except OSError as error:
            raise HostError(FailureCode.HOST, f"The serial console could not be opened: {error}") from error
        finally:
            if not line.is_open:
                line.ended = True
        return line

    def forget(self, vm_id: UUID) -> None:
        """Drop the line of a guest that has ended."""
        self._lines.pop(vm_id, None)


class SerialViewer(trio.abc.Stream):
    """One viewer's end of a serial line. Receives b"" once the guest has stopped."""

    def __init__(self, line: SerialLine) -> None:
        self._line = line
        self._backlog: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._closed = False
        self._news = trio.Event()

    def give(self, data: bytes) -> None:
        if not data:
            return
        self._backlog.append(data)
        self._size += len(data)
        if self._size > BACKLOG_BYTES:
            while self._size > BACKLOG_BYTES // 2:
                self._size -= len(self._backlog.popleft())
            self._backlog.appendleft(SKIPPED)
            self._size += len(SKIPPED)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._line.leave(self)
        self._news.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while not self._backlog:
            if self._closed:
                raise trio.ClosedResourceError
            if self._ended:
                return b""
            self._news = trio.Event()
            await self._news.wait()
        data = self._backlog.popleft()
        if max_bytes is not None and len(data) > max_bytes:
            self._backlog.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._size -= len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        await self._line.write(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._closed = True
        self._line.leave(self)
        self._news.set()
        await trio.lowlevel.checkpoint()


class Scrollback:
    """The last `limit` bytes that were added."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        self._kept += data
        # Trimmed only now and then, so that each byte is moved a limited number of times.
        if len(self._kept) > 2 * self._limit:
            del self._kept[: len(self._kept) - self._limit]

    def content(self) -> bytes:
        return bytes(self._kept[-self._limit :])


def stream_of(descriptor: int) -> trio.SocketStream:
    """A stream that owns the descriptor of a connected socket (a screen, from libvirt)."""
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(sock))


async def _read(descriptor: int) -> bytes:
    """The guest's next output; b"" when it is gone (the terminal's other end is closed: EIO)."""
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        try:
            return os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno != errno.EIO:
                log.warning("serial.failed", error=str(error))
            return b""


def _tail(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read(size)
    except FileNotFoundError:
        return b""
