"""The streams of a live migration, and the Unix sockets at both ends of them.

The source's agent listens where its own libvirt and QEMU dial. The target's agent dials its own libvirt, and the
sockets on which its QEMU listens. Both use the same paths, since libvirt is given one name for both ends.

    source: libvirtd, QEMU -> socket -> agent == gateway == agent -> socket -> libvirtd, QEMU :target

When a socket at the source is dialled, the source's agent sends one byte on the stream. Only then does the target's
agent dial its socket: QEMU's disk server sends its greeting first, which would otherwise arrive before there is a
client. QEMU dials once for each disk, and the first data that it sends says which disk this is, so it does not matter
which of the streams for disks is used.

Invariant: whatever ends a stream closes the sockets at both ends at once. When its connection ends, libvirt ends the
migration and resumes the guest. With an open connection, libvirt would wait 30 s for its keepalive to fail, and refuse
the next migration until then. If a network goes silent, no socket ends by itself. So the agents end a stream on which
libvirt's keepalive messages, one every five seconds, no longer arrive.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.hypervisor.acceleration import qemu_user
from svc_nodeagent.hypervisor.files import in_thread

RUN_FOLDER: Final = Path("/run/svc-node/live")
LIBVIRT_SOCKETS: Final = (Path("/run/libvirt/libvirt-sock"), Path("/run/libvirt/virtqemud-sock"))
SILENCE_SECONDS = 20.0
"""How long libvirt's connection may be silent: the time of four messages of its keepalive."""
DIAL_SECONDS: Final = 20.0
# As many as a machine may have. The number is also the backlog of the socket, so that QEMU's connections for all disks
# are accepted at once.
MOST_DISKS: Final = 16
_DIALLED: Final = b"\n"
_CHUNK: Final = 256 * 1024
_CLOSING_SECONDS: Final = 2.0
log = structlog.get_logger(__name__)


class Sockets:
    """The sockets of one machine that moves, on this host."""

    def __init__(self, vm_id: UUID, run_folder: Path = RUN_FOLDER) -> None:
        self._folder = run_folder / str(vm_id)
        self.libvirt, self.memory, self.disk = (self._folder / name for name in ("libvirt", "memory", "disk"))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """A folder that only QEMU's account and root may enter, for the length of the block."""
        await in_thread(self._make)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(shutil.rmtree, self._folder, True)

    def _make(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # Left by an agent that died during a move.
        self._folder.mkdir(parents=True)
        for parent in list(self._folder.parents)[:2]:
            parent.chmod(0o711)
        os.chown(self._folder, *qemu_user().owner)
        self._folder.chmod(0o700)


SocketsOf = Callable[[UUID], Sockets]


def own_libvirt_socket() -> Path:
    """The socket of this host's libvirt: of the one daemon, or of the modular one for QEMU."""
    return next((path for path in LIBVIRT_SOCKETS if path.exists()), LIBVIRT_SOCKETS[0])


async def listen(path: Path) -> trio.SocketListener:
    """A socket that QEMU's user may dial."""
    # Built by hand, because trio can open Unix sockets only as a client.
    listening = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listening.bind(str(path))
    os.chown(path, *qemu_user().owner)
    os.chmod(path, 0o600)
    listening.listen(MOST_DISKS)
    return trio.SocketListener(listening)


async def relay_accepted(
    listener: trio.SocketListener, streams: Sequence[trio.abc.Stream], silence: float | None = None
) -> None:
    """Accept one connection for each of `streams`, in order, and relay between the two until either ends."""
    async with trio.open_nursery() as nursery:
        # The listener is closed once each stream has its connection: a further connection is then refused at once and
        # does not hang.
        async with listener:
            for stream in streams:
                nursery.start_soon(_carry, await listener.accept(), stream, silence)


async def _carry(dialled: trio.SocketStream, stream: trio.abc.Stream, silence: float | None) -> None:
    async with dialled:
        await stream.send_all(_DIALLED)
        await join(dialled, stream, silence=silence)


async def relay_on_dial(
    stream: trio.abc.Stream,
    path: Path,
    wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream,
    *,
    within: float | None = None,
    silence: float | None = None,
) -> None:
    """Wait until the source says that its end was dialled (at most `within` seconds), then dial the socket here, and
    join the two until either ends. `wrap` checks the data that comes from the source."""
    # The stream has ended instead: the move is over, and this socket was not needed.
    if await _within(within, stream.receive_some, 1) != _DIALLED:
        return
    with trio.fail_after(DIAL_SECONDS):
        dialled = await _dial(path)
    async with dialled:
        await join(dialled, wrap(stream), silence=silence)


async def join(local: trio.abc.Stream, remote: trio.abc.Stream, *, silence: float | None = None) -> None:
    """Pass data on in both directions until either end closes, or until `remote` has brought nothing for `silence`
    seconds. Then both are closed."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_copy, local, remote, nursery.cancel_scope, None)
        nursery.start_soon(_copy, remote, local, nursery.cancel_scope, silence)
    await close(local)
    await close(remote)


async def close(stream: trio.abc.Stream) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSING_SECONDS):
        try:
            await stream.aclose()
        except (trio.BrokenResourceError, trio.BusyResourceError):
            return


async def _copy(source: trio.abc.Stream, sink: trio.abc.Stream, over: trio.CancelScope, silence: float | None) -> None:
    try:
        while data := await _within(silence, source.receive_some, _CHUNK):
            await sink.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # One side has closed, as at the end of every move, complete or cut short.
    except trio.TooSlowError:
        log.warning("live.silent", seconds=silence)
    finally:
        # When one direction has ended, the whole connection is over: nothing waits for the other direction.
        over.cancel()


async def _within(
    seconds: float | None, receive: Callable[[int], Awaitable[bytes | bytearray]], most: int
) -> bytes | bytearray:
    if seconds is None:
        return await receive(most)
    with trio.fail_after(seconds):
        return await receive(most)


async def _dial(path: Path) -> trio.SocketStream:
    """Dial until somebody listens: QEMU listens a moment after libvirt was asked to prepare the move."""
    while True:
        if await in_thread(_is_socket, path):
            try:
                return await trio.open_unix_socket(str(path))
            except ConnectionRefusedError:
                pass
        await trio.sleep(0.02)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return False
