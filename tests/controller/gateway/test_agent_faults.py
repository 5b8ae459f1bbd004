"""The agent goes on, and its operations with it, whatever breaks at its edges."""

from __future__ import annotations

from typing import NoReturn
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.enrol import new_key, private_pem
from svc_nodeagent.protocol import Capacity, ConsoleKind, ConsoleOpen
from svc_nodeagent.simulated_console import open_console
from tests.support.gateway import GatewayHarness, until


async def test_an_unproven_certificate_that_does_not_fit_its_key_is_left_aside(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    certificate = node.folder.identity.read_bytes().partition(b"-----END PRIVATE KEY-----\n")[2]
    node.folder.write(node.folder.next_identity, private_pem(new_key()) + certificate)
    async with node.running():
        await rig.until_online(node.node_id)
    assert not node.folder.next_identity.exists()


async def test_a_console_that_breaks_ends_alone(rig: GatewayHarness) -> None:
    node = await rig.new_node()

    class Broken(trio.abc.Stream):
        async def receive_some(self, _: int | None = None) -> NoReturn:
            await trio.lowlevel.checkpoint()
            raise ValueError("a defect")

        async def send_all(self, _: bytes | bytearray | memoryview) -> None: ...

        async def wait_send_all_might_not_block(self) -> None: ...

        async def aclose(self) -> None: ...

    async def opened(vm_id: UUID, kind: ConsoleKind) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return open_console("web", kind) if kind is ConsoleKind.SERIAL else Broken()

    node.host.open_console = opened  # type: ignore[method-assign]
    async with node.running():
        await rig.until_online(node.node_id)
        for kind in (ConsoleKind.VNC, ConsoleKind.SERIAL):
            stream = await rig.gateway.open_stream(
                node.node_id,
                lambda token, kind=kind: ConsoleOpen(vm_id=uuid4(), kind=kind, stream_token=token),  # type: ignore[misc]
                timeout=10,
            )
            assert (await stream.receive_some(1) == b"") is (kind is ConsoleKind.VNC)
            await trio.aclose_forcefully(stream)
        assert rig.heard.disconnected == []


@pytest.mark.parametrize("error", [OSError("Stale file handle"), RuntimeError("a defect")])
async def test_a_host_that_cannot_tell_its_capacity_for_once_does_not_end_the_agent(
    rig: GatewayHarness, error: Exception
) -> None:
    node = await rig.new_node()
    honest, asked = node.host.capacity, 0

    async def capacity() -> Capacity:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise error
        return await honest()

    node.host.capacity = capacity  # type: ignore[method-assign]
    async with node.running():
        await until(lambda: asked > 2)
        await rig.until_online(node.node_id)
