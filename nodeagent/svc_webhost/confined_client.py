"""The core's side of the file helpers (`svc_webhost.confined`): a site's helper starts with the first request, and
ends after a minute without one.

Invariants: a site has one helper at a time; every request has a deadline, and a helper that exceeds one is killed with
all its work, which leaves no file half written; a request that changes nothing is repeated once with a new helper, and
one that changes something never is, since it may have been done.

Why: docs/decisions/0048-files-of-sites.md.
"""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from svc_common.errors import ServiceError, capacity, conflict, forbidden, invalid, not_found, unavailable
from svc_webhost import confined
from svc_webhost.confined import kernel
from svc_webhost.confined.protocol import (
    LENGTHS,
    MAX_HEADER,
    MAX_PAYLOAD,
    Failed,
    FileRequest,
    encode_request,
)

IDLE_SECONDS: Final = 60.0
START_SECONDS: Final = 10.0
AT_ONCE: Final = 32
"""The most concurrent requests of a helper. Further requests wait here, and their deadlines already run."""

_ERRORS: Final = {
    Failed.NOT_FOUND: not_found,
    Failed.EXISTS: conflict,
    Failed.CONFLICT: conflict,
    Failed.REFUSED: forbidden,
    Failed.INVALID: invalid,
    Failed.NO_SPACE: capacity,
    Failed.BROKEN: unavailable,
}

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class SiteFolder:
    """The root of a site's files, owned by the site's account."""

    path: Path
    uid: int
    gid: int


@dataclass(frozen=True)
class Answer:
    result: dict[str, Any]
    payload: bytes


class _HelperGoneError(Exception):
    """The helper ended before it answered."""


@dataclass
class _Waiting:
    done: trio.Event = field(default_factory=trio.Event)
    answer: tuple[dict[str, Any], bytes] | None = None


