"""The connection to libvirt: blocking calls in threads with deadlines, reconnection, and libvirt's events.

Invariants:

- a call that does not return holds up its caller until the deadline, and occupies one of the connection's few threads;
  nothing else waits for the call;
- a query has a deadline of its own (`CALL_TIMEOUT_SECONDS`); an order, which changes something, has none (`PATIENT`):
  after a timeout it would not be known what libvirt has done, so the agent waits for the order until its operation
  ends;
- libvirt's errors become `HostError`; a broken connection becomes `ConnectionLost`, after which the caller may repeat
  the call: the agent reconnects for ever, with a pause that grows to `MAX_PAUSE_SECONDS`;
- after every connection and reconnection each listener gets `reconnected`, because it has missed the events since the
  previous connection.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.calls import host_call
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.libvirt_loop import EVENT_LOOP
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import FailureCode

T = TypeVar("T")
Libvirt = Any
"""`libvirt.virConnect`; the binding has no types."""

CALL_TIMEOUT_SECONDS = 30.0
PATIENT = math.inf
SLOW_SECONDS = 5.0
"""A call that takes longer is logged: on a healthy host no call does."""
THREADS = 16
MAX_PAUSE_SECONDS = 10.0
KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 5, 3

log = structlog.get_logger()


class ConnectionLost(HostError):  # noqa: N818 - named for what it says
    def __init__(self, why: str) -> None:
        super().__init__(
            FailureCode.HOST,
            f"libvirt cannot be reached on this node: {why}",
            "The agent keeps trying. Check whether libvirtd runs, and its log.",
        )


class LibvirtError(HostError):
    """libvirt refused a call; `number` is its error code (VIR_ERR_...)."""

    def __init__(self, code: FailureCode, message: str, number: int) -> None:
        super().__init__(code, message)
        self.number = number


@dataclass(frozen=True)
class LifecycleEvent:
    uuid: UUID
    name: str
    event: int
    detail: int


class Listener(Protocol):
    """Gets libvirt's events. Its methods are called in the Trio thread and must not block."""

    def reconnected(self) -> None: ...
    def lifecycle(self, event: LifecycleEvent) -> None: ...
    def guest_agent_connected(self, uuid: UUID, name: str) -> None: ...


