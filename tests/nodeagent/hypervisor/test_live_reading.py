"""Of a guest that runs most is read while it writes, and the copy is of one moment all the same. Real QEMU and qcow2
files, without libvirt and restic."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor.backups import bitmaps, copying, reading
from svc_nodeagent.hypervisor.backups.streams import DiskStream
from svc_nodeagent.protocol import VmBackup
from tests.nodeagent.hypervisor.bare_machine import DISK_MIB, KEY, MIB, NAME, Machine, bare_machine


class PowerCutError(Exception):
    pass


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    async with bare_machine(tmp_path, monkeypatch) as made:
        yield made


def at_the_moment(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digest of the disk's content as it is when a moment has begun."""
    seen = []

    def look(name: str) -> None:
        if name == "backup.begun":
            machine.qemu.write(NAME, "flush")
            raw = machine.folders.root / "at-the-moment"
            subprocess.run(["qemu-img", "convert", "-U", "-O", "raw", machine.path, raw], check=True)
            seen.append(hashlib.sha256(raw.read_bytes()[: DISK_MIB * MIB]).hexdigest())

    monkeypatch.setattr(reading, "fault_point", look)
    return seen


@pytest.mark.parametrize(("increment", "room"), [(False, True), (True, True), (False, False)])
async def test_a_guest_that_writes_all_the_time_is_copied_as_it_was_in_one_moment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, increment: bool, room: bool
) -> None:
    """`room`: on the node's disk, for what is put aside."""
    if not room:
        monkeypatch.setattr(copying, "_ROOM_ASIDE", 10**18)
    if increment:
        await machine.back_up()
        monkeypatch.setattr(copying, "_AT_ONCE", 0)
        machine.write(2, 5 * MIB)
    seen, blocks = at_the_moment(machine, monkeypatch), 0

    async def report(_: int, __: str) -> None:
        nonlocal blocks
        blocks += 1
        place = machine.rng.randrange(DISK_MIB - 1)
        if blocks % 5 == 4:
            machine.qemu.write(NAME, f"discard {place * MIB} {MIB}")
        else:
            machine.write(place + machine.rng.random() / 2, 65536)

    copy = await machine.backups.backup(VmBackup(vm_id=machine.vm_id, copy_id=uuid4(), password=KEY), report)
    assert (blocks > 10, len(seen)) == (True, 1)
    assert await machine.restored(copy) == seen[0]
    # And the next has all that was written since
    content = await machine.content()
    assert content != seen[0]
    assert await machine.restored(await machine.back_up()) == content


async def test_nothing_goes_to_the_store_while_qemu_keeps_what_the_guest_overwrites(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, take = [], DiskStream.take

    async def watched(self: Any, number: int, block: bytes) -> None:
        assert machine.guests.domain is not None
        taken.append((number, machine.guests.domain.jobStats() != {}))
        await take(self, number, block)

    monkeypatch.setattr(DiskStream, "take", watched)
    machine.during.append(lambda: machine.write(20))
    copy, content = await machine.back_up(), await machine.content()
    assert taken == [*((number, False) for number in range(8)), (20, False)]
    assert await machine.restored(copy) == content
    machine.write(3)
    await machine.back_up()
    assert taken[9:] == [(3, False)]


async def test_one_that_is_cut_short_while_it_reads_is_repeated_and_reads_as_little(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await machine.back_up()
    machine.write(20)

    def cut() -> None:
        raise PowerCutError

    with monkeypatch.context() as failing:
        failing.setattr(copying, "_AT_ONCE", 0)
        # Whoever dies ends nothing
        failing.setattr(bitmaps, "hide", lambda _: None)
        machine.during.append(cut)
        with pytest.raises(PowerCutError):
            await machine.back_up()
    machine.write(10)
    copy, content = await machine.back_up(), await machine.content()
    assert machine.read == (2, DISK_MIB)
    assert await machine.restored(copy) == content
    # Nothing shows the disk any more
    assert machine.qemu.ask("query-block-exports") == []
