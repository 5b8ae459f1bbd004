"""What a server of a disk does wrong is told by whoever reads from it, and never taken for the disk's end."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups import nbd
from svc_nodeagent.hypervisor.backups.reading import serve_disk
from svc_nodeagent.hypervisor.programs import run_program

REPLY, ANSWER = 0x3E889045565A9, 0x67446698


@pytest.mark.parametrize("stalls", [False, True])
async def test_a_server_that_stops_within_a_block_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalls: bool
) -> None:
    monkeypatch.setattr(nbd, "_ANSWER_SECONDS", 0.5)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(tmp_path / "nbd"))
    listening.listen()

    async def serve() -> None:
        accepted, _ = await listening.accept()
        stream = trio.SocketStream(accepted)
        await stream.send_all(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
        await _received(stream, 4 + 8 + 4 + 4 + 4 + 2)
        size = struct.pack(">HQH", 0, 1024, 1)
        await stream.send_all(
            struct.pack(">QIII", REPLY, 7, 3, len(size)) + size + struct.pack(">QIII", REPLY, 7, 1, 0)
        )
        await _received(stream, 28)
        await stream.send_all(struct.pack(">IIQ", ANSWER, 0, 1) + bytes(100))
        if stalls:
            await trio.sleep_forever()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with pytest.raises(HostError, match="no longer shows the disk"):
            await _read(tmp_path / "nbd")
        nursery.cancel_scope.cancel()
    listening.close()


async def _read(socket: Path) -> None:
    async with nbd.connect_nbd(socket) as disk:
        async for _ in disk.pieces([(0, 1024)]):
            raise AssertionError("it is not a whole block")


async def _received(stream: trio.SocketStream, length: int) -> None:
    while length > 0:
        length -= len(await stream.receive_some(length))


async def test_what_is_written_twice_ends_as_it_was_written_last(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", disk, "4M")
    async with serve_disk(disk, tmp_path / "nbd"), nbd.connect_nbd(tmp_path / "nbd") as sink:
        for number in range(64):
            await sink.write(65536 * (number % 3), bytes([number]) * 131072)
        await sink.zero(0, 65536)
        await sink.flush()
        [(_, content)] = [each async for each in sink.pieces([(0, 5 * 65536)])]
    assert content == bytes(65536) + bytes([63]) * 65536 + bytes([62]) * 131072 + bytes(65536)
