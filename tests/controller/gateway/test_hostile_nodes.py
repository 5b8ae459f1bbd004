"""What a hostile node sends costs that node its connection, and nobody else anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, cast, get_args
from uuid import UUID, uuid4

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Event, Ping, Request, TextMessage

from svc_actors.admission import MOST_ARRIVING
from svc_actors.controller.gateway import connection
from svc_actors.controller.gateway.connection import AgentGone
from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.gateway.operations import NodeOperations
from svc_actors.controller.gateway.pacing import FrameCount, PacedStream, ReadQuota
from svc_nodeagent.config import Identity
from svc_nodeagent.connection import dial
from svc_nodeagent.protocol import (
    AGENT_PATH,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    SPOKEN,
    BackupResult,
    CachedImage,
    DomainResult,
    DomainState,
    Done,
    Hello,
    ImagePull,
    ImageResult,
    KeptMachine,
    MachineResult,
    NodeOperation,
    OperationId,
    OperationResult,
    Progress,
    Result,
    SnapshotResult,
    Succeeded,
    VmBackup,
    VmCreateFromCopy,
    VmDescribe,
    VmForceStop,
    VmSnapshotTake,
)
from svc_nodeagent.simulated import Behaviour
from tests.support.gateway import GatewayHarness, NodeOnDisk, create, image, until


@asynccontextmanager
async def hostile(node: NodeOnDisk) -> AsyncIterator[WebSocketConnection]:
    """A node that is who it says it is, and sends what it likes after its hello."""
    identity = Identity.load(node.folder.identity, node.folder.authority)
    stream = await dial(node.folder.read_enrolment(), identity.control)
    async with trio.open_nursery() as nursery:
        socket = await wrap_client_stream(nursery, stream, "localhost", AGENT_PATH, subprotocols=SPOKEN.names)
        hello = Hello(protocol=PROTOCOL_VERSION, agent_version="1", boot_id="hostile")
        await socket.send_message(hello.model_dump_json())
        await socket.get_message()
        yield socket
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        b"\xff\xfe",
        "[" * 100_000,
        '{"frame": "unheard of"}',
        '{"frame": "domain_changed", "vm_id": "x", "state": "running", "reason": "", "at": "2026-01-01T00:00:00Z"}',
        '{"frame": "hello", "protocol": 2, "agent_version": "1", "boot_id": "again"}',
        "x" * (MAX_FRAME_BYTES + 1),
    ],
    ids=["text", "bytes", "deep", "unknown", "wrong", "second hello", "oversized"],
)
async def test_a_frame_that_is_none_ends_its_connection_and_no_other(rig: GatewayHarness, message: str | bytes) -> None:
    honest, evil = await rig.new_node(), await rig.new_node()
    async with honest.running(), hostile(evil) as socket:
        await rig.until_online(honest.node_id, evil.node_id)

        await socket.send_message(message)

        await _closed(socket)
        await until(lambda: not rig.gateway.is_online(evil.node_id))
        await rig.gateway.perform(honest.node_id, OperationId("t:create"), create(), timeout=20)
    assert rig.heard.connected.count(honest.node_id) == 1


async def test_a_node_cannot_answer_what_another_was_asked(rig: GatewayHarness) -> None:
    honest, evil = await rig.new_node(), await rig.new_node()
    honest.host.behaviour = Behaviour(seconds=(0.5, 0.5))
    asked = OperationId("t:stop")
    async with honest.running(), hostile(evil) as socket, trio.open_nursery() as nursery:
        await rig.until_online(honest.node_id, evil.node_id)

        async def ask() -> None:
            with pytest.raises(OperationFailed, match="no machine"):
                await rig.gateway.perform(honest.node_id, asked, VmForceStop(vm_id=uuid4()), timeout=20)

        nursery.start_soon(ask)
        await until(lambda: asked in rig.gateway._nodes[honest.node_id].operations)

        for _ in range(50):
            await socket.send_message(Result(id=asked, outcome=Succeeded(result=Done())).model_dump_json())
        await until(lambda: rig.heard.unauthorised)

    assert {who for who, _ in rig.heard.unauthorised} == {evil.node_id}
    assert len(rig.heard.unauthorised) <= 12, "a report says as much as a thousand"


async def _closed(socket: WebSocketConnection) -> None:
    with trio.fail_after(60):
        try:
            while True:
                await socket.get_message()
        except ConnectionClosed:
            return


def bare(model: Any, **given: object) -> Any:
    """A frame of which nothing matters but this."""
    return model.model_construct(**given)


async def answered(operation: NodeOperation, result: OperationResult) -> OperationResult:
    """What a node's answer makes of an operation."""
    operations, asked = NodeOperations(), OperationId("t:asked")
    given: list[OperationResult | OperationFailed] = []

    async def ask() -> None:
        try:
            given.append(await operations.perform(asked, operation, timeout=20, on_progress=None))
        except OperationFailed as failure:
            given.append(failure)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        operations.ended(bare(Result, id=asked, outcome=bare(Succeeded, result=result), calls=()))
    if isinstance(given[0], OperationFailed):
        raise given[0]
    return given[0]


