"""Consoles and files over streams of their own."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from uuid import uuid4

import pytest
import trio

from svc_actors.admission import Admission
from svc_actors.controller.gateway import streams
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.config import Identity
from svc_nodeagent.connection import dial, dial_stream
from svc_nodeagent.protocol import ConsoleKind, ConsoleOpen, NodeOperation, OperationId
from tests.support.gateway import GatewayHarness, NodeOnDisk, create, until


async def _machine(rig: GatewayHarness, node: NodeOnDisk, *, start: bool = True) -> ConsoleOpen:
    operation = create(start=start)
    await rig.gateway.perform(node.node_id, OperationId(f"t:{uuid4()}"), operation, timeout=20)
    return ConsoleOpen(vm_id=operation.machine.vm_id, kind=ConsoleKind.SERIAL, stream_token="")


async def test_a_serial_console_carries_bytes_both_ways(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running():
        wanted = await _machine(rig, node)
        stream = await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=10)
        async with stream:
            assert await _read(stream, len(b"\r\nweb login: ")) == b"\r\nweb login: "
            await stream.send_all(b"root\r")
            assert await _read(stream, 6) == b"root\r\n"


async def test_a_screen_speaks_rfb_and_shows_a_frame(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running():
        wanted = (await _machine(rig, node)).model_copy(update={"kind": ConsoleKind.VNC})
        stream = await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=10)
        async with stream:
            assert await _read(stream, 12) == b"RFB 003.008\n"
            await stream.send_all(b"RFB 003.008\n")
            assert await _read(stream, 2) == b"\x01\x01"
            await stream.send_all(b"\x01")
            assert await _read(stream, 4) == bytes(4)
            await stream.send_all(b"\x01")
            width, height, *_ = struct.unpack(">HH16sI", await _read(stream, 24))
            assert await _read(stream, 3) == b"web"
            await stream.send_all(struct.pack(">BxHi", 2, 1, 0) + struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
            kind, rectangles, *frame = struct.unpack(">BxHHHHHi", await _read(stream, 16))
            assert (kind, rectangles, frame) == (0, 1, [0, 0, width, height, 0])
            assert len(await _read(stream, width * height * 4)) == width * height * 4


async def test_a_node_that_opens_streams_without_end_closes_its_own_and_no_console(
    rig: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_TOKEN_SECONDS", 600.0)
    node, other = await rig.new_node(), await rig.new_node()
    rig.gateway._streams._room = Admission(100, 3)
    identity = Identity.load(node.folder.identity, node.folder.authority)
    async with node.running(), other.running():
        wanted = await _machine(rig, node)
        async with await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=10) as console:
            silent = [await dial(node.folder.read_enrolment(), identity.stream) for _ in range(6)]
            for stream in silent[:4]:
                with trio.fail_after(60):
                    assert await stream.receive_some() == b""
            assert await _read(console, len(b"\r\nweb login: ")) == b"\r\nweb login: "
            elsewhere = await _machine(rig, other)
            async with await rig.gateway.open_stream(other.node_id, _with_token(elsewhere), timeout=10):
                pass
            for stream in silent:
                await trio.aclose_forcefully(stream)
        await until(lambda: not len(rig.gateway._streams._room))


async def test_a_console_that_is_not_read_does_not_hold_up_the_control_channel(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    async with node.running():
        wanted = await _machine(rig, node)
        stream = await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=10)
        async with stream, trio.open_nursery() as nursery:

            async def flood() -> None:
                while True:
                    await stream.send_all(b"x" * 65536)

            nursery.start_soon(flood)
            for number in range(5):
                await rig.gateway.perform(node.node_id, OperationId(f"t{number}"), create(), timeout=20)
            nursery.cancel_scope.cancel()


async def test_the_console_ends_at_the_node_when_the_controller_closes_it(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    opened: list[trio.abc.Stream] = []
    async with node.running():
        wanted = await _machine(rig, node)
        real = node.host.open_console

        async def note(*arguments: object) -> trio.abc.Stream:
            opened.append(await real(*arguments))  # type: ignore[arg-type]
            return opened[-1]

        node.host.open_console = note  # type: ignore[method-assign,assignment]
        stream = await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=10)
        await stream.aclose()
        with trio.fail_after(60):
            while await opened[0].receive_some(65536):
                pass


@pytest.mark.parametrize(
    ("start", "vm", "code"), [(False, True, ErrorCode.NOT_READY), (True, False, ErrorCode.NOT_FOUND)]
)
async def test_a_console_that_cannot_be_opened_says_why(
    rig: GatewayHarness, start: bool, vm: bool, code: ErrorCode
) -> None:
    node = await rig.new_node()
    async with node.running():
        wanted = await _machine(rig, node, start=start)
        if not vm:
            wanted = wanted.model_copy(update={"vm_id": uuid4()})
        with pytest.raises(ServiceError) as refusal:
            await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=10)
    assert refusal.value.code is code


async def test_a_console_of_an_offline_node_is_unavailable_at_once(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    wanted = ConsoleOpen(vm_id=uuid4(), kind=ConsoleKind.VNC, stream_token="")
    with trio.fail_after(30), pytest.raises(ServiceError) as refusal:
        await rig.gateway.open_stream(node.node_id, _with_token(wanted), timeout=3600)
    assert refusal.value.code is ErrorCode.UNAVAILABLE


async def test_a_node_reads_the_file_it_was_offered_also_after_a_restart_of_the_controller(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    content = secrets.token_bytes(3_000_001)
    (rig.folder / "files" / "image-1").write_bytes(content)
    async with node.running() as agent:
        token = rig.gateway.offer_file(node.node_id, "image-1")
        assert await _whole(await agent.open_stream(token)) == content
        await rig.stop_gateway()
        await rig.start_gateway()
        assert await _whole(await agent.open_stream(token)) == content


async def test_a_file_is_read_by_the_node_it_was_offered_to_and_no_other(rig: GatewayHarness) -> None:
    node, other = await rig.new_node(), await rig.new_node()
    (rig.folder / "files" / "image-1").write_bytes(b"secret")
    token = rig.gateway.offer_file(node.node_id, "image-1")
    async with other.running() as agent:
        assert await _whole(await agent.open_stream(token)) == b""


async def test_a_token_that_was_altered_or_has_expired_opens_nothing(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    (rig.folder / "files" / "image-1").write_bytes(b"secret")
    async with node.running() as agent:
        good = rig.gateway.offer_file(node.node_id, "image-1")
        expired = rig.gateway._streams.offer_file(node.node_id, "image-1", lifetime=-1)
        for token in (good[:-1] + ("0" if good[-1] != "0" else "1"), expired, "console.guess", "", "x" * 5_000):
            assert await _whole(await agent.open_stream(token)) == b""


async def test_a_console_token_is_good_for_its_own_node_only(rig: GatewayHarness) -> None:
    node, thief = await rig.new_node(), await rig.new_node()
    async with node.running(), thief.running() as agent:
        stolen: list[bytes] = []
        wanted = await _machine(rig, node)

        async with rig.gateway._streams.expect(node.node_id) as (token, arrival):
            stolen.append(await _whole(await agent.open_stream(token)))
            dialled = await dial_stream(node.folder.read_enrolment(), _identity(node), token)
            async with dialled, await arrival().take() as mine:
                await mine.send_all(b"for the right one")
                assert await _read(dialled, 17) == b"for the right one"
        assert stolen == [b""]
        assert wanted.vm_id in node.host.machines


def _identity(node: NodeOnDisk) -> Identity:
    return Identity.load(node.folder.identity, node.folder.authority)


def _with_token(wanted: ConsoleOpen) -> Callable[[str], NodeOperation]:
    def operation(token: str) -> NodeOperation:
        return wanted.model_copy(update={"stream_token": token})

    return operation


async def _read(stream: trio.abc.Stream, length: int) -> bytes:
    data = b""
    with trio.fail_after(60):
        while len(data) < length:
            received = await stream.receive_some(length - len(data))
            assert received, "the stream ended early"
            data += received
    return data


async def _whole(stream: trio.abc.Stream) -> bytes:
    data = bytearray()
    with trio.fail_after(60):
        async with stream:
            try:
                while received := await stream.receive_some(65536):
                    data += received
            except trio.BrokenResourceError:
                pass
    return bytes(data)
