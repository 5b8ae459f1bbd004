"""B20 to B22: a machine's backup and its restore compared with the bare tools, for 512 MiB of random content on 2 GiB.

The disk is in a real QEMU that runs no guest, the target is a folder, and everything that an agent does is measured,
including its checks of the target before and after. The peers handle the 512 MiB alone: `restic backup` of a file with
the same bytes, `restic dump` of it, and `qemu-img convert` of the disk. Needs root, QEMU and restic.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final
from uuid import UUID, uuid4

import pytest
import trio

from svc_nodeagent.hypervisor.backups import copies
from svc_nodeagent.hypervisor.backups.store import store_at
from svc_nodeagent.hypervisor.programs import ENVIRONMENT, run_program
from svc_nodeagent.protocol import BackupResult, VmBackup, VmRestore
from tests.nodeagent.hypervisor.bare_machine import KEY, MIB, NAME, Machine, silent
from tools.benchmarks import Ratio

ROUNDS: Final = 5
_SIZE_GIB, _PARTS, _PART_MIB, _CHANGED_MIB = 2, 8, 64, 20
_SECONDS: Final = 600.0


class Restic:
    """Plain restic, with a cache of its own next to the repository."""

    def __init__(self, folder: Path) -> None:
        self._options = ("--repo", folder / "bare", "--cache-dir", folder / "cache", "--quiet")

    async def run(self, *arguments: str | Path, output: Path | None = None) -> None:
        environment = ENVIRONMENT | {"RESTIC_PASSWORD": KEY}
        with (output or Path(os.devnull)).open("wb") as file:
            await trio.run_process(["restic", *self._options, *arguments], env=environment, stdout=file)


async def _write(machine: Machine, raw: Path, offset_mib: int, mib: int, place_mib: int) -> None:
    """Write random bytes into the disk, by QEMU, and into the file that the peer reads."""
    content = machine.folders.root / "content"
    content.write_bytes(os.urandom(mib * MIB))
    machine.qemu.write(NAME, f"write -s {content} {offset_mib}M {mib}M")
    with raw.open("r+b") as file:
        file.seek(place_mib * MIB)
        file.write(content.read_bytes())
    content.unlink()


async def _restored(machine: Machine, copy: BackupResult) -> None:
    other, running = uuid4(), machine.guests.domain
    machine.folders.machine(other).mkdir()
    machine.guests.domain = None
    operation = VmRestore(vm_id=other, source_id=machine.vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)
    await machine.backups.restore(operation, silent)
    machine.guests.domain = running


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = perf_counter()
    await work()
    return perf_counter() - begun


async def _round(folder: Path, monkeypatch: pytest.MonkeyPatch, times: dict[str, list[float]]) -> None:
    machine = Machine(folder, monkeypatch)
    monkeypatch.setattr(copies, "store_at", store_at)
    machine.disks = (machine.disks[0].model_copy(update={"size_gib": _SIZE_GIB}),)
    await run_program("qemu-img", "create", "-q", "-f", "qcow2", machine.path, f"{_SIZE_GIB}G")
    machine.start()
    try:
        raw, restic = folder / "content.raw", Restic(folder)
        raw.touch()
        for part in range(_PARTS):
            await _write(machine, raw, part * (_SIZE_GIB * 1024 // _PARTS), _PART_MIB, part * _PART_MIB)
        made: list[BackupResult] = []

        async def back_up() -> None:
            operation = VmBackup(vm_id=machine.vm_id, copy_id=UUID(int=len(made) + 1), password=KEY)
            made.append(await machine.backups.backup(operation, silent))

        async def measure(name: str, work: Callable[[], Awaitable[object]]) -> None:
            times.setdefault(name, []).append(await _timed(work))

        machine.qemu.write(NAME, "flush")
        convert = ("convert", "-U", "-f", "qcow2", "-O", "qcow2", machine.path, folder / "converted")
        await measure("convert", lambda: run_program("qemu-img", *convert, timeout=_SECONDS))
        await restic.run("init")
        await store_at(machine.folders.backups, machine.vm_id, KEY, None).prepare()
        await measure("whole", back_up)
        await measure("restic", lambda: restic.run("backup", raw))
        await measure("restored", lambda: _restored(machine, made[0]))
        await measure("dumped", lambda: restic.run("dump", "latest", raw, output=folder / "dumped"))
        await _write(machine, raw, 10, _CHANGED_MIB, 10)
        await measure("increment", back_up)
        await measure("restic again", lambda: restic.run("backup", raw))
    finally:
        machine.stop(killed=True)


async def _measured() -> list[Ratio]:
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, pytest.MonkeyPatch.context() as monkeypatch:
            await _round(Path(folder), monkeypatch, times)
    of = {name: median(taken) for name, taken in times.items()}
    return [
        Ratio("B20 a whole backup : restic backup", of["whole"], of["restic"], "s", 2, False),
        Ratio("B20 a whole backup : qemu-img convert", of["whole"], of["convert"], "s", 40, False),
        Ratio("B21 an increment of 20 MiB : restic backup", of["increment"], of["restic again"], "s", 1, False),
        Ratio("B21 an increment of 20 MiB : a whole backup", of["increment"], of["whole"], "s", 0.5, False),
        Ratio("B22 a restoration : restic dump", of["restored"], of["dumped"], "s", 2, False),
        Ratio("B22 a restoration : qemu-img convert", of["restored"], of["convert"], "s", 20, False),
    ]


def measure() -> list[Ratio]:
    return trio.run(_measured)
