"""What the websocket of a console promises, over a real socket."""

from __future__ import annotations

import random

import pytest
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection

from svc_actors.controller.machines.consoles import ConsoleKind
from svc_console import routes
from tests.support.console import ConsoleHarness


async def read_for_ever(socket: WebSocketConnection) -> None:
    while True:
        await socket.get_message()


async def talk_for_ever(guest: trio.SocketStream) -> None:
    while True:
        await guest.send_all(bytes(1 << 20))


async def closed_with(socket: WebSocketConnection) -> tuple[int, str]:
    """The code and the reason that the server closes with; what it sends before is let go."""
    with trio.fail_after(60), pytest.raises(ConnectionClosed):
        await read_for_ever(socket)
    assert socket.closed is not None
    return socket.closed.code, socket.closed.reason or ""


async def test_bytes_flow_both_ways_unchanged(house: ConsoleHarness) -> None:
    token = await house.token(await house.person())
    down, up = random.Random(1).randbytes(3_000_000), random.Random(2).randbytes(300_000)
    async with house.socket(await house.ticket(token=token)) as socket:
        await house.settled(open_consoles=1)
        guest = house.gateway.guests[0]
        received, arrived = bytearray(), bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guest.send_all, down)

            async def type_it() -> None:
                for start in range(0, len(up), 10_000):
                    await socket.send_message(up[start : start + 10_000])

            nursery.start_soon(type_it)
            while len(received) < len(down):
                message = await socket.get_message()
                assert isinstance(message, bytes)
                received.extend(message)
            while len(arrived) < len(up):
                arrived.extend(await guest.receive_some(65536))
        assert received == down
        assert arrived == up
        assert house.gateway.opened[0].kind is ConsoleKind.SERIAL


async def test_an_empty_message_is_nothing(house: ConsoleHarness) -> None:
    async with house.socket(await house.ticket(token=await house.token(await house.person()))) as socket:
        await house.settled(open_consoles=1)
        await socket.send_message(b"")
        await socket.send_message(b"x")
        assert await house.gateway.guests[0].receive_some(10) == b"x"


async def test_a_text_message_is_refused(house: ConsoleHarness) -> None:
    async with house.socket(await house.ticket(token=await house.token(await house.person()))) as socket:
        await house.settled(open_consoles=1)
        await socket.send_message("x")
        assert (await closed_with(socket))[0] == 1003


async def test_a_spent_ticket_is_refused(house: ConsoleHarness) -> None:
    path = await house.ticket(token=await house.token(await house.person()))
    async with house.socket(path):
        await house.settled(open_consoles=1)
        async with house.socket(path) as again:
            assert (await closed_with(again))[0] == 4401
        assert len(house.gateway.guests) == 1


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "http://controller.test"])
async def test_a_foreign_page_is_refused_and_spends_no_ticket(house: ConsoleHarness, origin: str) -> None:
    cookie = await house.session(await house.person())
    path = await house.ticket(cookie=cookie)
    with pytest.raises(ConnectionRejected) as refusal:
        async with house.socket(path, cookie=cookie, origin=origin):
            pass
    assert refusal.value.status_code == 403
    async with house.socket(path, cookie=cookie, origin=house.origin):
        await house.settled(open_consoles=1)


@pytest.mark.parametrize(
    "ending",
    [
        "DELETE FROM sessions",
        "UPDATE users SET suspended_at = now(), suspension_reason = 'unpaid'",
        "DELETE FROM project_members",
    ],
    ids=["signed out", "suspended", "left the project"],
)
async def test_who_may_no_longer_look_is_cut_off(house: ConsoleHarness, ending: str) -> None:
    cookie = await house.session(await house.person())
    async with house.socket(await house.ticket(cookie=cookie), cookie=cookie) as socket:
        await house.settled(open_consoles=1)
        await house.database.execute(ending)
        assert (await closed_with(socket))[0] == 4403
        assert await house.gateway.guests[0].receive_some(1) == b""


async def test_a_revoked_token_ends_the_consoles_it_opened(house: ConsoleHarness) -> None:
    async with house.socket(await house.ticket(token=await house.token(await house.person()))) as socket:
        await house.settled(open_consoles=1)
        await house.database.execute("DELETE FROM api_tokens")
        assert (await closed_with(socket))[0] == 4403


async def test_who_does_not_read_is_cut_off_all_the_same(house: ConsoleHarness) -> None:
    """The guest is let go although the browser leaves the relay stuck in a send."""
    async with house.socket(await house.ticket(token=await house.token(await house.person()))):
        await house.settled(open_consoles=1)
        guest = house.gateway.guests[0]
        with trio.move_on_after(0.2) as filling:
            await talk_for_ever(guest)
        assert filling.cancelled_caught
        await house.database.execute("DELETE FROM api_tokens")
        with trio.fail_after(60), pytest.raises(trio.BrokenResourceError):
            await talk_for_ever(guest)