@pytest.mark.parametrize("operation", get_args(get_args(NodeOperation)[0]), ids=lambda each: each.__name__)
async def test_an_answer_of_a_kind_that_the_operation_does_not_have_is_a_failure(operation: Any) -> None:
    asked = bare(operation, vm_id=UUID(int=1))
    for result in get_args(get_args(OperationResult)[0]):
        kind, answer = result.model_fields["kind"].default, bare(result, forgotten=())
        if kind == asked.facts.answer:
            assert await answered(asked, answer) is answer
            continue
        with pytest.raises(OperationFailed, match=f"answered {asked.op} with {kind}; its answer was refused"):
            await answered(asked, answer)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (
            VmDescribe(vm_id=UUID(int=1)),
            bare(MachineResult, machine=bare(KeptMachine, vm_id=UUID(int=2))),
        ),
        (
            VmSnapshotTake(vm_id=UUID(int=1), snapshot_id=UUID(int=1)),
            SnapshotResult(vm_id=UUID(int=1), snapshot_id=UUID(int=2), frozen=False),
        ),
        (
            VmBackup(vm_id=UUID(int=1), copy_id=UUID(int=1), password="x"),
            bare(BackupResult, vm_id=UUID(int=1), copy_id=UUID(int=2)),
        ),
        (
            ImagePull(image=image()),
            bare(ImageResult, image=bare(CachedImage, image_id=UUID(int=8))),
        ),
        (
            bare(VmCreateFromCopy, machine=create(UUID(int=1)).machine),
            DomainResult(vm_id=UUID(int=2), state=DomainState.RUNNING),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_an_answer_is_about_what_was_asked_of(asked: NodeOperation, answer: OperationResult) -> None:
    with pytest.raises(OperationFailed, match=r"was asked about .* and answered for"):
        await answered(asked, answer)


async def test_a_backup_forgets_no_copy_that_it_was_not_asked_to_forget() -> None:
    vm_id, asked_for, other = UUID(int=1), UUID(int=2), UUID(int=3)
    asked = VmBackup(vm_id=vm_id, copy_id=UUID(int=9), password="x", forget=(asked_for,))
    answer = bare(BackupResult, vm_id=vm_id, copy_id=asked.copy_id, forgotten=(asked_for, other))
    with pytest.raises(OperationFailed, match="1 copies that it was not asked to remove"):
        await answered(asked, answer)
    allowed = answer.model_copy(update={"forgotten": (asked_for,)})
    assert await answered(asked, allowed) is allowed


class _Frames:
    """A connection on which a node sends the same frame without end, as fast as it is read."""

    def __init__(self, frame: str) -> None:
        self._frame = frame

    async def get_message(self) -> str:
        await trio.lowlevel.checkpoint()
        return self._frame

    async def aclose(self, *_: object) -> None: ...


@pytest.mark.parametrize(("cost", "most"), [(0.0, None), (0.1, 11), (2.0, 1)])
async def test_frames_wait_once_their_node_has_used_its_share_of_the_processor_up(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock, cost: float, most: int | None
) -> None:
    clock = count(0.0, cost / 2 if cost else 0.0)
    monkeypatch.setattr(connection, "thread_time", lambda: next(clock) * 2)
    progress = Progress(id=OperationId("x"), percent=1, message="on and on").model_dump_json()
    hello, heard, share = Hello(protocol=5, agent_version="1", boot_id="a"), 0, ReadQuota()

    def received(_: object) -> None:
        nonlocal heard
        heard += 1
        if heard >= 1_000:
            raise AgentGone("enough")

    # Twice: a new connection brings no new share.
    for _ in range(2):
        socket = cast(WebSocketConnection, _Frames(progress))
        with trio.move_on_after(3.0):
            agent = connection.AgentConnection(UUID(int=1), "serial", socket, hello)
            await agent.run(received, heartbeat_seconds=10.0, share=share)
    assert heard == 1_001 if most is None else heard <= most


EMPTY_FRAGMENT = b"\x00\x80abcd"


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000, 10**6])
def test_frames_are_counted_however_the_stream_is_cut(piece: int) -> None:
    client = WSConnection(ConnectionType.CLIENT)
    sent = client.send(Request(host="localhost", target=AGENT_PATH))
    server = WSConnection(ConnectionType.SERVER)
    server.receive_data(sent)
    client.receive_data(server.send(_accepted(server)))
    list(client.events())
    for event in (
        *(TextMessage(data="x" * length) for length in (0, 1, 125, 126, 65_535, 65_536, 200_000)),
        TextMessage(data="a", message_finished=False),
        Ping(payload=b"ping"),
        TextMessage(data="b"),
    ):
        sent += client.send(event)
    sent += EMPTY_FRAGMENT * 5
    counter = FrameCount()
    assert sum(counter.count(sent[at : at + piece]) for at in range(0, len(sent), piece)) == 15


