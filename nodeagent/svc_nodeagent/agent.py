"""The agent: a host, a journal, and a connection to the controller that is kept for ever.

Invariants:

- it reconnects for ever, with jittered exponential back-off, until an operator stops it;
- the certificate is renewed over the open channel at two thirds of its lifetime. The file of the new certificate
  replaces that of the old one only once the controller has welcomed a connection made with the new certificate; until
  then the old connection stays in use.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import structlog
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from svc_nodeagent.config import AgentFolder, Identity
from svc_nodeagent.connection import Connection, NotConnected, dial_stream, relay
from svc_nodeagent.dispatch import Dispatcher
from svc_nodeagent.enrol import new_key, private_pem, signing_request
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import Host, HostError, OpenStream, Report
from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import (
    MANY,
    SPOKEN,
    Acknowledge,
    Cancel,
    CheckStatus,
    ConsoleOpen,
    DownFrame,
    FailureCode,
    Hello,
    NodePreflight,
    NodeUpgrade,
    OperationResult,
    PreflightCheck,
    PreflightResult,
    Renewal,
    Renewed,
    Request,
    Versions,
    Welcome,
)
from svc_nodeagent.upgrade import Replaced, Upgrader
from svc_nodeagent.version import agent_version

_RENEWAL_RETRY = 600.0
_RENEWAL_POLL = 60.0
log = structlog.get_logger(__name__)

OpenHost = Callable[[OpenStream], AbstractAsyncContextManager[Host]]
"""Opens the hypervisor. It gets a function that reads files which the controller keeps."""

_SKEW_NOTED = timedelta(seconds=5)
_SKEW_TOO_MUCH = timedelta(minutes=5)


@dataclass(frozen=True)
class Patience:
    """Times in seconds. The pause before a reconnection is random, between half of the current back-off and all of it.
    The back-off grows by `growth` up to `longest_pause` and starts again after a connection that held for
    `settled_after`. With a growth of one half, the last pause is a third of the outage: after a controller was
    replaced, agents wait little longer than the replacement took."""

    first_pause: float = 0.5
    growth: float = 1.5
    longest_pause: float = 15.0
    settled_after: float = 20.0
    stopping: float = 10.0


class Agent:
    def __init__(
        self,
        folder: AgentFolder,
        journal: Journal,
        *,
        patience: Patience | None = None,
        seed: int | None = None,
        versions: Versions = SPOKEN,
        upgrader: Upgrader | None = None,
    ) -> None:
        self.folder = folder
        self._versions = versions
        self._upgrader = upgrader
        self.enrolment = folder.read_enrolment()
        self.identity = Identity.load(folder.identity, folder.authority)
        # A process that died may have left a renewed certificate with which it had opened no connection yet. The
        # controller may accept only this certificate by now.
        self._unproven = _load_unproven(folder)
        self.boot_id = str(uuid4())
        self._journal = journal
        self._patience = patience or Patience()
        self._random = random.Random(seed)  # noqa: S311 - only for jitter
        self._live: Connection | None = None
        self._candidate: Connection | None = None
        self._renewal_key: ec.EllipticCurvePrivateKey | None = None
        self._renew = trio.Event()
        self._adopted = trio.Event()
        self._online = trio.Event()
        self._stop = trio.Event()
        self._interrupted = tuple(journal.started)
        self.offline_reason: str | None = None
        """Why the last connection ended; None again once there is a new connection."""
        self._log = log.bind(node_id=str(self.enrolment.node_id))
        self._host: Host
        self._dispatcher: Dispatcher
        self._nursery: trio.Nursery

    @property
    def node_id(self) -> UUID:
        return self.enrolment.node_id

    @property
    def connected(self) -> bool:
        return self._live is not None

    def stop(self) -> None:
        """Shut down gracefully: accept no new operations, let running ones end, then close the connection."""
        self._stop.set()

    def renew_certificate(self) -> None:
        self._renew.set()

    async def open_stream(self, token: str) -> trio.SSLStream[trio.SocketStream]:
        return await dial_stream(self.enrolment, self.identity, token)

    async def run(self, open_host: OpenHost, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop`."""
        async with open_host(self.open_stream) as self._host:
            self._dispatcher = Dispatcher(self._host, self._journal, self)
            async with trio.open_nursery() as self._nursery:
                await self._nursery.start(self._dispatcher.run)
                self._nursery.start_soon(self._watch_domains)
                self._nursery.start_soon(self._keep_connected)
                self._nursery.start_soon(self._keep_certificate)
                task_status.started()
                await self._stop.wait()
                self._log.info("agent.stopping")
                await self._dispatcher.stop(self._patience.stopping)
                await self._journal.flush()
                if self._live is not None:
                    self._live.close()
                    await self._live.ended.wait()
                self._nursery.cancel_scope.cancel()

    async def open_console(self, operation: ConsoleOpen) -> None:
        """Join the guest's console to a stream that the controller waits for. The relay continues after the operation
        has ended."""
        console = await self._host.open_console(operation.vm_id, operation.kind)
        try:
            stream = await self.open_stream(operation.stream_token)
        except BaseException:
            await trio.aclose_forcefully(console)
            raise
        self._nursery.start_soon(self._relay, console, stream)

    async def _relay(self, console: trio.abc.Stream, stream: trio.abc.Stream) -> None:
        try:
            await relay(console, stream)
        except Exception:
            # A defect in one console must not end the agent and its other operations.
            log.exception("console.crashed", node_id=str(self.node_id))

    def complete_preflight(self, operation: NodePreflight, result: OperationResult) -> OperationResult:
        return _with_own_checks(result, controller_time=operation.controller_time, identity=self.identity)

    async def upgrade(self, operation: NodeUpgrade, report: Report) -> None:
        if self._upgrader is None:
            raise HostError(
                FailureCode.UNSUPPORTED,
                "This agent was not started by its launcher, so it cannot replace itself. Nothing was changed.",
                "Install the agent with the command that `svc node add` prints, or from the package svc-nodeagent.",
            )
        try:
            await self._upgrader.upgrade(operation, self.open_stream, report)
        except Replaced:
            self.stop()
            raise

    async def _keep_connected(self) -> None:
        pause, attempt = self._patience.first_pause, 0
        while not self._stop.is_set():
            if self._live is not None:  # A connection with a renewed certificate has taken over.
                await self._live.ended.wait()
                continue
            started = trio.current_time()
            attempt += 1
            await self._serve(self._connection(self._unproven if self._unproven and attempt % 2 else self.identity))
            if self._live is not None:
                continue
            if trio.current_time() - started >= self._patience.settled_after:
                pause = self._patience.first_pause
            await trio.sleep(pause * self._random.uniform(0.5, 1.0))
            pause = min(pause * self._patience.growth, self._patience.longest_pause)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        except NotConnected as ended:
            self.offline_reason = str(ended)
            self._log.info("connection.ended", reason=str(ended))
        except Exception:
            # This is treated like any other end of a connection: operations continue, and the next connection gets
            # their results.
            log.exception("connection.crashed", node_id=str(self.node_id))
        finally:
            self._dispatcher.detach(connection.outbox)
            if self._live is connection:
                self._live, self._online = None, trio.Event()

    def _connection(self, identity: Identity) -> Connection:
        return Connection(
            self.enrolment,
            identity,
            self._host,
            versions=self._versions,
            hello=self._hello,
            welcomed=self._welcomed,
            received=self._received,
        )

    def _hello(self, version: int) -> Hello:
        return Hello(
            protocol=version,
            agent_version=agent_version(),
            boot_id=self.boot_id,
            release=self._upgrader.release if self._upgrader is not None else None,
            unacknowledged=self._dispatcher.unacknowledged[:MANY],  # the controller asks for the others
        )

    def _welcomed(self, connection: Connection, welcome: Welcome) -> None:
        self._log.info(
            "connection.welcomed",
            heartbeat_seconds=welcome.heartbeat_seconds,
            protocol=welcome.protocol,
            controller=welcome.controller,
        )
        if connection.identity is not self.identity:
            self._adopt(connection)
        if self._upgrader is not None:
            self._upgrader.accepted()
        self._live, self.offline_reason = connection, None
        self._online.set()
        self._dispatcher.attach(connection.outbox)
        if self._interrupted:
            self._nursery.start_soon(self._dispatcher.give_up_unclaimed, self._interrupted)
            self._interrupted = ()

    def _received(self, frame: DownFrame) -> None:
        match frame:
            case Request():
                fault_point("agent.requested")
                self._dispatcher.request(frame)
            case Cancel():
                self._dispatcher.cancel(frame.id)
            case Acknowledge():
                fault_point("agent.acknowledged")
                self._dispatcher.acknowledge(frame.ids)
            case Renewed():
                self._renewed(frame)
            case Welcome():
                raise NotConnected("the controller welcomed twice")

    async def _watch_domains(self) -> None:
        async for change in self._host.domain_changes():
            self._dispatcher.domain_changed(change)

    async def _keep_certificate(self) -> None:
        """Request a new certificate when it is due, and repeat that until there is one. The wall clock is read at short
        intervals, so a clock that jumps delays the renewal by at most a minute."""
        while True:
            while not self._renew.is_set() and datetime.now(UTC) < self.identity.renew_at:
                with trio.move_on_after(_RENEWAL_POLL):
                    await self._renew.wait()
            await self._online.wait()
            if self._live is None:
                continue
            self._renew, self._adopted = trio.Event(), trio.Event()
            self._renewal_key = new_key()
            self._live.outbox.put(Renewal(csr=signing_request(self._renewal_key)))
            with trio.move_on_after(_RENEWAL_RETRY):
                await self._adopted.wait()
            # Wait before renewing again, because a wrong clock of this host could make every certificate look old.
            with trio.move_on_after(_RENEWAL_RETRY):
                await self._renew.wait()

    def _renewed(self, frame: Renewed) -> None:
        if self._renewal_key is None:
            raise NotConnected("the controller sent a certificate that was not asked for")
        key, self._renewal_key = self._renewal_key, None
        self.folder.write(self.folder.next_identity, private_pem(key) + frame.certificate.encode())
        fault_point("agent.renewal_written")
        identity = _load_unproven(self.folder)
        if identity is None:
            raise NotConnected("the controller sent a certificate that does not fit the key it was asked for")
        self._candidate = self._connection(identity)
        self._nursery.start_soon(self._prove, self._candidate)

    async def _prove(self, candidate: Connection) -> None:
        await self._serve(candidate)
        if self._candidate is candidate:
            self._candidate = None
            self._log.warning("certificate.not_proven", hint="The old certificate stays in use; it is tried again.")

    def _adopt(self, connection: Connection) -> None:
        self._candidate = self._unproven = None
        self.folder.next_identity.rename(self.folder.identity)
        fault_point("agent.renewal_adopted")
        self.identity = connection.identity
        self._adopted.set()
        self._log.info("certificate.renewed", not_after=self.identity.not_after.isoformat())


