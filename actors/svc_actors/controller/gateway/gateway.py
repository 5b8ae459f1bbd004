"""The node gateway: agents connect to it, and every question and order to a node goes through it.

Invariants:

- a peer's certificate says which node it is (`handshakes`);
- a connection that has not shown a certificate yet is closed when another one needs its place, so silent connections
  keep no node out;
- a node has one live connection: a new one replaces the old. The number of its connections that have not sent a hello
  is limited, and so is that of its streams; past these limits the node's own oldest idle one is closed;
- a node that hangs delays no other: each has its own operations, limits, queue and deadlines, and hooks do not block.

Rejected:
- connections from the gateway to the nodes. Each node would need an open port, and a node behind NAT could not join;
- one limit for all connections. Silent connections from anywhere (2,050 of them, once) kept every agent out.

A new connection replaces the old one, because after a cut of the network the controller would consider the dead
connection alive for three heartbeats, and would refuse the agent for that long.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Final
from uuid import UUID, uuid4

import structlog
import trio
from trio_websocket import ConnectionClosed

from svc_actors.admission import of_arriving_nodes, of_unauthenticated
from svc_actors.allowance import Allowance
from svc_actors.controller.gateway.authority import Authority, Serial, ServerCertificate
from svc_actors.controller.gateway.connection import (
    AgentConnection,
    AgentGone,
    AgentRefused,
    accept_agent,
    welcome,
)
from svc_actors.controller.gateway.handshakes import Handshakes
from svc_actors.controller.gateway.operations import (
    NodeLost,
    NodeOperations,
    NodeUnavailable,
    OnProgress,
    OperationFailed,
)
from svc_actors.controller.gateway.pacing import ReadQuota
from svc_actors.controller.gateway.streams import FindFile, NodeStreams
from svc_actors.tracing import Kind, in_span
from svc_common.errors import ServiceError, not_found, not_ready, unavailable
from svc_common.listening import hosts_of
from svc_nodeagent.protocol import (
    SPOKEN,
    STREAM_ALPN,
    DomainChanged,
    FailureCode,
    Heartbeat,
    Hello,
    NodeOperation,
    OperationId,
    OperationResult,
    Progress,
    Renewal,
    Renewed,
    Result,
    UpFrame,
    Versions,
)

__all__ = ["Gateway", "GatewayHooks", "NodeLost", "NodeUnavailable", "OperationFailed"]

_SWEEP_SECONDS: Final = 15.0
# Connections that wait to be accepted: after a restart a thousand nodes reconnect at the same moment.
_BACKLOG: Final = 2_048
_REPORTS_A_MINUTE: Final = 10.0
"""How many reports of a node about operations or machines of other nodes are recorded. Each report is an audit row, and
one says as much as a thousand."""
log = structlog.get_logger(__name__)


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True)
class GatewayHooks:
    """Functions that the gateway calls about nodes, in order for each node. They run within the gateway's own work, so
    they must neither block nor raise."""

    connected: Callable[[UUID, Hello], None] = _nothing
    disconnected: Callable[[UUID], None] = _nothing
    domain_changed: Callable[[UUID, DomainChanged], None] = _nothing
    heartbeat: Callable[[UUID, Heartbeat], None] = _nothing
    refused: Callable[[UUID, str], None] = _nothing
    """Called when a node's agent is of a release whose protocol the controller does not speak; the text tells its
    administrator so."""
    unauthorised_report: Callable[[UUID, str], None] = _nothing
    """Called when a node reported the outcome of an operation that is not its own; the report was refused."""


@dataclass
class _Node:
    operations: NodeOperations = field(default_factory=NodeOperations)
    connection: AgentConnection | None = None
    heartbeat: Heartbeat | None = None
    share: ReadQuota = field(default_factory=ReadQuota)
    reports: Allowance = field(default_factory=lambda: Allowance(per_minute=_REPORTS_A_MINUTE))


class Gateway:
    """One per process. `certificate` returns the server's certificate, and is called again twice a day. `release` is
    the controller's own."""

    def __init__(
        self,
        authority: Authority,
        certificate: Callable[[], ServerCertificate],
        *,
        bind_host: str,
        port: int,
        heartbeat_seconds: float = 5.0,
        hooks: GatewayHooks | None = None,
        find_file: FindFile = lambda _: None,
        versions: Versions = SPOKEN,
        release: str | None = None,
    ) -> None:
        self.port = port
        self._authority = authority
        self._handshakes = Handshakes(authority, certificate)
        self._bind_host = bind_host
        self._heartbeat_seconds = heartbeat_seconds
        self._hooks = hooks or GatewayHooks()
        self._versions = versions
        self._release = release or metadata.version("svc")
        self._streams = NodeStreams(authority.derive("stream tokens"), find_file)
        self._nodes: dict[UUID, _Node] = {}
        self._arrivals: dict[UUID, trio.Event] = {}
        """Set when an awaited node connects, or is declared lost."""
        self._lost: set[UUID] = set()
        self._unproven = of_unauthenticated()
        self._arriving = of_arriving_nodes()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve agents until cancelled. Afterwards `port` is the port that is listened on, also if it was 0."""
        context = self._handshakes.context()
        listeners = list[trio.SocketListener]()
        # If the port is 0, the first listener gets a free port from the system, and the other listeners take the same
        # port.
        for host in hosts_of(self._bind_host):
            listeners += await trio.open_tcp_listeners(self.port, host=host, backlog=_BACKLOG)
            self.port = listeners[0].socket.getsockname()[1]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._handshakes.renew_own_certificate, context)
            task_status.started()
            await trio.serve_listeners(partial(self._accept, context), listeners)

    @property
    def refused(self) -> int:
        """Connections refused since the start, for the metrics."""
        return self._handshakes.refused

    def is_online(self, node_id: UUID) -> bool:
        node = self._nodes.get(node_id)
        return node is not None and node.connection is not None

    async def until_online(self, node_id: UUID) -> None:
        """Wait until the node is connected, however long that takes. Raises `NodeLost`."""
        await trio.lowlevel.checkpoint()
        # A loop, because the event says only that the state has changed: the node may have disconnected again before
        # this task ran.
        while not self.is_online(node_id):
            if node_id in self._lost:
                raise NodeLost
            await self._arrivals.setdefault(node_id, trio.Event()).wait()

    def online(self) -> list[UUID]:
        return [node_id for node_id, node in self._nodes.items() if node.connection is not None]

    def heartbeat(self, node_id: UUID) -> Heartbeat | None:
        """The last heartbeat of the live connection, with the node's free resources."""
        node = self._nodes.get(node_id)
        return node.heartbeat if node is not None and node.connection is not None else None

    async def perform(
        self,
        node_id: UUID,
        operation_id: OperationId,
        operation: NodeOperation,
        *,
        timeout: float,
        on_progress: OnProgress | None = None,
    ) -> OperationResult:
        """Have a node execute an operation, and return its result. On every reconnect it is sent again with the same
        id, so it is done once.

        Raises `OperationFailed` with the host's reason. Raises `NodeUnavailable` if `timeout` seconds have passed
        without an outcome, or if no outcome can come (`NodeLost`). Cancelling the caller does not cancel the operation.
        `acknowledge` the operation once its outcome is stored.
        """
        told = {"svc.node.id": str(node_id), "svc.operation.id": operation_id}
        with in_span(f"node {operation.op}", Kind.CLIENT, told):
            try:
                if node_id in self._lost:
                    raise NodeLost
                return await self._node(node_id).operations.perform(
                    operation_id, operation, timeout=timeout, on_progress=on_progress
                )
            except OperationFailed:
                # The operation was failed by `mark_lost`, which fails all operations of the node. This failure comes
                # from the controller, not from the host, so a task must not take it for a refusal by the host.
                if node_id in self._lost:
                    raise NodeLost from None
                raise

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult:
        """Ask a node that is online a question that changes nothing, and forget the answer. Raises `NodeUnavailable` at
        once if the node is offline."""
        if not self.is_online(node_id):
            raise NodeUnavailable("The node is offline.", hint="Try again once it is back.")
        operation_id = OperationId(f"query:{uuid4()}")
        try:
            return await self.perform(node_id, operation_id, operation, timeout=timeout)
        finally:
            self._node(node_id).operations.acknowledge(operation_id)

    async def acknowledge(self, node_id: UUID, operation_id: OperationId) -> None:
        """Tell the node that the outcome is stored and may be forgotten. It does no harm if this is lost or
        repeated."""
        await trio.lowlevel.checkpoint()
        self._node(node_id).operations.acknowledge(operation_id)

    async def cancel(self, node_id: UUID, operation_id: OperationId) -> None:
        """Ask the node to give up an operation; the outcome of the operation arrives as usual. Safe to repeat."""
        await trio.lowlevel.checkpoint()
        self._node(node_id).operations.cancel(operation_id)

    async def open_stream(
        self, node_id: UUID, operation: Callable[[str], NodeOperation], *, timeout: float
    ) -> trio.abc.Stream:
        """Have the node open a stream to the gateway and join it to the target that `operation(token)` names. The
        caller closes it. Raises `unavailable` (offline, or too slow), `not_found` and `not_ready` (the guest is not
        running).
        """
        with trio.move_on_after(timeout):
            async with self._streams.expect(node_id) as (token, arrival):
                try:
                    await self.query(node_id, operation(token), timeout=timeout)
                except OperationFailed as failure:
                    raise _refusal(failure) from failure
                return await arrival().take()
        raise unavailable(f"The node did not open the stream within {timeout:.0f} seconds.", hint="Try again.")

    def joined_streams(self, one: UUID, other: UUID) -> AbstractAsyncContextManager[tuple[str, str]]:
        """A token for each of two nodes, whose streams are joined until the block ends."""
        return self._streams.joined(one, other)

    def offer_file(self, node_id: UUID, file: str) -> str:
        """A token for `ControllerSource`. With it this node may read, for a day, the file that `find_file` finds by
        this key."""
        return self._streams.offer_file(node_id, file)

    def mark_lost(self, node_id: UUID) -> None:
        """The node was declared lost: every wait for it, and every later call, raises `NodeLost`."""
        # The node is put into `_lost` before `drop` fails its operations: callers that wait in `perform` find it there
        # and raise `NodeLost` instead of the failure.
        self._lost.add(node_id)
        self.drop(node_id, "The node was declared lost.")
        if (arrival := self._arrivals.pop(node_id, None)) is not None:
            arrival.set()

    def drop(self, node_id: UUID, reason: str) -> None:
        """The node will not come back: end its connection now, and its operations."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            node.operations.fail_all(reason)
            if node.connection is not None:
                node.connection.drop(reason)

    def _node(self, node_id: UUID) -> _Node:
        return self._nodes.setdefault(node_id, _Node())

    async def _accept(self, context: ssl.SSLContext, tcp: trio.SocketStream) -> None:
        # https_compatible: an agent that dies closes TCP without TLS's close_notify alert; trio would raise an error
        # otherwise.
        tls = trio.SSLStream(tcp, context, server_side=True, https_compatible=True)
        # `_unproven` cancels this scope when this connection is the oldest silent one and another connection needs its
        # place.
        waiting = trio.CancelScope()
        try:
            seat = self._unproven.enter(tcp.socket.getpeername()[0], waiting.cancel)
            if seat is None:
                return
            try:
                with waiting:
                    proven = await self._handshakes.prove(tls)
            finally:
                seat.leave()
            if waiting.cancelled_caught:
                return  # This connection was silent for longer than any other, and was closed to make room.
            if proven is None:
                await self._handshakes.refuse()
            elif tls.selected_alpn_protocol() == STREAM_ALPN:
                await self._streams.accept(proven[0], tls)
            else:
                await self._serve(*proven, tls)
        except ServiceError as error:
            log.warning("gateway.connection_not_served", error=error.message)
        except OSError as error:
            log.debug("gateway.connection_closed_early", reason=str(error))
        except Exception:
            # A defect in handling one connection must not end the other connections. It ends only this one, and the
            # node reconnects.
            log.exception("gateway.connection_crashed")
        finally:
            await trio.aclose_forcefully(tls)

    async def _serve(self, node_id: UUID, serial: Serial, tls: trio.SSLStream[trio.SocketStream]) -> None:
        async with trio.open_nursery() as nursery:
            try:
                connection = await self._greet(nursery, node_id, serial, tls)
            except AgentRefused as refused:
                log.warning("gateway.agent_refused", node_id=str(node_id), reason=str(refused))
                self._hooks.refused(node_id, str(refused))
                nursery.cancel_scope.cancel()
                return
            except (AgentGone, ConnectionClosed) as gone:
                log.warning("gateway.hello_missing", node_id=str(node_id), reason=str(gone))
                nursery.cancel_scope.cancel()
                return
            # The certificate is checked again: the node may have been deleted, or its certificate revoked, during the
            # greeting. `drop` ends only connections in `_nodes`; this one is not there yet, so without the check it
            # would stay open.
            if await self._authority.identify(serial) != node_id:
                nursery.cancel_scope.cancel()
                return
            await self._carry(connection, nursery)
            nursery.cancel_scope.cancel()

    async def _greet(
        self, nursery: trio.Nursery, node_id: UUID, serial: Serial, tls: trio.SSLStream[trio.SocketStream]
    ) -> AgentConnection:
        # As in `_accept`, but among the connections of this node: the oldest silent one is cancelled for a newer one.
        # Each may hold an incomplete frame of up to 4 MiB.
        waiting = trio.CancelScope()
        seat = self._arriving.enter(str(node_id), waiting.cancel)
        if seat is not None:
            try:
                with waiting:
                    return await accept_agent(
                        nursery,
                        tls,
                        node_id,
                        serial,
                        share=self._node(node_id).share,
                        versions=self._versions,
                        release=self._release,
                    )
            finally:
                seat.leave()
        raise AgentGone("it has opened others since, and said nothing on this one")

    async def _carry(self, connection: AgentConnection, nursery: trio.Nursery) -> None:
        # There is no checkpoint from here to `connection.run`, so two connections of the same node run this part one
        # after the other, never interleaved.
        node_id, node = connection.node_id, self._node(connection.node_id)
        if node.connection is not None:
            # The old connection runs its `finally` block only after this one has replaced it. The comparisons in that
            # block keep it from detaching the new connection.
            node.connection.drop("replaced by a newer connection of this node")
        # The old connection's heartbeat is discarded: the node has not reported its free resources on this connection
        # yet.
        node.connection, node.heartbeat = connection, None
        # The welcome is queued before `attach` queues operations: agents expect it first.
        connection.send(welcome(connection, self._heartbeat_seconds, self._release))
        send = connection.send
        node.operations.attach(send, connection.hello)
        self._hooks.connected(node_id, connection.hello)
        if (arrival := self._arrivals.pop(node_id, None)) is not None:
            arrival.set()
        log.info("gateway.connected", node_id=str(node_id), unacknowledged=len(connection.hello.unacknowledged))

        def received(frame: UpFrame) -> None:
            # False for a frame of the old connection that is handled after a newer one has replaced it: the old one is
            # cancelled only at its next checkpoint. A result in such a frame is not lost: the agent repeats on the new
            # connection every result that was not acknowledged.
            if node.connection is connection:
                self._received(connection, node, frame, nursery)

        reason = "cancelled"
        try:
            reason = await connection.run(received, heartbeat_seconds=self._heartbeat_seconds, share=node.share)
        finally:
            # If a newer connection has replaced this one, nothing here changes the node: `detach` compares `send` with
            # that of the newer connection, and the hook is not called.
            node.operations.detach(send)
            if node.connection is connection:
                node.connection = None
                # A deleted or lost node was removed from `_nodes` by `drop`, so there is no record to mark as offline.
                if node_id in self._nodes:
                    self._hooks.disconnected(node_id)
            log.info("gateway.disconnected", node_id=str(node_id), reason=reason)

    def _received(self, connection: AgentConnection, node: _Node, frame: UpFrame, nursery: trio.Nursery) -> None:
        node_id = connection.node_id
        match frame:
            case Heartbeat():
                # The time is the controller's, since the node's clock may be wrong.
                node.heartbeat = frame.model_copy(update={"at": datetime.now(UTC)})
                self._hooks.heartbeat(node_id, frame)
            case Progress():
                node.operations.progressed(frame)
            case Result():
                self._ended(node_id, node, frame)
            case DomainChanged():
                self._hooks.domain_changed(node_id, frame)
            # One renewal at a time: each costs a signature and a row.
            case Renewal() if not connection.renewing:
                connection.renewing = True
                nursery.start_soon(self._renew, connection, frame)
            case Renewal():
                log.warning("gateway.renewal_repeated", node_id=str(node_id))
            case Hello():
                connection.drop("it said hello twice")

    def _ended(self, node_id: UUID, node: _Node, result: Result) -> None:
        # An id that this node was not asked since the controller started. Either the operation is from before a restart
        # of the controller and its outcome from the node's journal: `ended` below takes that in. Or the id is of an
        # operation that another node was asked: ids of tasks are random, so this is an attack and not a mistake.
        if result.id not in node.operations:
            for other_id, other in self._nodes.items():
                if other is not node and result.id in other.operations:
                    self._report_unauthorised(
                        node_id, node, f"answered operation {result.id}, which was asked of node {other_id}"
                    )
                    return
        lie = node.operations.ended(result)
        if lie is not None:
            self._report_unauthorised(node_id, node, f"operation {result.id}: {lie}")

    def _report_unauthorised(self, node_id: UUID, node: _Node, what: str) -> None:
        if not node.reports.spend():
            return
        log.error("gateway.unauthorised_report", node_id=str(node_id), what=what)
        self._hooks.unauthorised_report(node_id, what)

    async def _renew(self, connection: AgentConnection, renewal: Renewal) -> None:
        try:
            signed = await self._authority.renew(connection.node_id, connection.serial, renewal.csr)
        except ServiceError as error:
            # The agent will ask again.
            log.warning("gateway.certificate_not_renewed", node_id=str(connection.node_id), error=error.message)
            return
        finally:
            connection.renewing = False
        connection.send(Renewed(certificate=signed.pem, authority=self._authority.certificate_pem))

    async def _sweep(self) -> None:
        while True:
            await trio.sleep(_SWEEP_SECONDS)
            for node_id, node in list(self._nodes.items()):
                node.operations.sweep()
                if node.connection is None and node.operations.idle:
                    del self._nodes[node_id]


def _refusal(failure: OperationFailed) -> ServiceError:
    match failure.code:
        case FailureCode.NOT_FOUND:
            return not_found(failure.message, hint=failure.hint)
        case FailureCode.CONFLICT | FailureCode.INVALID | FailureCode.UNSUPPORTED:
            return not_ready(failure.message, hint=failure.hint)
        case _:
            return unavailable(failure.message, hint=failure.hint)