class Connection:
    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._listener: Listener
        self._limiter = trio.CapacityLimiter(THREADS)
        self._connection: Libvirt | None = None
        self._changed = trio.Event()
        self._lost = trio.Event()
        self._last_error = "it was not tried yet"
        self._subscriptions: list[int] = []
        # without this, libvirt also prints the errors that are raised
        libvirt.registerErrorHandler(lambda _context, _error: None, None)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def statistics(self) -> dict[str, int]:
        """`busy`: the number of calls inside libvirt now, including abandoned calls that have not returned."""
        return {"busy": int(self._limiter.borrowed_tokens), "threads": int(self._limiter.total_tokens)}

    async def call(
        self, work: Callable[[Libvirt], T], *, name: str = "libvirt", timeout: float = CALL_TIMEOUT_SECONDS
    ) -> T:
        """Run `work(connection)` in a thread. After `timeout` seconds, or if the caller is cancelled, the call is
        abandoned, and may still take effect. `name` identifies it in traces and logs: libvirt's name of its main call.

        Raises `ConnectionLost` if there is no connection within `CALL_TIMEOUT_SECONDS`."""
        with host_call(name):
            return await self._call(work, name, timeout)

    async def _call(self, work: Callable[[Libvirt], T], name: str, timeout: float) -> T:
        began = trio.current_time()
        connection = await self._connected(min(timeout, CALL_TIMEOUT_SECONDS))
        with trio.CancelScope(deadline=began + timeout):
            try:
                return await trio.to_thread.run_sync(
                    work, connection, abandon_on_cancel=True, limiter=self._limiter, thread_name="libvirt call"
                )
            except libvirt.libvirtError as error:
                raise self._translated(error, connection) from error
            except (SystemError, UnicodeDecodeError) as error:
                # The binding raises this for a text that is not UTF-8. Only a guest's agent can send such a text:
                # libvirt's own texts are UTF-8.
                raise LibvirtError(
                    FailureCode.HOST,
                    "libvirt returned data that is not text (UTF-8): the guest's agent does not answer correctly.",
                    libvirt.VIR_ERR_AGENT_UNSYNCED,
                ) from error
            finally:
                if (seconds := trio.current_time() - began) >= SLOW_SECONDS:
                    hint = "The node's preflight may say why."
                    log.warning("libvirt.slow", call=name, seconds=round(seconds, 1), hint=hint)
        if self._connection is None:
            raise ConnectionLost(self._last_error)
        raise HostError(
            FailureCode.TIMED_OUT,
            f"libvirt did not answer within {timeout:g} s.",
            "The operation may still take effect. If this continues, see libvirtd's log on the node.",
        )

    async def run(self, listener: Listener, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a connection until cancelled. Reports as started once the first attempt to connect has succeeded or
        failed."""
        self._listener = listener
        pause = 0.5
        told = False
        try:
            while True:
                try:
                    await self._connect()
                except (libvirt.libvirtError, trio.TooSlowError, HostError) as error:
                    self._last_error = str(error) or "libvirt did not answer"
                    log.warning("libvirt.unreachable", error=self._last_error, again_in_seconds=round(pause, 1))
                if not told:
                    task_status.started()
                    told = True
                if self._connection is None:
                    await trio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                    pause = min(pause * 2, MAX_PAUSE_SECONDS)
                    continue
                pause = 0.5
                await self._lost.wait()
                await self._disconnect()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await self._disconnect()

    async def _connected(self, timeout: float) -> Libvirt:
        with trio.move_on_after(timeout):
            while self._connection is None:
                await self._changed.wait()
        if self._connection is None:
            raise ConnectionLost(self._last_error)
        return self._connection

    async def _connect(self) -> None:
        try:
            connection = await self._open()
        except libvirt.libvirtError:
            if not await start_daemons():
                raise
            connection = await self._open()
        self._lost = trio.Event()
        self._last_error = ""
        self._connection = connection
        self._announce()
        self._listener.reconnected()
        log.info("libvirt.connected", uri=self._uri)

    async def _open(self) -> Libvirt:
        def open_and_subscribe() -> Libvirt:
            connection = libvirt.open(self._uri)
            try:
                connection.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT)
            except libvirt.libvirtError as error:
                # a driver that runs within this process has no connection
                if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                    raise
            connection.registerCloseCallback(self._on_close, None)
            for event, callback in (
                (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE, self._on_lifecycle),
                (libvirt.VIR_DOMAIN_EVENT_ID_AGENT_LIFECYCLE, self._on_guest_agent),
            ):
                self._subscriptions.append(connection.domainEventRegisterAny(None, event, callback, None))
            return connection

        self._subscriptions = []

        with trio.fail_after(15):
            return await trio.to_thread.run_sync(open_and_subscribe, abandon_on_cancel=True, limiter=self._limiter)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._announce()
        if connection is None:
            return

        def close() -> None:
            try:
                # Each subscription keeps the connection open, so all of them are ended first.
                for subscription in self._subscriptions:
                    connection.domainEventDeregisterAny(subscription)
                connection.unregisterCloseCallback()
                connection.close()
            except libvirt.libvirtError as error:
                log.debug("libvirt.close_failed", error=str(error))

        with trio.move_on_after(5):
            await trio.to_thread.run_sync(close, abandon_on_cancel=True, limiter=self._limiter)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _translated(self, error: libvirt.libvirtError, connection: Libvirt) -> HostError:
        number = error.get_error_code()
        message = _sentence(error)
        if _is_broken(error, number):
            self._last_error = message
            if self._connection is connection:
                self._lost.set()
            return ConnectionLost(message)
        code = _CODES.get(number, FailureCode.HOST)
        if "Cannot allocate memory" in message or "cannot set up guest memory" in message:
            code = FailureCode.CAPACITY
        return LibvirtError(code, message, number)

    # Called by libvirt, in any thread

    def _on_close(self, connection: Libvirt, reason: int, opaque: object) -> None:
        EVENT_LOOP.soon(self._closed, connection, reason)

    def _on_lifecycle(self, connection: Libvirt, domain: Any, event: int, detail: int, opaque: object) -> None:
        seen = LifecycleEvent(UUID(domain.UUIDString()), domain.name(), event, detail)
        EVENT_LOOP.soon(self._tell, connection, self._listener.lifecycle, seen)

    def _on_guest_agent(self, connection: Libvirt, domain: Any, state: int, reason: int, opaque: object) -> None:
        if state == libvirt.VIR_CONNECT_DOMAIN_EVENT_AGENT_LIFECYCLE_STATE_CONNECTED:
            heard = UUID(domain.UUIDString()), domain.name()
            EVENT_LOOP.soon(self._tell, connection, self._listener.guest_agent_connected, *heard)

    def _tell(self, connection: Libvirt, tell: Callable[..., None], *what: object) -> None:
        if self._connection is connection:  # late events of a replaced connection are ignored
            tell(*what)

    def _closed(self, connection: Libvirt, reason: int) -> None:
        if self._connection is connection:
            self._last_error = f"the connection was closed (reason {reason})"
            self._lost.set()


def version_text(number: int) -> str:
    """A version as libvirt counts it (a million for each major, a thousand for each minor), as text."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


async def start_daemons() -> bool:
    """Start virtlogd and libvirtd if there is no init system to do that. Returns False if there is one. Raises
    `HostError`."""
    if await trio.Path("/run/systemd/system").exists() or os.geteuid() != 0:
        return False
    for daemon in ("virtlogd", "libvirtd"):
        if not await _runs(daemon):
            log.info("libvirt.daemon_started", daemon=daemon)
            await run_program(daemon, "-d", timeout=20)
    return True


async def _runs(daemon: str) -> bool:
    """Whether the process that the pid file names is alive and is that daemon."""
    try:
        pid = int(await trio.Path(f"/run/{daemon}.pid").read_text())
        name = await trio.Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    return name.strip() == daemon


_CODES = {
    libvirt.VIR_ERR_NO_DOMAIN: FailureCode.NOT_FOUND,
    libvirt.VIR_ERR_OPERATION_INVALID: FailureCode.CONFLICT,
    libvirt.VIR_ERR_OPERATION_TIMEOUT: FailureCode.TIMED_OUT,
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE: FailureCode.TIMED_OUT,
    libvirt.VIR_ERR_OPERATION_UNSUPPORTED: FailureCode.UNSUPPORTED,
    libvirt.VIR_ERR_CONFIG_UNSUPPORTED: FailureCode.UNSUPPORTED,
    libvirt.VIR_ERR_NO_SUPPORT: FailureCode.UNSUPPORTED,
    libvirt.VIR_ERR_NO_MEMORY: FailureCode.CAPACITY,
}

_BROKEN_WORDS = ("client socket is closed", "connection is closed", "end of file while reading", "broken pipe")


def _is_broken(error: libvirt.libvirtError, number: int) -> bool:
    if number in (libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_INVALID_CONN, libvirt.VIR_ERR_RPC):
        return True
    text = str(error).lower()
    return any(words in text for words in _BROKEN_WORDS)


def _sentence(error: libvirt.libvirtError) -> str:
    text: str = error.get_error_message() or str(error)
    return " ".join(text.split())