def _load_unproven(folder: AgentFolder) -> Identity | None:
    """The renewed identity with which no connection has been opened yet, if there is one. If its file cannot be used,
    the file is removed."""
    if not folder.next_identity.exists():
        return None
    try:
        return Identity.load(folder.next_identity, folder.authority)
    except (ssl.SSLError, ValueError) as error:
        log.error("certificate.unusable", error=str(error))
        folder.next_identity.unlink()
        return None


def _with_own_checks(result: OperationResult, *, controller_time: datetime, identity: Identity) -> OperationResult:
    """Add `time` and `certificate` to a preflight's checks."""
    if not isinstance(result, PreflightResult):
        return result
    now = datetime.now(UTC)
    own = (_time(now, controller_time), _certificate(now, identity))
    names = {check.name for check in own}
    return PreflightResult(checks=(*(check for check in result.checks if check.name not in names), *own))


def _time(now: datetime, controller_time: datetime) -> PreflightCheck:
    skew = now - controller_time
    seconds = skew.total_seconds()
    if abs(skew) >= _SKEW_TOO_MUCH:
        status, advice = CheckStatus.FAILED, " Set the clock: with a wrong one, certificates are rejected."
    elif abs(skew) >= _SKEW_NOTED:
        status, advice = CheckStatus.WARNING, " Check that a time service runs here."
    else:
        status, advice = CheckStatus.PASSED, ""
    return PreflightCheck(
        name="time", status=status, message=f"The clock is {seconds:+.1f} s from the controller's.{advice}"
    )


def _certificate(now: datetime, identity: Identity) -> PreflightCheck:
    left = identity.not_after - now
    if left <= timedelta(0):
        status, message = CheckStatus.FAILED, "The certificate has expired. Enrol this node again."
    elif now >= identity.renew_at + timedelta(days=1):
        status, message = (
            CheckStatus.WARNING,
            f"{left.days} days are left, and its renewal is overdue. See the agent's log.",
        )
    else:
        status, message = CheckStatus.PASSED, f"{left.days} days are left; it is renewed at two thirds of its lifetime."
    return PreflightCheck(name="certificate", status=status, message=message)
