"""The web tier: requests are carried whole, and nobody keeps others from being carried."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

from svc_http.asgi import MAX_BODY, lifespan
from svc_http.bridge import OF_ONE_CLIENT, Web
from svc_http.server import serve_local
from tests.support.panel_core import WEB_ACCOUNT


class Core:
    """Answers what it was sent, once it may."""

    def __init__(self) -> None:
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = cast(dict[str, Any], await receive())
            body, more = body + message["body"], message["more_body"]
        self.under_way += 1
        await self.may_answer.wait()
        self.under_way -= 1
        seen = b"\n".join(name + b": " + value for name, value in scope["headers"]) + b"\n\n" + body
        await send({"type": "http.response.start", "status": 200, "headers": [], "trailers": False})
        await send({"type": "http.response.body", "body": seen, "more_body": False})


@asynccontextmanager
async def carried_to(core: Core, folder: Path) -> AsyncIterator[Web]:
    async with trio.open_nursery() as nursery:
        stop = trio.Event()
        await nursery.start(partial(serve_local, core, folder / "core.sock", WEB_ACCOUNT, stop))
        web = Web(folder / "core.sock")
        yield web
        await web.aclose()
        stop.set()


def client(web: Web, address: str = "192.0.2.1") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=cast(Any, web), client=(address, 40000))
    return httpx.AsyncClient(transport=transport, base_url="https://panel.test/api/v1")


async def test_a_request_is_carried_with_its_body_and_the_clients_own_address(tmp_path: Path) -> None:
    async with carried_to(Core(), tmp_path) as web, client(web) as http:
        answer = await http.post("/sites", content=b"x" * 70_000, headers={"X-Service-Client": "203.0.113.9"})

    head, _, body = answer.content.partition(b"\n\n")
    assert body == b"x" * 70_000
    assert head.count(b"x-service-client") == 1
    assert b"x-service-client: 192.0.2.1" in head
    assert b"203.0.113.9" not in head


async def test_bodies_that_do_not_come_keep_nobody_waiting(tmp_path: Path) -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await trio.sleep_forever()

    async def beg(web: Web, number: int) -> None:
        async with client(web, f"198.51.{number // 200}.{number % 200}") as stranger:
            await stranger.post("/auth/login", content=slow(), headers={"Content-Length": "9"})

    async with carried_to(Core(), tmp_path) as web, trio.open_nursery() as strangers:
        for number in range(1000):
            strangers.start_soon(beg, web, number)
        await trio.testing.wait_all_tasks_blocked(0.01)
        async with client(web) as http:
            with trio.fail_after(60):
                answer = await http.get("/sites")
        strangers.cancel_scope.cancel()

    assert answer.status_code == 200


async def test_one_client_has_so_many_requests_under_way_and_others_theirs(tmp_path: Path) -> None:
    core = Core()
    core.may_answer = trio.Event()
    statuses: list[int] = []

    async def ask(http: httpx.AsyncClient) -> None:
        statuses.append((await http.get("/jobs/1/log")).status_code)

    async with carried_to(core, tmp_path) as web, client(web) as greedy, client(web, "192.0.2.2") as other:
        async with trio.open_nursery() as nursery:
            for _ in range(OF_ONE_CLIENT):
                nursery.start_soon(ask, greedy)
            while core.under_way < OF_ONE_CLIENT:
                await trio.sleep(0.01)  # They come over sockets.
            refused = await greedy.get("/sites")
            nursery.start_soon(ask, other)
            while core.under_way <= OF_ONE_CLIENT:
                await trio.sleep(0.01)  # It comes over a socket.
            core.may_answer.set()
        again = await greedy.get("/sites")

    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limited"
    assert refused.headers["retry-after"] == "1"
    assert statuses == [200] * (OF_ONE_CLIENT + 1)
    assert again.status_code == 200


async def test_what_is_too_large_is_refused_before_the_core_hears_of_it(tmp_path: Path) -> None:
    core = Core()
    async with carried_to(core, tmp_path) as web, client(web) as http:
        most = await http.post("/sites", content=b"x" * MAX_BODY)
        more = await http.post("/sites", content=b"x" * (MAX_BODY + 1))

    assert most.status_code == 200
    assert more.status_code == 400
    assert set(more.json()["error"]) == {"code", "message", "hint"}


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder as the build leaves it."""
    assets = tmp_path / "pages" / "assets"
    assets.mkdir(parents=True)
    (assets.parent / "index.html").write_text("<!doctype html><title>svc</title>")
    (assets / "panel-ABCDEFGH.js").write_text("run();")
    (assets / "panel-ABCDEFGH.js.gz").write_bytes(gzip.compress(b"run();"))
    return assets.parent


async def test_a_browser_is_given_the_pages_and_what_binds_it(tmp_path: Path, pages: Path) -> None:
    web = Web(tmp_path / "core.sock", pages)

    async with client(web) as http:
        page = await http.get("https://panel.test/")
        again = await http.get("https://panel.test/", headers={"If-None-Match": page.headers["etag"]})
        script = await http.get("https://panel.test/assets/panel-ABCDEFGH.js")
        plain = await http.get("https://panel.test/assets/panel-ABCDEFGH.js", headers={"Accept-Encoding": "identity"})
    await web.aclose()

    policy = {rule.split()[0]: rule.split()[1:] for rule in page.headers["content-security-policy"].split(";")}
    assert policy["default-src"] == ["'self'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == ["'none'"]
    assert "script-src" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["strict-transport-security"] == "max-age=86400"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert script.text == plain.text == "run();"


@pytest.mark.parametrize("path", ["/wp-login.php", "/assets/../index.html", "/assets/nothing.js", "/index.html"])
async def test_nothing_but_the_pages_is_served(tmp_path: Path, pages: Path, path: str) -> None:
    web = Web(tmp_path / "core.sock", pages)

    async with client(web) as http:
        other = await http.get(f"https://panel.test{path}")
        posted = await http.post("https://panel.test/")
    await web.aclose()

    assert other.status_code == posted.status_code == 404
    assert other.headers["content-type"].startswith("text/plain")


async def test_pages_that_were_not_built_say_so(tmp_path: Path) -> None:
    web = Web(tmp_path / "core.sock", tmp_path / "nothing")

    async with client(web) as http:
        page = await http.get("https://panel.test/")
    await web.aclose()

    assert page.status_code == 503
    assert "tools/build-dashboard" in page.text


@pytest.mark.parametrize("path", ["/sites", "/auth/login"])
async def test_without_a_core_every_call_is_told_so(tmp_path: Path, path: str) -> None:
    web = Web(tmp_path / "core.sock")

    async with client(web) as http:
        answer = await http.post(path, json={})
    await web.aclose()

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "unavailable"
    assert answer.headers["cache-control"] == "no-store"