async def test_a_console_ends_with_its_machine(house: ConsoleHarness) -> None:
    token = await house.token(await house.person())
    async with house.socket(await house.ticket(token=token)) as socket:
        await house.settled(open_consoles=1)
        await house.gateway.guests[0].aclose()
        assert (await closed_with(socket))[0] == 4409
    async with house.socket(await house.ticket(token=token)) as socket:
        await house.settled(open_consoles=1)
        await house.database.execute("UPDATE vms SET deleted_at = now()")
        assert (await closed_with(socket))[0] == 4404
    await house.settled(open_consoles=0)


async def test_a_controller_that_stops_says_so(house: ConsoleHarness) -> None:
    async with house.socket(await house.ticket(token=await house.token(await house.person()))) as socket:
        await house.settled(open_consoles=1)
        house.shutdown.set()
        assert (await closed_with(socket))[0] == 1001
        assert await house.gateway.guests[0].receive_some(1) == b""


async def test_a_guest_that_went_off_meanwhile_is_said_to_be_off(house: ConsoleHarness) -> None:
    path = await house.ticket(token=await house.token(await house.person()))
    house.gateway.guest_is_on = False
    async with house.socket(path) as socket:
        assert (await closed_with(socket))[0] == 4409


async def test_ten_reloads_leave_one_relay(house: ConsoleHarness) -> None:
    cookie = await house.session(await house.person())
    for _ in range(9):
        async with house.socket(await house.ticket(cookie=cookie, kind="vnc"), cookie=cookie):
            await house.settled(open_consoles=1)
        await house.settled(open_consoles=0)
    async with house.socket(await house.ticket(cookie=cookie, kind="vnc"), cookie=cookie):
        await house.settled(open_consoles=1)
        assert house.consoles.statistics().vnc == 1
        for guest in house.gateway.guests[:9]:
            assert await guest.receive_some(1) == b""


async def test_a_machine_has_several_viewers(house: ConsoleHarness) -> None:
    token = await house.token(await house.person())
    async with (
        house.socket(await house.ticket(token=token)) as first,
        house.socket(await house.ticket(token=token)) as second,
    ):
        await house.settled(open_consoles=2)
        for guest in house.gateway.guests:
            await guest.send_all(b"login: ")
        assert await first.get_message() == b"login: "
        assert await second.get_message() == b"login: "


async def test_one_person_has_so_many_consoles_and_another_theirs(
    house: ConsoleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_OF_ONE", 2)
    person = await house.person()
    token, other = await house.token(person), await house.token(await house.person())
    async with house.socket(await house.ticket(token=token)):
        async with house.socket(await house.ticket(token=await house.token(person))):
            await house.settled(open_consoles=2)
            async with house.socket(await house.ticket(token=token)) as third:
                assert (await closed_with(third))[0] == 4429
            async with house.socket(await house.ticket(token=other)):
                await house.settled(open_consoles=3)
        await house.settled(open_consoles=1)
        async with house.socket(await house.ticket(token=token)):
            await house.settled(open_consoles=2)


async def bare_socket(house: ConsoleHarness, path: str) -> trio.SocketStream:
    """The console's socket with its handshake sent, asking for compression as every browser does."""
    host = house.url.removeprefix("http://")
    stream = await trio.open_tcp_stream("127.0.0.1", int(host.rpartition(":")[2]))
    await stream.send_all(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n".encode()
    )
    return stream


async def test_a_browser_that_offers_compression_gets_none(house: ConsoleHarness) -> None:
    """Compressing a screen costs more than sending it."""
    stream = await bare_socket(house, await house.ticket(token=await house.token(await house.person())))
    await house.settled(open_consoles=1)
    await house.gateway.guests[0].send_all(b"a" * 300)
    received = b""
    while b"a" * 300 not in received:
        received += await stream.receive_some()
    head, _, frames = received.partition(b"\r\n\r\n")
    assert b"101" in head
    assert b"extensions" not in head.lower()
    assert b"\x82\x7e\x01\x2c" + b"a" * 300 in frames
    await stream.aclose()


async def test_an_idle_console_is_pinged_and_outlives_the_servers_keep_alive(house: ConsoleHarness) -> None:
    stream = await bare_socket(house, await house.ticket(token=await house.token(await house.person())))
    pings = b""
    with trio.fail_after(60):
        while pings.count(b"\x89\x00") < 12:  # more than twice the keep-alive's time
            pings += await stream.receive_some()
        await house.gateway.guests[0].send_all(b"login: ")
        while b"\x82\x07login: " not in pings:
            pings += await stream.receive_some()
    await stream.aclose()
