"""A tap's rate, on this host's kernel: a pair of devices stands for the tap, its other end for the guest."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import rates
from svc_nodeagent.hypervisor.programs import run_program, try_program

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

_NETWORK = f"10.{192 + os.getpid() % 32}.{os.getpid() // 32 % 256}"
HOST, GUEST, STRANGER = (f"{_NETWORK}.{number}" for number in (1, 2, 9))


@dataclass(frozen=True)
class Pair:
    """`device` is at the host and named as a tap; the guest's end is `eth0` in the namespace."""

    device: str
    namespace: str

    async def guest(self, *arguments: str) -> bytes:
        return await run_program("ip", "netns", "exec", self.namespace, *arguments)


@pytest.fixture
async def pair(naming: Naming) -> AsyncIterator[Pair]:
    pair = Pair(naming.tap(uuid4()), f"{naming.table}-rates")
    await run_program("ip", "netns", "add", pair.namespace)
    try:
        peer = ("peer", "name", "eth0", "netns", pair.namespace)
        await run_program("ip", "link", "add", pair.device, "type", "veth", *peer)
        await run_program("ip", "address", "add", f"{HOST}/24", "dev", pair.device)
        await run_program("ip", "link", "set", pair.device, "up")
        for address in (GUEST, STRANGER):
            await pair.guest("ip", "address", "add", f"{address}/24", "dev", "eth0")
        await pair.guest("ip", "link", "set", "eth0", "up")
        yield pair
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 20):
            await run_program("ip", "netns", "del", pair.namespace)  # the pair goes with it
            await rates.forget_rate(pair.device)


