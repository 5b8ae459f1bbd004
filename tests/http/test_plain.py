"""Plain HTTP beside the service: challenges are answered, and browsers sent to HTTPS."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import httpx
import pytest
import trio
import trio.testing

from svc_actors.acme import CHALLENGE_PATH, Http01, Proof
from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog
from svc_http import plain
from svc_http.plain import NO_CHALLENGE, add_challenges, challenge_app, serve_plain
from tests.support.example_service import ExampleServices, example_app
from tests.support.stack import free_port

PUBLIC = "https://controller.example:8443"


class Told:
    """What the listener says of itself, and when."""

    def __init__(self) -> None:
        self.said: list[str | None] = []
        self._said = trio.Event()

    async def __call__(self, problem: str | None) -> None:
        self.said.append(problem)
        self._said.set()
        self._said = trio.Event()

    async def until(self, number: int) -> str | None:
        with trio.fail_after(60):
            while len(self.said) < number:
                await self._said.wait()
        return self.said[number - 1]


@pytest.fixture
async def challenges() -> Http01:
    challenges = Http01()
    await challenges.offer("service", [Proof("service.example", "a-token", "a-token.thumbprint")])
    return challenges


@pytest.fixture
async def client(challenges: Http01, nursery: trio.Nursery) -> AsyncIterator[httpx.AsyncClient]:
    port, told = free_port(), Told()
    nursery.start_soon(partial(serve_plain, challenge_app(challenges, PUBLIC), [f"127.0.0.1:{port}"], told))
    assert await told.until(1) is None
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield client


async def test_a_challenge_under_way_is_answered_and_another_is_not(client: httpx.AsyncClient) -> None:
    known = await client.get(f"{CHALLENGE_PATH}a-token")
    unknown = await client.get(f"{CHALLENGE_PATH}another")

    assert (known.status_code, known.text) == (200, "a-token.thumbprint")
    assert (unknown.status_code, unknown.text) == (404, NO_CHALLENGE)


async def test_the_service_answers_challenges_on_its_own_port_too(database: Database, challenges: Http01) -> None:
    app = example_app(ExampleServices(database, Sealer(bytes(32)), EventLog(database)))
    add_challenges(app, challenges)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(cast(Any, app)), base_url=PUBLIC) as proxy:
        known = await proxy.get(f"{CHALLENGE_PATH}a-token", headers={"Host": "controller.example"})
        unknown = await proxy.get(f"{CHALLENGE_PATH}another")

    assert (known.status_code, known.text) == (200, "a-token.thumbprint")
    assert (unknown.status_code, unknown.text) == (404, NO_CHALLENGE)


@pytest.mark.parametrize("path", ["/", "/vms/web-1", "//evil.example/", "/a%20b%0d%0aX: y"])
async def test_a_browser_is_sent_to_the_public_name_whatever_it_asks_for(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"Host": "evil.example"})

    assert answer.status_code == 308
    assert answer.headers["location"].startswith(f"{PUBLIC}/")
    assert "x" not in answer.headers


async def test_what_was_sent_in_the_clear_is_not_sent_on(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/v1/auth/login", json={"password": "Correct-Horse-42"})

    assert answer.status_code == 403
    assert "location" not in answer.headers


async def test_a_port_that_is_taken_is_told_and_listened_on_once_it_is_free(
    challenges: Http01, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "AGAIN_SECONDS", 0.05)
    port, told = free_port(), Told()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        nursery.start_soon(partial(serve_plain, challenge_app(challenges, PUBLIC), [f"127.0.0.1:{port}"], told))
        problem = await told.until(1)
    while told.said[-1] is not None:
        await told.until(len(told.said) + 1)

    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.get(f"http://127.0.0.1:{port}{CHALLENGE_PATH}a-token")

    assert problem == f"127.0.0.1:{port} cannot be listened on: Address already in use"
    assert answer.text == "a-token.thumbprint"
