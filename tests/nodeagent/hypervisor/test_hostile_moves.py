"""What another host sends of a machine that moves: no more than was ordered, and never all of this host's disk."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor import images, live_receiving, moving, platform_state
from svc_nodeagent.hypervisor.files import GIB
from svc_nodeagent.protocol import CpuMode, DiskSpec, FailureCode, MachineSpec, VmMigrate, VmRestore
from tests.nodeagent.hypervisor.bare_machine import KEY, bare_machine
from tests.nodeagent.hypervisor.builders import image, machine, record, silent
from tests.support.moves import DiskHost, disk_host
from tests.support.small_disk import small_disk

MIB = 1024 * 1024
PIECE = b"x" * MIB


@pytest.fixture
def base(tmp_path: Path) -> Path:
    file = tmp_path / "base.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", file, "1M"], check=True)
    return file


@pytest.fixture
def target(tmp_path: Path, base: Path) -> DiskHost:
    return disk_host("target", tmp_path, base)


def _header(*disks: tuple[int, int], **more: Any) -> bytes:
    announced = [{"index": n, "size_bytes": size, "data_bytes": data} for n, (size, data) in enumerate(disks)]
    return json.dumps({"password_hash": None, "disks": announced} | more).encode() + b"\n"


def _piece(offset: int, data: bytes = PIECE) -> bytes:
    return struct.pack(">QI", offset, len(data)) + data


async def _refused(target: DiskHost, sent: Sequence[bytes], spec: MachineSpec | None = None) -> HostError:
    """How it ends when another host sends this, and then nothing for ever."""
    here, there = trio.testing.memory_stream_pair()

    async def dialled(_: str) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        return here

    target.use(dialled)
    spec = spec or machine()
    order = VmMigrate(machine=spec, image=image(b""), cpu_mode=CpuMode.DEFAULT, stream_token="token")
    for piece in sent:
        await there.send_all(piece)
    with trio.fail_after(30), pytest.raises(HostError) as refused:
        await target.moves.take_in(order, silent)
    left = [path for folder in (target.folders.machines, target.folders.volumes) for path in folder.iterdir()]
    assert left == []
    assert spec.vm_id not in target.guests.domains
    return refused.value


@pytest.mark.parametrize(
    "announced",
    [(8 * 1024**4, MIB), (52 * GIB, 52 * GIB), (MIB, 2 * MIB), (2**62, 2**62), (2**63, 0), (-1, 0)],
    ids=["8 TiB", "past all snapshots", "more data than size", "the largest", "past the largest", "negative"],
)
async def test_a_size_that_the_disk_cannot_have_is_refused_before_a_byte_of_it(
    target: DiskHost, announced: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(moving, "_write", lambda *_: written.append(1))
    refused = await _refused(target, [_header(announced), *[_piece(n * MIB) for n in range(4)]])
    assert refused.code is FailureCode.INVALID
    assert "othing was kept" in refused.message
    assert written == []


async def test_each_of_sixteen_disks_is_bounded_by_its_own_size(target: DiskHost) -> None:
    disks = tuple(DiskSpec(index=n, size_gib=1) for n in range(16))
    spec = machine().model_copy(update={"disks": disks})
    refused = await _refused(target, [_header(*[(GIB, MIB)] * 15, (60 * GIB, MIB))], spec)
    assert (refused.code, "disk 15" in refused.message) == (FailureCode.INVALID, True)


@pytest.mark.parametrize("offsets", [(0, MIB, 2 * MIB), (0, 0), (2 * MIB, MIB), (0, MIB - 1), (MIB, 0)], ids=str)
async def test_more_data_than_announced_and_offsets_that_do_not_rise_end_a_move(
    target: DiskHost, offsets: tuple[int, ...]
) -> None:
    refused = await _refused(target, [_header((16 * MIB, 2 * MIB)), *map(_piece, offsets)])
    assert refused.code is FailureCode.INVALID


@pytest.mark.system
@pytest.mark.isolated
@pytest.mark.parametrize("announced", [256, 40])
async def test_a_short_disk_ends_a_move_while_there_is_room_for_the_guests(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, announced: int
) -> None:
    monkeypatch.setattr(images, "_FLOOR_BYTES", 32 * MIB)
    monkeypatch.setattr(moving, "_LOOKED_AT_EVERY", 4 * MIB)
    least: list[int] = []

    def written(descriptor: int, data: bytes, offset: int) -> None:
        write(descriptor, data, offset)
        if not least:
            (small.folder / "others").write_bytes(b"x" * 50 * MIB)  # Another guest's, meanwhile.
        least.append(small.free)

    write = moving._write
    monkeypatch.setattr(moving, "_write", written)
    with small_disk(tmp_path / "small", 128) as small:
        target = disk_host("target", small.folder, base)
        before = small.free
        pieces = [_piece(n * MIB) for n in range(announced)]
        refused = await _refused(target, [_header((256 * MIB, announced * MIB)), *pieces])
        assert refused.code is FailureCode.CAPACITY
        assert "the machine is where it was" in refused.message
        # What cannot fit is refused before its first byte.
        assert bool(least) == (announced == 40)
        assert min(least, default=before) > 20 * MIB
        (small.folder / "others").unlink(missing_ok=True)
        assert small.free > before - 8 * MIB


def test_a_disk_that_is_full_in_three_snapshots_still_moves() -> None:
    measured = subprocess.run(
        ["qemu-img", "measure", "--output=json", "--size", "1G", "-O", "qcow2"], check=True, capture_output=True
    )
    full = int(json.loads(measured.stdout)["fully-allocated"])
    for layers in (1, 4, 51):
        announced = moving._Disk(index=0, size_bytes=layers * full, data_bytes=layers * full)
        moving._require_size(announced, DiskSpec(index=0, size_gib=1))


async def test_a_disk_with_more_snapshots_than_a_machine_has_is_refused_before_qemu_img_looks(
    target: DiskHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(target.image.read_bytes())
    struct.pack_into(">IQ", content, 60, 65_535, 65_536)
    started: list[Any] = []

    async def run_program(*arguments: Any, **_: Any) -> bytes:
        await trio.lowlevel.checkpoint()
        started.append(arguments)
        return b"{}"

    monkeypatch.setattr("svc_nodeagent.hypervisor.disks.run_program", run_program)
    end = struct.pack(">QI", len(content), 0)
    refused = await _refused(target, [_header((len(content), len(content))), _piece(0, bytes(content)), end])
    assert (refused.code, started) == (FailureCode.INVALID, [])


async def test_a_made_up_state_ends_a_move(target: DiskHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_state, "TPM_STATES", tmp_path / "swtpm")
    with tarfile.open(fileobj=(made := io.BytesIO()), mode="w") as tar:
        for name in ("nvram.fd", "nvram.fd"):
            tar.addfile(tarfile.TarInfo(name))
    state = made.getvalue()

    async def as_it_is(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(moving, "_stand_on", as_it_is)
    announced = {"size_bytes": len(state), "digest": hashlib.sha256(state).hexdigest()}
    sent = [_header((MIB, MIB), state=announced), _piece(0), struct.pack(">QI", MIB, 0), state]
    refused = await _refused(target, sent)
    assert (refused.code, "firmware and TPM" in refused.message) == (FailureCode.INVALID, True)


async def test_a_live_move_ends_where_this_host_becomes_short(
    target: DiskHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiving = cast(Any, SimpleNamespace(_folders=target.folders))
    looks = iter([False, False, True])
    monkeypatch.setattr(live_receiving, "is_nearly_full", lambda *_: next(looks))
    monkeypatch.setattr(live_receiving, "ROOM_SECONDS", 0.01)
    short = trio.Event()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            over = nursery.cancel_scope
            nursery.start_soon(live_receiving.LiveReceiving._watch_room, receiving, record(machine()), short, over)
            await trio.sleep_forever()
    assert short.is_set()


async def test_a_restoration_ends_where_the_node_becomes_short_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bare_machine(tmp_path, monkeypatch) as made:
        copy = await made.back_up()
        made.stop()
        before = made.path.read_bytes()
        monkeypatch.setattr(images, "is_nearly_full", lambda *_: True)
        order = VmRestore(vm_id=made.vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)
        with pytest.raises(HostError) as refused:
            await made.backups.restore(order, silent)
        assert refused.value.code is FailureCode.CAPACITY
        assert made.path.read_bytes() == before
        assert not made.folders.restored_disk(made.vm_id, 1).exists()
