"""Listening sockets that a supervisor keeps for a service: both families, and none of other settings."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from svc.service import supervisor
from svc.service.supervisor import KeptListener
from svc_common.listening import addresses_of
from svc_http.certificates import Certificates
from svc_http.server import serve_tls
from tests.support.certificates import self_signed
from tests.support.stack import free_port


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        yield channel


def received(channel: socket.socket) -> tuple[str, int]:
    """What was said, and how many descriptors came with it."""
    said, ancillary, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(64))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    for each in descriptors:
        os.close(each)
    return said.decode(), len(descriptors)


def test_sockets_of_both_families_are_taken_over_and_kept(
    notified: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners = [socket.create_server(("127.0.0.1", 0)), socket.create_server(("::1", 0), family=socket.AF_INET6)]
    old = socket.create_server(("127.0.0.1", 0))
    descriptors = [os.dup(each.fileno()) for each in (*listeners, old)]
    monkeypatch.setattr(supervisor, "_passed", lambda _: {"web": descriptors})
    kept = KeptListener({"NOTIFY_SOCKET": notified.getsockname()}, "web")
    addresses = [f"127.0.0.1:{listeners[0].getsockname()[1]}", f"[::1]:{listeners[1].getsockname()[1]}"]

    bound = kept.bind([*addresses, "192.0.2.1:7443"])

    assert bound == [f"fd://{descriptors[0]}", f"fd://{descriptors[1]}", "192.0.2.1:7443"]
    # What is of no address of the settings is given up.
    assert received(notified) == ("FDSTOREREMOVE=1\nFDNAME=web", 0)
    with pytest.raises(OSError):
        os.fstat(descriptors[2])

    kept.keep(listeners)
    assert received(notified) == ("FDSTORE=1\nFDNAME=web", 2)
    for each in (*listeners, old):
        each.close()
    for descriptor in descriptors[:2]:
        os.close(descriptor)


async def test_one_address_is_served_by_the_sockets_of_all_that_a_unit_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Binding it beside them would fail; who comes by another address is answered nothing."""
    port = free_port()
    four = socket.create_server(("0.0.0.0", port))
    six = socket.create_server(("::", port), family=socket.AF_INET6)
    passed = [four.detach(), six.detach()]
    monkeypatch.setattr(supervisor, "_passed", lambda _: {"web": list(passed)})
    stop = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    async with trio.open_nursery() as nursery:
        kept = KeptListener({}, "web", of_unit=True)
        addresses = addresses_of("127.0.0.1", port)
        await nursery.start(
            partial(serve_tls, app, addresses, Certificates(self_signed(tmp_path)), stop.wait, listener=kept)
        )
        async with httpx.AsyncClient(verify=False, trust_env=False) as http:
            assert (await http.get(f"https://127.0.0.1:{port}/")).text == "127.0.0.1"
            for other in ("127.0.0.2", "[::1]"):
                with pytest.raises(httpx.ConnectError):
                    await http.get(f"https://{other}:{port}/")
        stop.set()


def test_a_service_without_a_socket_unit_gives_up_a_port_that_it_held_wider(
    notified: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = socket.create_server(("0.0.0.0", 0))
    port = wide.getsockname()[1]
    descriptor = wide.detach()
    monkeypatch.setattr(supervisor, "_passed", lambda _: {"api": [descriptor]})

    bound = KeptListener({"NOTIFY_SOCKET": notified.getsockname()}, "api").bind([f"127.0.0.1:{port}"])

    assert bound == [f"127.0.0.1:{port}"]
    assert received(notified) == ("FDSTOREREMOVE=1\nFDNAME=api", 0)
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_each_descriptor_is_known_by_its_name() -> None:
    environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "3", "LISTEN_FDNAMES": "web:other:web"}

    assert supervisor._passed(environ) == {"web": [3, 5], "other": [4]}
    assert supervisor._passed({**environ, "LISTEN_PID": "1"}) == {}