RFC_6455_EXAMPLES = (
    ("unmasked text", "8105 48656c6c6f", 1),
    ("masked text", "8185 37fa213d 7f9f4d5158", 1),
    ("unmasked text in two fragments", "0103 48656c 8002 6c6f", 2),
    ("ping, and its masked pong", "8905 48656c6c6f 8a85 37fa213d 7f9f4d5158", 2),
    ("256 bytes", "827e 0100" + "00" * 256, 1),
    ("64 KiB", "827f 0000000000010000" + "00" * 65536, 1),
)
"""Section 5.7, byte for byte, but for what the last two carry, which it leaves open."""


@pytest.mark.parametrize(("what", "frames", "number"), RFC_6455_EXAMPLES)
def test_the_examples_of_the_rfc_are_counted(what: str, frames: str, number: int) -> None:
    counter = FrameCount()
    counter.count(b"GET / HTTP/1.1\r\n\r\n")

    assert counter.count(bytes.fromhex(frames)) == number
    assert counter.count(bytes.fromhex("8900")) == 1, "what follows begins at its own header"


def _accepted(server: WSConnection) -> Event:
    list(server.events())
    return AcceptConnection()


async def test_fragments_and_pings_without_end_are_read_as_slowly_as_they_cost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """No message ever comes of them, so nobody would measure what they cost."""
    ours, theirs = trio.testing.lockstep_stream_pair()
    paced, came = PacedStream(ours, ReadQuota()), 0

    async def send() -> None:
        await theirs.send_all(b"GET / HTTP/1.1\r\n\r\n")
        while True:
            await theirs.send_all(EMPTY_FRAGMENT * 1000)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        with trio.move_on_after(60):
            while True:
                came += len(await paced.receive_some())
        nursery.cancel_scope.cancel()
    # Half a second at once and a tenth of a minute, at 25 microseconds a frame.
    assert came <= 6.5 / 25e-6 * len(EMPTY_FRAGMENT) + 2 * 16 * 1024


async def test_a_hello_is_paid_for_by_its_node(rig: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = count(0.0, 20.0)
    monkeypatch.setattr(connection, "thread_time", lambda: next(clock))
    evil = await rig.new_node()
    async with hostile(evil):
        await rig.until_online(evil.node_id)
        assert rig.gateway._nodes[evil.node_id].share.pause() > 60.0


async def test_a_node_that_opens_connections_and_says_no_hello_keeps_few_of_them(
    rig: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HELLO_SECONDS", 600.0)
    honest, evil = await rig.new_node(), await rig.new_node()
    identity = Identity.load(evil.folder.identity, evil.folder.authority)
    opened = [await dial(evil.folder.read_enrolment(), identity.control) for _ in range(MOST_ARRIVING + 8)]
    for stream in opened[:8]:
        with trio.fail_after(60):
            assert await stream.receive_some() == b""
    async with honest.running():
        await rig.until_online(honest.node_id)
    assert len(rig.gateway._arriving) <= MOST_ARRIVING
    for stream in opened:
        await trio.aclose_forcefully(stream)
