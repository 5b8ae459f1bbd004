"""When a request is tried again, and when that would do the work twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx
import pytest
import trio
import trio.testing

from svc.cli.client import Client
from svc.cli.failures import Exit, Failure
from svc.cli.profiles import Profile

PROFILE = Profile(url="https://controller.test", token="svcvm_x")
Answer = Callable[[httpx.Request], httpx.Response]


def busy(status: int, *, retry_after: str | None = None) -> Answer:
    error = {"error": {"code": "rate_limited" if status == 429 else "unavailable", "message": "Later."}}
    headers = {"Retry-After": retry_after} if retry_after else {}
    return lambda request: httpx.Response(status, json=error, headers=headers)


def fine(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"ok": True})


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("cut", request=request)


def refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


class Script:
    """A service that gives its answers in turn; `sent` are the requests that came."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.sent: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        return self._answers.pop(0)(request)

    def client(self) -> Client:
        transport = httpx.MockTransport(self)
        return Client(PROFILE, httpx.AsyncClient(transport=transport, base_url="https://controller.test/api/v1"))


@pytest.mark.parametrize("first", [busy(429), busy(502), busy(503), busy(504), broken, refused])
async def test_a_read_is_tried_again(first: Answer, autojump_clock: trio.testing.MockClock) -> None:
    script = Script([first, fine])
    assert await script.client().call("GET", "/vms") == {"ok": True}


async def test_the_pause_that_the_service_asks_for_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([busy(503, retry_after="17"), fine])
    began = trio.current_time()
    await script.client().call("GET", "/vms")
    assert trio.current_time() - began == pytest.approx(17, abs=0.1)


async def test_a_pause_beyond_reason_is_left_to_the_person(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([busy(429, retry_after="3600")])
    with pytest.raises(Failure) as raised:
        await script.client().call("GET", "/vms")
    assert raised.value.exit_code == Exit.RATE_LIMITED


@pytest.mark.parametrize("first", [busy(503), broken])
async def test_a_write_that_may_have_been_done_is_not_sent_again(
    first: Answer, autojump_clock: trio.testing.MockClock
) -> None:
    script = Script([first, fine])
    with pytest.raises(Failure) as raised:
        await script.client().call("POST", "/vms/1/start", body={})
    assert raised.value.exit_code == Exit.UNAVAILABLE
    assert len(script.sent) == 1


@pytest.mark.parametrize("first", [busy(429), refused])
async def test_a_write_that_was_not_begun_is_sent_again(first: Answer, autojump_clock: trio.testing.MockClock) -> None:
    script = Script([first, fine])
    assert await script.client().call("POST", "/vms/1/start", body={}) == {"ok": True}


async def test_a_write_with_an_idempotency_key_is_sent_again_unchanged(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([broken, busy(503), fine])
    await script.client().call("POST", "/vms", body={"name": "a", "idempotency_key": "k"})
    assert len({request.content for request in script.sent}) == 1


async def test_retries_end(autojump_clock: trio.testing.MockClock) -> None:
    script = Script([busy(503)] * 10)
    with pytest.raises(Failure) as raised:
        await script.client().call("GET", "/vms")
    assert raised.value.exit_code == Exit.UNAVAILABLE
    assert len(script.sent) == 4


async def test_what_is_no_controller_is_told_as_such() -> None:
    script = Script([lambda request: httpx.Response(404, text="<html>nginx</html>")])
    with pytest.raises(Failure, match="but not as a controller or a panel does"):
        await script.client().call("GET", "/vms")
