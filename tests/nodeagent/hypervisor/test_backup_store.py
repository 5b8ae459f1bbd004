"""A machine's store at its target, by real restic: what attempts that were cut short have left, and a target that is
full."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.store import MachineStore
from svc_nodeagent.protocol import FailureCode
from tests.support.small_disk import SmallDisk, small_disk

MIB = 1024 * 1024
DISK = "disk-0.raw"


class _PowerCutError(Exception):
    pass


async def keep(store: MachineStore, content: bytes) -> UUID:
    copy_id = uuid4()
    async with store.writer(copy_id, DISK) as sink:
        await sink.send_all(content)
    return copy_id


async def cut_short(store: MachineStore, mib: int) -> None:
    with contextlib.suppress(_PowerCutError):
        async with store.writer(uuid4(), DISK) as sink:
            for _ in range(mib):
                await sink.send_all(os.urandom(MIB))
            raise _PowerCutError


async def content_of(store: MachineStore, copy_id: UUID) -> bytes:
    [snapshot] = [each for each in await store.snapshots() if each.copy_id == copy_id]
    read = bytearray()
    async with store.reader(snapshot) as source:
        async for piece in source:
            read += piece
    return bytes(read)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "target", 128) as disk:
        (disk.folder / "machines").mkdir()
        yield disk


async def test_what_a_copy_that_was_cut_short_has_left_is_removed(tmp_path: Path) -> None:
    store = MachineStore(tmp_path, uuid4(), "key")
    await store.prepare()
    content = os.urandom(4 * MIB)
    kept = await keep(store, content)
    whole = await store.size()
    await cut_short(store, 64)
    assert await store.size() > whole + 16 * MIB

    await store.unlock()
    await store.prune()
    assert await store.size() < whole + MIB
    assert await content_of(store, kept) == content


@pytest.mark.system
@pytest.mark.isolated
async def test_a_full_target_is_named_and_takes_copies_again(target: SmallDisk) -> None:
    store = MachineStore(target.folder / "machines", uuid4(), "key")
    await store.prepare()
    content = random.Random(1).randbytes(8 * MIB)
    kept = await keep(store, content)
    with pytest.raises(HostError, match="target for backups is full") as full:
        await keep(store, os.urandom(160 * MIB))
    assert full.value.code is FailureCode.CAPACITY
    assert full.value.hint is not None
    assert "at the target" in full.value.hint
    # What is there is restored, also while nothing can be written
    target.fill()
    assert await content_of(store, kept) == content
    target.empty()

    # What the attempt has left is all that fills it
    await store.unlock()
    await store.prune()
    again = await keep(store, content + os.urandom(32 * MIB))
    assert len(await content_of(store, again)) == 40 * MIB
