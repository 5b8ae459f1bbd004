"""What the taps of this host count reaches the ledger, and stays there when the tap has gone."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.programs import run_program, try_program
from svc_nodeagent.hypervisor.traffic import SAMPLES_A_WRITING, HostTraffic
from svc_nodeagent.traffic import Ledger

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

_TUNSETIFF, _TAP, _NO_PI = 0x400454CA, 0x0002, 0x1000
_LLDP = bytes.fromhex("0180c200000e" + "525400213002" + "88cc")
_VM = uuid4()


@pytest.fixture
async def device(naming: Naming) -> AsyncIterator[str]:
    device = naming.tap(uuid4())
    try:
        yield device
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
            await try_program("ip", "link", "del", device)


async def make_tap(device: str, vm_id: UUID = _VM) -> None:
    await run_program("ip", "tuntap", "add", "dev", device, "mode", "tap")
    settings = trio.Path(f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6")
    await settings.write_text("1")
    await run_program("ip", "link", "set", "dev", device, "alias", f"svctest vm {vm_id}", "up")


@contextmanager
def guest(device: str) -> Iterator[int]:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _TAP | _NO_PI))
        yield descriptor
    finally:
        os.close(descriptor)


def frame(length: int) -> bytes:
    return _LLDP.ljust(length, b"\0")


async def counted(traffic: HostTraffic) -> tuple[int, int, int]:
    (reading,) = (await traffic.result()).readings
    assert reading.vm_id == _VM
    return reading.received, reading.sent, reading.resets


async def test_what_a_guest_sends_and_takes_is_counted_to_the_byte(device: str, naming: Naming, tmp_path: Path) -> None:
    traffic = await HostTraffic.open(tmp_path / "traffic.json", naming)
    await make_tap(device)
    with guest(device) as end:
        os.write(end, frame(100))
        os.write(end, frame(1000))
        assert await counted(traffic) == (0, 1100, 0)
        sender = trio.socket.socket(trio.socket.AF_PACKET, trio.socket.SOCK_RAW)
        with sender:
            await sender.bind((device, 0))
            await sender.send(frame(700))
        await trio.lowlevel.wait_readable(end)
        assert len(os.read(end, 2048)) == 700
        trio.lowlevel.notify_closing(end)
    assert await counted(traffic) == (700, 1100, 0)


async def test_a_tap_that_goes_is_read_before_and_begins_anew_after(
    device: str, naming: Naming, tmp_path: Path
) -> None:
    traffic = await HostTraffic.open(tmp_path / "traffic.json", naming)
    for length in (500, 900):
        await make_tap(device)
        with guest(device) as end:
            os.write(end, frame(length))
        await traffic.before_removal([device])
        await run_program("ip", "link", "del", device)
    assert await counted(traffic) == (0, 1400, 1)


async def test_an_agent_that_was_killed_goes_on_from_what_it_wrote(device: str, naming: Naming, tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    first = await HostTraffic.open(path, naming)
    await make_tap(device)
    with guest(device) as end:
        os.write(end, frame(500))
        told = await first.result()
        os.write(end, frame(600))  # while there is no agent
    second = await HostTraffic.open(path, naming)
    assert (await second.result()).ledger_id == told.ledger_id
    assert await counted(second) == (0, 1100, 0)


async def test_a_ledger_that_cannot_be_read_is_set_aside_and_counts_nothing_twice(
    device: str, naming: Naming, tmp_path: Path
) -> None:
    path = tmp_path / "traffic.json"
    await make_tap(device)
    with guest(device) as end:
        os.write(end, frame(500))
        path.write_bytes(b"{")
        traffic = await HostTraffic.open(path, naming)
        os.write(end, frame(60))
    assert await counted(traffic) == (0, 60, 0)
    assert (tmp_path / "traffic.json.unreadable").read_bytes() == b"{"


async def test_what_cannot_be_written_down_is_not_told_and_not_lost(
    device: str, naming: Naming, tmp_path: Path
) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    traffic = await HostTraffic.open(folder / "traffic.json", naming)
    folder.rmdir()
    await make_tap(device)
    with guest(device) as end:
        os.write(end, frame(500))
    with pytest.raises(FileNotFoundError):
        await traffic.result()
    await traffic.before_removal([device])
    await run_program("ip", "link", "del", device)
    folder.mkdir()
    assert await counted(traffic) == (0, 500, 0)


async def test_readings_are_written_down_by_themselves(device: str, naming: Naming, tmp_path: Path) -> None:
    path = tmp_path / "traffic.json"
    traffic = await HostTraffic.open(path, naming)
    await make_tap(device)
    with guest(device) as end:
        os.write(end, frame(500))
    for _ in range(SAMPLES_A_WRITING):
        await traffic.turn()
    (reading,) = Ledger(path.read_bytes()).result().readings
    assert (reading.vm_id, reading.sent) == (_VM, 500)


async def test_taps_of_others_are_not_counted(naming: Naming, tmp_path: Path) -> None:
    traffic = await HostTraffic.open(tmp_path / "traffic.json", naming)
    device = Naming(device_prefix="zz").tap(uuid4())
    await make_tap(device)
    try:
        assert (await traffic.result()).readings == ()
    finally:
        await run_program("ip", "link", "del", device)
