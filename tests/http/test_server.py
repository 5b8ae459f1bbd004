"""The listener itself: TLS, connections that are kept, bodies, websockets aside; and how it stops."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing

from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_common.listening import addresses_of
from svc_http.certificates import Certificates
from svc_http.metrics import Figure, Metrics
from svc_http.operations import database_check, operations_app
from svc_http.server import serve_loopback, serve_tls
from tests.support.certificates import self_signed
from tests.support.example_service import Served
from tests.support.stack import free_port

WRITER = {"Authorization": "Bearer customer,write"}


def client(server: Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=server.url + "/api/v1", verify=server.trust, headers=WRITER, timeout=60)


def handshake(port: int, version: ssl.TLSVersion) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as wrapped:
        return wrapped.version()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_tls_below_1_2_is_refused(server: Served) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert await trio.to_thread.run_sync(handshake, server.port, version) == version.name.replace("_", ".")
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises(OSError):
            await trio.to_thread.run_sync(handshake, server.port, version)


async def test_no_header_names_the_servers_software(server: Served) -> None:
    async with client(server) as http:
        answer = await http.get("/toys/ball")
    assert answer.status_code == 200
    assert not {"server", "x-powered-by"} & {name.lower() for name in answer.headers}


async def test_one_connection_serves_many_requests(server: Served) -> None:
    async with client(server) as http:
        for number in range(50):
            answer = await http.put(f"/toys/ball{number}", json={"size": 1})
            assert answer.status_code == 201
        assert len(http._transport._pool.connections) == 1  # type: ignore[attr-defined]


async def test_a_body_one_byte_too_long_is_answered_and_not_cut_off(server: Served) -> None:
    async with client(server) as http:
        for length in (1_000_001, 5_000_000):
            answer = await http.put("/toys/ball", content=b" " * length, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")


async def test_an_upload_of_any_size_passes_chunk_by_chunk(server: Served) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 500_000

    async with client(server) as http:
        answer = await http.put(
            "/toys/ball/file", content=chunks(), headers={"Content-Type": "application/octet-stream"}, timeout=60
        )
    assert answer.json() == {"bytes": 32_000_000}


async def test_who_connected_a_moment_before_the_stop_is_answered(server: Served) -> None:
    tcp = await trio.open_tcp_stream("localhost", server.port)
    async with trio.SSLStream(tcp, server.trust, server_hostname="localhost", https_compatible=True) as stream:
        await stream.do_handshake()
        server.stop.set()
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(b"GET /api/v1/toys/ball HTTP/1.1\r\nHost: localhost\r\n\r\n")

        assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 401 ")


async def test_stopping_closes_connections_that_are_merely_kept(server: Served) -> None:
    async with client(server) as http:
        await http.get("/toys/ball")
        server.stop.set()
        with trio.fail_after(3):
            await server.ended.wait()
        with pytest.raises(httpx.TransportError):
            await http.get("/toys/ball")


async def test_the_operators_listener_tells_figures_and_health_to_this_machine_alone(database: Database) -> None:
    metrics, stop = Metrics(), trio.Event()
    metrics.answered("toy.show", 200, 0.01)
    metrics.watch(
        [
            Figure("svc_toys", "Toys.", lambda: {("ball",): 3.0}, ("kind",)),
            Figure("svc_toys_made_total", "Toys made.", lambda: 7.0),
        ]
    )
    ill = False

    async def toys_check() -> None:
        if ill:
            raise unavailable("the toys are broken")

    app = operations_app(metrics, {"database": database_check(database), "toys": toys_check})
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_loopback(app, 0, stop, task_status)

        [bind] = await nursery.start(serve)
        assert bind.startswith("http://127.0.0.1:")
        async with httpx.AsyncClient(base_url=bind, timeout=60) as http:
            figures = (await http.get("/metrics")).text
            assert 'svc_http_requests_total{operation="toy.show",status="200"} 1.0' in figures
            assert 'svc_toys{kind="ball"} 3.0' in figures
            assert "# TYPE svc_toys_made_total counter" in figures
            assert "svc_toys_made_total 7.0" in figures
            healthy = await http.get("/healthz")
            assert (healthy.status_code, healthy.json()) == (200, {"database": "ok", "toys": "ok"})
            ill = True
            sick = await http.get("/healthz")
            assert (sick.status_code, sick.json()["toys"]) == (503, "the toys are broken")
        stop.set()


@pytest.mark.parametrize("host", ["*", "::"])
async def test_both_families_are_served_and_each_client_has_its_own_address(tmp_path: Path, host: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    stop = trio.Event()
    port = free_port()
    async with trio.open_nursery() as nursery:
        serving = partial(serve_tls, app, addresses_of(host, port), Certificates(self_signed(tmp_path)), stop.wait)
        await nursery.start(serving)
        async with httpx.AsyncClient(verify=False, trust_env=False) as http:
            clients = [(await http.get(f"https://{here}:{port}/")).text for here in ("127.0.0.1", "[::1]")]
        stop.set()

    assert clients == ["127.0.0.1", "::1"]
