"""What a console's relay promises, with a pair of memory streams for the guest and a list for the browser."""

from __future__ import annotations

from itertools import pairwise

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from svc_console.relay import CHUNK_BYTES, INPUT_SECONDS, Ending, relay


class FakeBrowser:
    """What it was sent, and what it will send; `taking` cleared means it does not read."""

    def __init__(self, messages: list[bytes | str] | None = None) -> None:
        self.received = bytearray()
        self.taking = trio.Event()
        self.taking.set()
        self._messages = iter(messages or [])

    async def receive(self) -> bytes | str:
        for message in self._messages:
            return message
        await trio.sleep_forever()
        raise AssertionError

    async def send(self, data: bytes) -> None:
        await self.taking.wait()
        await trio.lowlevel.checkpoint()
        self.received += data


def pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [whole[start:end] for start, end in pairwise(places)]


@given(down=st.binary(max_size=5000), up=st.binary(max_size=5000), cuts=st.lists(st.integers(0, 5000), max_size=20))
def test_bytes_arrive_unchanged_both_ways_however_they_are_cut(down: bytes, up: bytes, cuts: list[int]) -> None:
    async def run() -> None:
        near, far = memory_stream_pair()
        browser = FakeBrowser([*pieces(up, cuts)])
        arrived = bytearray()

        async def guest() -> None:
            for piece in pieces(down, cuts):
                await far.send_all(piece)
            while len(arrived) < len(up):
                arrived.extend(await far.receive_some(7))
            await wait_all_tasks_blocked()
            await far.aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(guest)
            assert await relay(browser, near) is Ending.GUEST_ENDED
        assert browser.received == down
        assert arrived == up

    trio.run(run)


class EndlessGuest(trio.abc.Stream):
    """A guest that always has more to say; counts what was taken of it, and takes no input."""

    def __init__(self) -> None:
        self.produced = 0
        self.closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        assert max_bytes is not None
        self.produced += max_bytes
        return bytes(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep_forever()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        self.closed = True
        await trio.lowlevel.checkpoint()


async def test_a_browser_that_does_not_read_stops_the_guest(autojump_clock: MockClock) -> None:
    browser, guest = FakeBrowser(), EndlessGuest()
    browser.taking = trio.Event()
    with trio.move_on_after(5):
        await relay(browser, guest)
    assert guest.produced <= CHUNK_BYTES
    assert guest.closed


async def test_a_guest_that_takes_no_input_does_not_hold_a_browser_for_ever(autojump_clock: MockClock) -> None:
    browser, guest = FakeBrowser([b"x"]), EndlessGuest()
    browser.taking = trio.Event()
    began = trio.current_time()
    assert await relay(browser, guest) is Ending.INPUT_STALLED
    assert trio.current_time() - began == INPUT_SECONDS
    assert guest.closed


async def test_an_idle_console_is_not_cut(autojump_clock: MockClock) -> None:
    near, far = memory_stream_pair()
    browser = FakeBrowser()

    async def a_day_later() -> None:
        await trio.sleep(86_400)
        await far.send_all(b"login: ")
        await wait_all_tasks_blocked()
        await far.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(a_day_later)
        assert await relay(browser, near) is Ending.GUEST_ENDED
    assert browser.received == b"login: "


async def test_the_guest_is_let_go_when_the_browser_goes() -> None:
    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay, FakeBrowser(), near)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert await far.receive_some(1) == b""


async def test_text_is_refused() -> None:
    near, far = memory_stream_pair()
    assert await relay(FakeBrowser(["hello"]), near) is Ending.NOT_BINARY
    assert await far.receive_some(1) == b""
