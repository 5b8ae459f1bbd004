"""A machine's store at its target, by real restic: what attempts that were cut short have left, and a target that is
full."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups.chains import Snapshot
from svc_nodeagent.hypervisor.backups.store import MachineStore, store_at
from svc_nodeagent.hypervisor.backups.verification import SHARES, share_of
from svc_nodeagent.protocol import FailureCode
from tests.support.cheap_keys import make_key_cheap
from tests.support.small_disk import SmallDisk, small_disk

MIB = 1024 * 1024
DISK = "disk-0.raw"


class _PowerCutError(Exception):
    pass


async def prepared(folder: Path, vm_id: UUID | None = None) -> MachineStore:
    vm_id = vm_id or uuid4()
    store = store_at(folder, vm_id, "key", None)
    await store.prepare()
    make_key_cheap(folder / str(vm_id), "key")
    return store


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


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
    [snapshot] = [each for each in (await store.listing()).snapshots if each.copy_id == copy_id]
    return await read(store, snapshot)


async def read(store: MachineStore, snapshot: Snapshot) -> bytes:
    content = bytearray()
    async with store.reader(snapshot) as source:
        async for piece in source:
            content += piece
    return bytes(content)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "target", 128) as disk:
        (disk.folder / "machines").mkdir()
        yield disk


async def test_what_a_copy_that_was_cut_short_has_left_is_removed(tmp_path: Path) -> None:
    store = await prepared(tmp_path)
    content = os.urandom(4 * MIB)
    kept = await keep(store, content)
    whole = size_of(tmp_path)
    await cut_short(store, 64)
    assert size_of(tmp_path) > whole + 16 * MIB
    # As the file has that restic was writing when it died, in the moments in which it was.
    [data] = tmp_path.glob("*/data")
    (next(data.iterdir()) / f"{'5' * 64}-tmp-1871").write_bytes(os.urandom(2 * MIB))

    await store.unlock()
    await store.prune()
    assert size_of(tmp_path) < whole + MIB
    assert await content_of(store, kept) == content


@pytest.mark.system
@pytest.mark.isolated
async def test_a_full_target_is_named_and_takes_copies_again(target: SmallDisk) -> None:
    store = await prepared(target.folder / "machines")
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


async def test_each_of_a_chain_of_increments_is_what_was_copied(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    increments = 20 if request.config.getoption("--full") else 6
    store, disk, rng = await prepared(tmp_path), bytearray(os.urandom(16 * MIB)), random.Random(20)
    kept = {}
    for _ in range(increments):
        for _ in range(3):
            place = rng.randrange(len(disk) - 65536)
            disk[place : place + 65536] = rng.randbytes(65536)
        kept[await keep(store, bytes(disk))] = hashlib.sha256(disk).hexdigest()
    # restic cuts each store at places of its own, in parts of 0.5 to 8 MiB: three of them may be half of the disk.
    assert size_of(tmp_path) < increments * len(disk) * 3 / 4
    # Every other goes, and what the others need stays
    gone = list(kept)[::2]
    await store.forget([each for each in (await store.listing()).snapshots if each.copy_id in gone])
    assert await store.prune()
    left = (await store.listing()).snapshots
    assert {each.copy_id for each in left} == kept.keys() - set(gone)
    for each in left:
        assert hashlib.sha256(await read(store, each)).hexdigest() == kept[each.copy_id]


@pytest.mark.parametrize("loss", ["changed", "removed"])
async def test_what_the_target_has_lost_is_noticed_and_brought_again(tmp_path: Path, loss: str) -> None:
    vm_id = uuid4()
    store, content = await prepared(tmp_path, vm_id), os.urandom(24 * MIB)
    first = await keep(store, content)
    file = max((tmp_path / str(vm_id) / "data").glob("*/*"), key=lambda path: path.stat().st_size)
    if loss == "removed":
        file.unlink()
    else:
        file.chmod(0o600)
        file.write_bytes(b"changed" + file.read_bytes()[7:])
        with pytest.raises(HostError, match="did not return all of"):
            await content_of(store, first)

    shares = [await store.verify(share) for share in range(SHARES)]
    assert shares.count(False) == (loss == "changed")
    assert not await store.prune()
    await store.strike_off_lost()
    second = await keep(store, content)
    assert await content_of(store, second) == content
    # What the disk still had makes the earlier copy whole as well
    assert await content_of(store, first) == content
    assert await store.prune()


@pytest.mark.parametrize(("days", "runs"), [(1, 14), (7, 7)])
def test_every_part_is_read_within_a_fortnight_of_daily_runs_or_seven_weekly_ones(days: int, runs: int) -> None:
    for begin in (date(2026, 11, 23) + timedelta(days=day) for day in range(7)):
        assert {share_of(begin + timedelta(days=days * run)) for run in range(runs)} == set(range(SHARES))


async def test_nothing_is_written_beneath_a_target_that_goes_away_meanwhile(tmp_path: Path) -> None:
    target, away = tmp_path / "machines", tmp_path / "away"
    target.mkdir()
    store, content, copy_id = await prepared(target), os.urandom(40 * MIB), uuid4()
    async with store.writer(copy_id, DISK) as sink:
        await sink.send_all(content[: 20 * MIB])
        target.rename(away)
        await sink.send_all(content[20 * MIB :])
    assert not target.exists()
    for order in (store.prepare, store.prune, store.listing):
        with pytest.raises(HostError, match="no target for backups") as refused:
            await order()
        assert refused.value.code is FailureCode.CONFLICT
    assert not target.exists()

    away.rename(target)
    await store.prepare()
    assert await store.prune()
    assert await content_of(store, copy_id) == content