class _Helper:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._sending = trio.Lock()
        self._slots = trio.CapacityLimiter(AT_ONCE)
        self._long = trio.CapacityLimiter(1)
        self._waiting: dict[int, _Waiting] = {}
        self._received = bytearray()
        self._number = 0
        self.gone = False
        self.used_at = trio.current_time()

    @property
    def idle_since(self) -> float:
        """Since when the helper has had no requests; `math.inf` while it has some."""
        return math.inf if self._waiting else self.used_at

    def end(self) -> None:
        self.gone = True
        self._stream.socket.close()

    async def greeting(self) -> dict[str, Any]:
        header, _ = await self._frame()
        return header

    async def answers(self) -> None:
        """Receive until the helper ends, and then wake its remaining callers."""
        try:
            while True:
                header, payload = await self._frame()
                waiting = self._waiting.pop(header["number"], None)
                if waiting is not None:
                    waiting.answer = header, payload
                    waiting.done.set()
        except _HelperGoneError:
            pass
        finally:
            self.end()
            for waiting in self._waiting.values():
                waiting.done.set()

    async def ask(self, request: FileRequest, payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        deadline = trio.current_time() + seconds
        slots = self._long if request.long else self._slots
        with trio.move_on_at(deadline) as waiting:
            await slots.acquire()
        if waiting.cancelled_caught:
            raise unavailable(
                "Other work on this site's files is under way; nothing was changed.",
                hint="Try again when it has ended.",
            )
        try:
            with trio.move_on_at(deadline):
                return await self._exchange(request, payload)
        finally:
            slots.release()
        self.end()
        raise unavailable(
            f"This took longer than {seconds:.0f} seconds and was ended.", hint="No file was left half written."
        )

    async def _exchange(self, request: FileRequest, payload: bytes) -> tuple[dict[str, Any], bytes]:
        if self.gone:
            raise _HelperGoneError
        self._number += 1
        number, waiting = self._number, _Waiting()
        self._waiting[number] = waiting
        try:
            await self._send(encode_request(number, request, len(payload)), payload)
            await waiting.done.wait()
        except trio.Cancelled:
            if request.long:  # Otherwise the request would continue, and change the site after its caller has given up.
                self.end()
            raise
        finally:
            self._waiting.pop(number, None)
            self.used_at = trio.current_time()
        if waiting.answer is None:
            raise _HelperGoneError
        return waiting.answer

    async def _send(self, frame: bytes, payload: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.send_all(frame)
                await self._stream.send_all(payload)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise _HelperGoneError from None
            except trio.Cancelled:
                self.end()  # A part of a frame may have been sent, so the connection cannot be used any longer.
                raise

    async def _frame(self) -> tuple[dict[str, Any], bytes]:
        header_length, payload_length = LENGTHS.unpack(await self._exactly(LENGTHS.size))
        if header_length > MAX_HEADER or payload_length > MAX_PAYLOAD:
            raise _HelperGoneError
        header = json.loads(await self._exactly(header_length))
        return header, await self._exactly(payload_length)

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                more = await self._stream.receive_some(1 << 18)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise _HelperGoneError from None
            if not more:
                raise _HelperGoneError
            self._received += more
        found = bytes(self._received[:size])
        del self._received[:size]
        return found


class ConfinedFiles:
    """Create it with `ConfinedFiles.open`, use it with `ask`."""

    def __init__(self, nursery: trio.Nursery, without_landlock: bool) -> None:
        self._nursery = nursery
        self._without_landlock = without_landlock
        self._helpers: dict[SiteFolder, _Helper] = {}
        self._starting: dict[SiteFolder, trio.Lock] = {}
        self._forker: _Forker | None = None
        self._ordering = trio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, *, without_landlock: bool = False) -> AsyncIterator[ConfinedFiles]:
        """`without_landlock`: serve even if the kernel cannot confine helpers to their folder; then only the accounts'
        rights protect other files."""
        abi = kernel.landlock_abi()
        if abi < kernel.LOWEST_ABI:
            log.warning("files.landlock_missing", abi=abi, needed=kernel.LOWEST_ABI, served=without_landlock)
        async with trio.open_nursery() as nursery:
            files = cls(nursery, without_landlock)
            nursery.start_soon(files._end_idle)
            try:
                yield files
            finally:
                for helper in files._helpers.values():
                    helper.end()
                if files._forker is not None:
                    await files._forker.end()
                nursery.cancel_scope.cancel()

    async def ask(
        self, site: SiteFolder, request: FileRequest, payload: bytes = b"", *, seconds: float = 10.0
    ) -> Answer:
        """Send a request to the helper of the site and return its answer. Raises `ServiceError`: the helper's refusals,
        and `unavailable` if it does not answer in time."""
        try:
            header, answered = await (await self._helper(site)).ask(request, payload, seconds)
        except _HelperGoneError:
            if request.mutates:
                raise _ended("See whether the change was made before you repeat it.") from None
            try:
                header, answered = await (await self._helper(site)).ask(request, payload, seconds)
            except _HelperGoneError:
                raise _ended("Try again.") from None
        if "failure" in header:
            raise _error(header)
        return Answer(header["result"], answered)

    async def forget(self, site: SiteFolder) -> None:
        """End the helper of a site, for example because the site is removed."""
        helper = self._helpers.pop(site, None)
        if helper is not None:
            helper.end()
        await trio.lowlevel.checkpoint()

    @property
    def sites(self) -> frozenset[SiteFolder]:
        """The sites that have a helper now."""
        return frozenset(self._helpers)

    async def _helper(self, site: SiteFolder) -> _Helper:
        async with self._starting.setdefault(site, trio.Lock()):
            helper = self._helpers.get(site)
            if helper is None or helper.gone:
                helper = await self._start(site)
            return helper

    async def _start(self, site: SiteFolder) -> _Helper:
        root = _open_root(site)
        ours, theirs = socket.socketpair()
        try:
            try:
                await self._order(site, root, theirs)
            finally:
                os.close(root)
                theirs.close()
            helper = _Helper(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        except BaseException:
            ours.close()
            raise
        try:
            with trio.fail_after(START_SECONDS):
                greeting = await helper.greeting()
        except (_HelperGoneError, trio.TooSlowError):
            helper.end()
            raise unavailable("The process that works on this site's files did not start.") from None
        except BaseException:
            helper.end()
            raise
        if "failure" in greeting:
            helper.end()
            log.error("files.not_confined", folder=str(site.path), error=greeting["message"])
            raise unavailable(f"Files cannot be worked on safely here: {greeting['message']}.")
        self._helpers[site] = helper
        self._nursery.start_soon(self._run, site, helper)
        return helper

    async def _run(self, site: SiteFolder, helper: _Helper) -> None:
        await helper.answers()
        if self._helpers.get(site) is helper:
            del self._helpers[site]

    async def _order(self, site: SiteFolder, root: int, link: socket.socket) -> None:
        # One order at a time, for all sites: otherwise five concurrent starts would start five forkers.
        async with self._ordering:
            await self._order_once(site, root, link)

    async def _order_once(self, site: SiteFolder, root: int, link: socket.socket) -> None:
        for attempt in (1, 2):
            if self._forker is None:
                self._forker = await _Forker.start()
            try:
                await self._forker.fork(site, root, link, without_landlock=self._without_landlock)
                return
            except OSError as error:
                await self._forker.end()
                self._forker = None
                if attempt == 2:
                    raise unavailable(f"The process that works on this site's files did not start: {error}.") from error

    async def _end_idle(self) -> None:
        while True:
            await trio.sleep(IDLE_SECONDS / 4)
            for site, helper in list(self._helpers.items()):
                if helper.idle_since < trio.current_time() - IDLE_SECONDS:
                    await self.forget(site)
            self._starting = {site: lock for site, lock in self._starting.items() if lock.statistics().locked}


@dataclass(frozen=True)
class _Forker:
    """The process that forks helpers: it has no site's folder open, and no threads that a fork would lose."""

    orders: socket.socket
    process: subprocess.Popen[bytes]

    @classmethod
    async def start(cls) -> _Forker:
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # Started by its path, because an installed panel is not in Python's search path.
            program = Path(confined.__file__).with_name("__main__.py")
            command = [sys.executable, "-I", "-S", "-X", "utf8", str(program)]
            # Popen instead of Trio's processes: the forker ends by itself when its socket is closed, and nothing else
            # is needed of it.
            process = await trio.to_thread.run_sync(
                lambda: subprocess.Popen(command, stdin=theirs.fileno(), env={}, cwd="/", start_new_session=True)
            )
        orders.setblocking(False)
        return cls(orders, process)

    async def fork(self, site: SiteFolder, root: int, link: socket.socket, *, without_landlock: bool) -> None:
        order = json.dumps({"uid": site.uid, "gid": site.gid, "without_landlock": int(without_landlock)}).encode()
        while True:
            try:
                socket.send_fds(self.orders, [order], [root, link.fileno()])
                return
            except BlockingIOError:
                # The socket is full of orders that wait: the process is alive but busy.
                with trio.move_on_after(START_SECONDS) as patience:
                    await trio.lowlevel.wait_writable(self.orders)
                if patience.cancelled_caught:
                    raise TimeoutError("it accepts no requests") from None

    async def end(self) -> None:
        trio.lowlevel.notify_closing(self.orders)
        self.orders.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._reap)

    def _reap(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)


def _open_root(site: SiteFolder) -> int:
    """Open the folder, which must not be a link and must belong to the account."""
    try:
        root = os.open(site.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise unavailable(f"The site's folder cannot be opened: {error.strerror}.") from error
    owner = os.fstat(root).st_uid
    if owner != site.uid:
        os.close(root)
        raise unavailable("The site's folder does not belong to its account.", hint="Repair the site's permissions.")
    return root


def _ended(hint: str) -> ServiceError:
    return unavailable("The process that works on this site's files ended before it answered.", hint=hint)


def _error(header: dict[str, Any]) -> ServiceError:
    message = header["message"].encode(errors="surrogateescape").decode(errors="replace")
    return _ERRORS[Failed(header["failure"])](message)
