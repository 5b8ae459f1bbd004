"""The gateway when its host has run out of something: it goes on, and takes nodes again once there is room."""

from __future__ import annotations

import gc
import os
import resource
import ssl
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
import trio

from svc_actors.admission import Admission
from svc_actors.controller.gateway import gateway as gateway_module
from svc_actors.controller.gateway import handshakes
from svc_actors.controller.gateway.authority import ServerCertificate
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.gateway.operations import NodeOperations
from svc_common.errors import ErrorCode, ServiceError
from svc_nodeagent.config import Identity
from svc_nodeagent.enrol import new_key, signing_request
from svc_nodeagent.protocol import (
    MANY,
    UP,
    ObservedTap,
    OperationId,
    ProbeResult,
    Result,
    Succeeded,
)
from tests.support.gateway import GatewayHarness, create, until


@contextmanager
def no_files_left_but(free: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 64, hard))
        while True:
            try:
                held.append(os.dup(0))
            except OSError:
                break
        for _ in range(free):
            os.close(held.pop())
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_that_take_the_last_file_descriptor_do_not_end_the_gateway(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    strangers = [trio.socket.socket() for _ in range(3)]
    with no_files_left_but(1):
        for stranger in strangers:
            await stranger.connect(("127.0.0.1", rig.port))
        await until(lambda: len(rig.gateway._unproven) == 1)
    for stranger in strangers:
        stranger.close()
    async with node.running():
        await rig.until_online(node.node_id)


async def test_a_disk_that_is_full_does_not_end_the_gateway(
    rig: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "_CERTIFICATE_CHECK_SECONDS", 0.01)
    asked = 0

    def certificate() -> ServerCertificate:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise OSError("No space left on device")
        return rig.authority.server_certificate(rig.folder, "localhost")

    gateway = Gateway(rig.authority, certificate, bind_host="127.0.0.1", port=0)
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        await until(lambda: asked > 2)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("host", ["*", "::"])
async def test_agents_come_by_both_families(rig: GatewayHarness, host: str) -> None:
    gateway = Gateway(
        rig.authority, lambda: rig.authority.server_certificate(rig.folder, "localhost"), bind_host=host, port=0
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        for here in ("127.0.0.1", "::1"):
            await (await trio.open_tcp_stream(here, gateway.port)).aclose()
        nursery.cancel_scope.cancel()


async def test_answers_that_nobody_asked_for_take_no_memory() -> None:
    await trio.lowlevel.checkpoint()
    tap = ObservedTap(device="t", vm_id=UUID(int=1), up=True, routes=("192.0.2.1",), filtered=True)
    told = ProbeResult(taps=(tap,) * (MANY // 4), machines=(), ruleset_digest="")
    frame = Result(id=OperationId("unknown"), outcome=Succeeded(result=told)).model_dump_json()
    operations = NodeOperations()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()

        for number in range(5):
            result = UP.validate_json(frame.replace('"unknown"', f'"unknown-{number}"'))
            assert isinstance(result, Result)
            assert operations.ended(result) is None
        del result
        gc.collect()

        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000


async def test_an_outcome_that_came_while_nobody_waited_is_had_from_the_node_again(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    operation = create()
    ask = (node.node_id, OperationId("t:create"), operation)
    async with node.running() as agent:
        first = await rig.gateway.perform(*ask, timeout=20)
        assert agent._journal.outcomes
        await rig.stop_gateway()
        await rig.start_gateway()
        await rig.until_online(node.node_id)

        again = await rig.gateway.perform(*ask, timeout=20)

    assert again == first
    assert len(node.host.performed) == 1


async def test_a_node_is_given_ten_certificates_an_hour(rig: GatewayHarness) -> None:
    node = await rig.new_node()
    serial = await rig.database.fetchval("SELECT serial FROM node_certificates")
    for _ in range(9):
        await rig.authority.renew(node.node_id, serial, signing_request(new_key()))

    with pytest.raises(ServiceError) as refusal:
        await rig.authority.renew(node.node_id, serial, signing_request(new_key()))

    assert refusal.value.code is ErrorCode.RATE_LIMITED
    assert await rig.database.fetchval("SELECT count(*) FROM node_certificates") == 10
    assert await rig.authority.identify(serial) == node.node_id


async def test_silent_connections_do_not_keep_a_node_out(rig: GatewayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await rig.new_node()
    await rig.stop_gateway()
    monkeypatch.setattr(gateway_module, "of_unauthenticated", lambda: Admission(4, 2))
    await rig.start_gateway()
    strangers = [await trio.open_tcp_stream("127.0.0.1", rig.port) for _ in range(10)]

    async with node.running():
        await rig.until_online(node.node_id)

    assert await strangers[0].receive_some() == b""
    for stranger in strangers:
        await stranger.aclose()


@pytest.mark.parametrize(
    ("ciphers", "taken"), [("ECDHE-ECDSA-AES128-GCM-SHA256", True), ("ECDHE-ECDSA-AES128-SHA", False)]
)
async def test_the_gateway_takes_no_cipher_without_authenticated_encryption(
    rig: GatewayHarness, ciphers: str, taken: bool
) -> None:
    node = await rig.new_node()
    context = Identity.load(node.folder.identity, node.folder.authority).control
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    tcp = await trio.open_tcp_stream("127.0.0.1", rig.port)
    stream = trio.SSLStream(tcp, context, server_hostname="localhost")

    if taken:
        await stream.do_handshake()
    else:
        with pytest.raises(trio.BrokenResourceError):
            await stream.do_handshake()

    await trio.aclose_forcefully(stream)