async def carried(pair: Pair, *options: str) -> float:
    """Megabits a second of payload that arrived, by iperf3 in the guest against one at the host."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_program, "iperf3", "-s", "-1", "-B", HOST)
        while (await try_program("ss", "-Htln", f"src {HOST}"))[1] == b"":
            await trio.sleep(0.02)
        report = json.loads(await pair.guest("iperf3", "-c", HOST, "-t", "3", "-O", "1", "-J", *options))
    end = report["end"]
    return float((end.get("sum_received") or end["sum"])["bits_per_second"]) / 1e6


async def is_carried(pair: Pair, mbps: float, *options: str) -> bool:
    """Whether at least nine tenths arrive, and never more than eleven. A busy machine may carry less for a while, and
    is measured again; it never carries more."""
    for _ in range(5):
        measured = await carried(pair, *options)
        assert measured <= 1.1 * mbps
        if measured >= 0.9 * mbps:
            return True
    return False


@pytest.mark.parametrize("mbps", [4, 200])
@pytest.mark.parametrize("direction", [(), ("--reverse",)], ids=["from the guest", "to the guest"])
async def test_tcp_carries_what_was_asked_for_within_a_tenth(pair: Pair, mbps: int, direction: tuple[str, ...]) -> None:
    await rates.set_rate(pair.device, mbps)
    assert await is_carried(pair, mbps, *direction)


@pytest.mark.parametrize("direction", [(), ("--reverse",)], ids=["from the guest", "to the guest"])
async def test_udp_that_is_sent_faster_arrives_at_the_rate(pair: Pair, direction: tuple[str, ...]) -> None:
    await rates.set_rate(pair.device, 10)
    assert await is_carried(pair, 10, "--udp", "--bitrate", "40M", "--length", "1400", *direction)


async def test_a_lifted_cap_leaves_nothing_and_caps_nothing(pair: Pair) -> None:
    await rates.set_rate(pair.device, 2)
    await rates.set_rate(pair.device, None)
    assert await rates.seen_rate(pair.device) is None
    assert pair.device not in (await run_program("nft", "list", "tables")).decode()
    assert rates.shaper_of(pair.device) not in (await run_program("ip", "link", "show")).decode()
    assert await carried(pair) > 20


async def test_a_rate_is_changed_in_place_and_seen(pair: Pair, naming: Naming) -> None:
    await rates.set_rate(pair.device, 1000)
    assert await rates.seen_rate(pair.device) == 1000
    for _ in range(2):
        await rates.set_rate(pair.device, 7)
        assert await rates.seen_rate(pair.device) == 7
        assert await rates.seen_rates(naming) == {pair.device: 7}


@pytest.mark.parametrize("missing", ["shaper", "bucket", "chain", "another shaper"])
async def test_a_cap_of_which_something_is_missing_is_seen_and_mended(pair: Pair, naming: Naming, missing: str) -> None:
    await rates.set_rate(pair.device, 50)
    shaper = rates.shaper_of(pair.device)
    if missing == "bucket":
        await run_program("tc", "qdisc", "del", "dev", pair.device, "root")
    elif missing == "chain":
        await run_program("nft", "delete", "table", "netdev", pair.device)
    else:
        await run_program("ip", "link", "del", shaper)
    if missing == "another shaper":
        await run_program("ip", "link", "add", shaper, "type", "ifb")
    assert await rates.seen_rate(pair.device) == rates.RATES_DIFFER
    assert await rates.seen_rates(naming) == {pair.device: rates.RATES_DIFFER}
    await rates.set_rate(pair.device, 50)
    assert await rates.seen_rate(pair.device) == 50
    await pair.guest("ping", "-c", "1", "-W", "5", HOST)


async def test_a_cap_that_lost_its_shaper_is_lifted_whole(pair: Pair, naming: Naming) -> None:
    """Its chain would drop everything for ever."""
    await rates.set_rate(pair.device, 50)
    await run_program("ip", "link", "del", rates.shaper_of(pair.device))
    assert await rates.rated_devices(naming) == {pair.device}
    await rates.set_rate(pair.device, None)
    assert await rates.rated_devices(naming) == frozenset()
    assert await rates.seen_rate(pair.device) is None
    await pair.guest("ping", "-c", "1", "-W", "5", HOST)


async def test_what_the_guard_drops_is_dropped_under_a_rate_too(pair: Pair) -> None:
    """Both came through one queue, so the second tells that the first did not."""
    guard = f"""table netdev {pair.device}-guard {{
        chain guard {{
            type filter hook ingress device {pair.device} priority {rates.PRIORITY - 100}; policy accept;
            ip saddr {STRANGER} drop
        }}
    }}"""
    await run_program("nft", "-f", "-", stdin=guard.encode())
    try:
        for _ in range(2):
            await rates.set_rate(pair.device, 10)
            receiver = trio.socket.socket(type=trio.socket.SOCK_DGRAM)
            with receiver:
                await receiver.bind((HOST, 0))
                port = receiver.getsockname()[1]
                send = (
                    "import socket\n"
                    f"for source in ({STRANGER!r}, {GUEST!r}):\n"
                    "    s = socket.socket(type=socket.SOCK_DGRAM); s.bind((source, 0))\n"
                    f"    s.sendto(source.encode(), ({HOST!r}, {port}))\n"
                )
                await pair.guest("python3", "-c", send)
                with trio.fail_after(60):
                    assert (await receiver.recv(100)).decode() == GUEST
    finally:
        await run_program("nft", "delete", "table", "netdev", f"{pair.device}-guard")


async def test_what_is_left_of_a_tap_that_went_is_found_and_removed(pair: Pair, naming: Naming) -> None:
    await rates.set_rate(pair.device, 3)
    await run_program("ip", "link", "del", pair.device)
    assert await rates.rated_devices(naming) == {pair.device}
    await rates.forget_rate(pair.device)
    assert await rates.rated_devices(naming) == frozenset()
    assert pair.device not in (await run_program("nft", "list", "tables")).decode()


async def test_this_kernel_carries_rates() -> None:
    assert await rates.rates_lack() is None


def test_no_two_taps_share_a_shaper_and_no_shaper_looks_like_a_tap() -> None:
    for prefix in ("s", "svc", "v123"):
        naming = Naming(device_prefix=prefix)
        taps = [naming.tap(UUID(int=number << 84)) for number in (0, 1, 0xABCDEF, 2**44 - 1)]
        shapers = {rates.shaper_of(tap) for tap in taps}
        assert len(shapers) == len(taps)
        assert all(len(name) <= 15 and not naming.is_tap(name) for name in shapers)
