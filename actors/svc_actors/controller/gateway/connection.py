"""One agent's control connection, from its hello to its end.

Invariants:

- frames to the node go through a bounded queue that never makes the sender wait: a node that does not read is dropped;
- silence of three heartbeats ends the connection, whatever TCP believes;
- a frame that is not understood ends the connection, and the log says what was wrong, without the frame's content;
- a node's frames delay only the node itself: once it has used its share of the processor, its frames are read later;
- the version is agreed on before the hello, and an agent that speaks no version known here gets an answer with the
  versions of both.

Rejected: counting a node's frames, or their bytes, instead of the processor time that they take. A limit on frames per
second would slow the thousand parts of a restored file; one on bytes per second would let many small frames through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from time import thread_time
from typing import Final
from uuid import UUID

import structlog
import trio
from pydantic import ValidationError
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream

from svc_actors.controller.gateway.pacing import PacedStream, ReadQuota
from svc_nodeagent.protocol import (
    AGENT_PATH,
    MAX_FRAME_BYTES,
    SPOKEN,
    UP,
    DownFrame,
    Hello,
    UpFrame,
    Versions,
    Welcome,
    encode,
    name_of,
    offered_by,
)

HEARTBEATS_UNTIL_DEAD: Final = 3
HELLO_SECONDS: Final = 10.0
_QUEUE: Final = 1024
_FRAMES_WAITING: Final = 4
"""Frames of one connection that were read and not yet handled. Together with the frame being read these are 20 MiB, the
most memory that one node can occupy here."""
_CLOSING_SECONDS: Final = 0.5
_CLOSE_POLICY: Final = 1008  # RFC 6455, 7.4.1: policy violation.
_UPGRADE_REQUIRED: Final = 426
_MOST_AGENT_NAME: Final = 100
log = structlog.get_logger(__name__)


class AgentGone(Exception):  # noqa: N818 - named for what it says
    """The connection has ended; the text says why, for the log."""


class AgentRefused(AgentGone):
    """The agent speaks no version of the protocol that the controller speaks; the text is for the node's
    administrator."""


class AgentConnection:
    """`hello.protocol` is the version agreed on."""

    def __init__(self, node_id: UUID, serial: str, socket: WebSocketConnection, hello: Hello) -> None:
        self.node_id = node_id
        self.serial = serial
        self.hello = hello
        self.ended = trio.Event()
        self.renewing = False
        self._socket = socket
        self._scope = trio.CancelScope()
        self._reason = "ended"
        self._sending, self._to_send = trio.open_memory_channel[DownFrame](_QUEUE)

    def send(self, frame: DownFrame) -> None:
        """Queue a frame. If the queue is full, the connection is dropped. Nothing is lost: on the next connection
        `NodeOperations` sends again what has no answer yet."""
        try:
            self._sending.send_nowait(frame)
        except trio.WouldBlock:
            self.drop("the node does not read what it is sent")

    def drop(self, reason: str) -> None:
        if not self._scope.cancel_called:
            self._reason = reason
            self._scope.cancel()

    async def run(self, received: Callable[[UpFrame], None], *, heartbeat_seconds: float, share: ReadQuota) -> str:
        """Carry frames until the end; returns why it ended. `received` must not block."""
        try:
            with self._scope:
                # When the connection ends, the reader raises, which cancels the writer; an error of the writer cancels
                # the reader.
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, heartbeat_seconds * HEARTBEATS_UNTIL_DEAD)
                    await self._read(received, heartbeat_seconds * HEARTBEATS_UNTIL_DEAD, share)
        except* AgentGone as gone:
            self._reason = str(_first(gone))
        except* ConnectionClosed:
            self._reason = "closed by the node"
        finally:
            with trio.move_on_after(_CLOSING_SECONDS, shield=True):
                await self._socket.aclose(_CLOSE_POLICY, self._reason[:120])
            self.ended.set()
        return self._reason

    async def _read(self, received: Callable[[UpFrame], None], silence: float, share: ReadQuota) -> None:
        while True:
            # Frames that are not read stay in the network: only a few are read ahead, and TCP makes the node wait.
            if (pause := share.pause()) > 0:
                await trio.sleep(pause)
            with trio.move_on_after(silence) as waiting:
                message = await self._socket.get_message()
            if waiting.cancelled_caught:
                raise AgentGone(f"nothing was heard for {silence:g} seconds")
            # Measured in processor time of this thread, not by the clock: time in which other tasks run is not charged
            # to the node.
            began = thread_time()
            received(_parse(message, self.node_id))
            share.spend(thread_time() - began)

    async def _write(self, patience: float) -> None:
        async for frame in self._to_send:
            with trio.move_on_after(patience) as sending:
                await self._socket.send_message(encode(frame, self.hello.protocol))
            if sending.cancelled_caught:
                raise AgentGone(f"the node accepted no data for {patience:g} seconds")


async def accept_agent(
    nursery: trio.Nursery,
    stream: trio.SSLStream[trio.SocketStream],
    node_id: UUID,
    serial: str,
    *,
    share: ReadQuota,
    versions: Versions = SPOKEN,
    release: str,
) -> AgentConnection:
    """Carry the connection up to the agent's hello. Its cost is charged to `share`, like that of all later frames.
    Raises `AgentGone`."""
    with trio.move_on_after(HELLO_SECONDS):
        request = await wrap_server_stream(
            nursery,
            PacedStream(stream, share),
            message_queue_size=_FRAMES_WAITING,
            max_message_size=MAX_FRAME_BYTES,
            receive_buffer_size=None,
        )
        # These checks come before the WebSocket upgrade is accepted, so the refusal is plain HTTP, which an agent of
        # any release can read.
        if request.path != AGENT_PATH:
            await request.reject(404)
            raise AgentGone(f"it requested {request.path!r} instead of {AGENT_PATH}")
        offered = offered_by(request.proposed_subprotocols)
        version = versions.agree(offered)
        if version is None:
            refusal = _refusal(request, offered, versions, release)
            await request.reject(_UPGRADE_REQUIRED, body=refusal.encode())
            raise AgentRefused(refusal)
        # An agent of a release from before protocol versions had names proposes no subprotocol, and must get none back
        # (RFC 6455, 4.1).
        name = name_of(version)
        socket = await request.accept(subprotocol=name if name in request.proposed_subprotocols else None)
        try:
            message = await socket.get_message()
        except ConnectionClosed:
            raise AgentGone("it closed before its hello") from None
        began = thread_time()
        frame = _parse(message, node_id)
        share.spend(thread_time() - began)
        if not isinstance(frame, Hello):
            raise AgentGone(f"its first frame was {frame.frame!r} instead of a hello")
        # The hello repeats the version agreed on in the handshake. An agent that names two different versions is
        # refused, not interpreted.
        if frame.protocol != version:
            refusal = f"The agent speaks protocol {frame.protocol} where {version} was agreed on."
            await socket.aclose(_CLOSE_POLICY, refusal)
            raise AgentRefused(refusal)
        return AgentConnection(node_id, serial, socket, frame)
    raise AgentGone(f"no hello within {HELLO_SECONDS:g} seconds")


def _refusal(request: WebSocketRequest, offered: Sequence[int], versions: Versions, release: str) -> str:
    """A text with the versions of both ends, and which end to upgrade."""
    agent = next((value for name, value in request.headers if name.lower() == b"user-agent"), b"svc-nodeagent")
    peer = Versions(offered[0], offered[-1])
    if peer.newest < versions.oldest:
        remedy = "Install the agent of this release on the node: docs/upgrades.md says how."
    else:
        remedy = "Upgrade the controller, or install the agent of its release on the node: docs/upgrades.md says how."
    return (
        f"The agent ({agent[:_MOST_AGENT_NAME].decode(errors='replace')}) speaks protocol {peer}, this controller"
        f" (release {release}) speaks {versions}. {remedy}"
    )


def welcome(connection: AgentConnection, heartbeat_seconds: float, release: str) -> Welcome:
    return Welcome(
        protocol=connection.hello.protocol,
        node_id=connection.node_id,
        heartbeat_seconds=heartbeat_seconds,
        controller_time=datetime.now(UTC),
        controller=release,
    )


def _parse(message: str | bytes, node_id: UUID) -> UpFrame:
    try:
        return UP.validate_json(message)
    except ValidationError as error:
        # Logged are the places and kinds of the errors, never the input: a frame may contain secrets.
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False, include_context=False)
        ]
        log.warning("gateway.frame_rejected", node_id=str(node_id), problems=problems[:5])
        raise AgentGone("it sent a frame that is not understood; are the versions alike?") from None


def _first(group: BaseExceptionGroup[AgentGone]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
