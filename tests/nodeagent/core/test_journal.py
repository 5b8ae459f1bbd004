"""The journal: what it says after a crash at any byte."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
import trio

from svc_nodeagent.journal import Journal
from svc_nodeagent.protocol import Done, Failed, FailureCode, OperationId, Outcome, Succeeded

DONE = Succeeded(result=Done())
REFUSED = Failed(code=FailureCode.CAPACITY, message="no room: über alles 🙂\nsecond line")


async def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal")
    await journal.start(OperationId("a"))
    await journal.start(OperationId("b"))
    await journal.finish(OperationId("b"), REFUSED)
    journal.close()
    again = Journal.open(tmp_path / "journal")
    assert again.started == {"a"}
    assert again.outcomes == {"b": REFUSED}


async def test_a_file_cut_at_any_byte_reads_as_a_prefix_of_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path)
    states: dict[int, tuple[set[OperationId], dict[OperationId, Outcome]]] = {0: (set(), {})}
    for number in range(6):
        operation_id = OperationId(f"operation-{number}")
        await journal.start(operation_id)
        states[path.stat().st_size] = (set(journal.started), dict(journal.outcomes))
        if number % 2:
            await journal.finish(operation_id, REFUSED if number % 3 else DONE)
            states[path.stat().st_size] = (set(journal.started), dict(journal.outcomes))
    journal.close()
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        cut = Journal(None)
        cut.read(path)
        # A line is whole without its newline already.
        reached = max(size for size in states if size <= length + (length + 1 in states))
        assert (cut.started, cut.outcomes) == states[reached], length


async def test_a_journal_cut_at_any_byte_goes_on_without_harm(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path)
    await journal.start(OperationId("a"))
    await journal.finish(OperationId("a"), DONE)
    journal.close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        cut = Journal.open(path)
        await cut.start(OperationId("after"))
        await cut.finish(OperationId("after"), DONE)
        cut.close()
        again = Journal(None)
        again.read(path)
        assert again.outcomes[OperationId("after")] == DONE


async def test_a_damaged_byte_costs_one_record_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path)
    for number in range(20):
        await journal.finish(OperationId(f"{number}"), DONE)
    journal.close()
    data = bytearray(path.read_bytes())
    position = random.Random(5).randrange(len(data))
    data[position] ^= 0x20
    path.write_bytes(data)
    damaged = Journal.open(path)
    assert 18 <= len(damaged.outcomes) <= 19


async def test_an_acknowledged_outcome_is_gone_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path)
    await journal.finish(OperationId("a"), DONE)
    journal.acknowledge([OperationId("a")])
    await journal.flush()
    journal.close()
    assert Journal.open(path).unacknowledged == ()


async def test_the_file_stays_small_however_many_operations_were_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path)
    await journal.start(OperationId("kept"))
    for number in range(1_500):
        operation_id = OperationId(f"operation-{number}")
        await journal.start(operation_id)
        await journal.finish(operation_id, DONE)
        journal.acknowledge([operation_id])
    journal.close()
    assert path.stat().st_size < 400_000
    assert Journal.open(path).started >= {"kept"}


async def test_a_full_disk_is_reported_and_what_is_on_the_disk_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = Journal.open(path)
    await journal.finish(OperationId("a"), DONE)
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="journal cannot be written"):
        await journal.start(OperationId("b"))
    assert OperationId("b") not in journal.started
    monkeypatch.undo()
    await journal.start(OperationId("c"))
    journal.close()
    again = Journal.open(path)
    assert again.outcomes == {"a": DONE}
    assert again.started == {"c"}


async def test_operations_begun_together_share_one_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path / "journal")
    syncs = 0
    fsync = os.fsync

    def count(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", count)
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(journal.start, OperationId(f"{number}"))
    assert len(journal.started) == 200
    assert syncs < 20


async def test_the_journal_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    Journal.open(tmp_path / "journal")
    assert (tmp_path / "journal").stat().st_mode & 0o077 == 0
