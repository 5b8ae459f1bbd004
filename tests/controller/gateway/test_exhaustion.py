"""The gateway when its host has run out of something: it goes on, and takes nodes again once there is room."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from svc_actors.controller.gateway import gateway as gateway_module
from svc_actors.controller.gateway.authority import ServerCertificate
from svc_actors.controller.gateway.gateway import Gateway
from tests.support.gateway import Rig, until


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


async def test_connections_that_take_the_last_file_descriptor_do_not_end_the_gateway(rig: Rig) -> None:
    node = await rig.new_node()
    strangers = [trio.socket.socket() for _ in range(3)]
    with no_files_left_but(1):
        for stranger in strangers:
            await stranger.connect(("127.0.0.1", rig.port))
        await until(lambda: rig.gateway._unproven == 1)
    for stranger in strangers:
        stranger.close()
    async with node.running():
        await rig.until_online(node.node_id)


async def test_a_disk_that_is_full_does_not_end_the_gateway(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "_CERTIFICATE_CHECK_SECONDS", 0.01)
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
