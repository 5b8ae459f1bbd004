"""A machine with one disk in a real QEMU that runs no guest (`bare_qemu`), its backups, and a store in memory."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import libvirt_qemu
import pytest

from svc_nodeagent.hypervisor.backups import copies, reading
from svc_nodeagent.hypervisor.backups.copies import MachineBackups
from svc_nodeagent.hypervisor.files import Folders
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.protocol import PLAIN, BackupResult, DiskSpec, VmBackup, VmRestore
from tests.nodeagent.hypervisor.bare_qemu import Domain, Guests, Qemu, monitor_of
from tests.nodeagent.hypervisor.memory_store import MemoryStore

KEY, MIB = "the key of the store", 1024 * 1024
DISK_MIB = 24
NAME = "vdb"


class Machine:
    """It has one disk, its second, which stands on no image."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.vm_id, self.folders, self.rng = uuid4(), Folders(folder), random.Random(7)
        self.disks: tuple[DiskSpec, ...] = (DiskSpec(index=1, size_gib=1),)
        self.guests, self.during = Guests(), list[Callable[[], None]]()
        self.read = (0, 0)
        """How many MiB of how many the last backup has read."""
        for folder in (self.folders.backups, self.folders.volumes, self.folders.machine(self.vm_id)):
            folder.mkdir(parents=True)
        images, none = SimpleNamespace(base_of=lambda _: None), cast(Any, None)
        guests = cast(Any, self.guests)
        self.backups = MachineBackups(guests, self.folders, cast(Any, images), none, cast(Any, _alone))
        self.store = MemoryStore()
        monkeypatch.setattr(copies, "store_at", lambda *_: self.store)
        monkeypatch.setattr(copies, "read_record", lambda path: self._record(UUID(path.parent.name)))
        monkeypatch.setattr(libvirt_qemu, "qemuMonitorCommand", monitor_of)
        for module in (copies, reading):
            monkeypatch.setattr(module, "qemu_user", lambda: SimpleNamespace(owner=(os.getuid(), os.getgid())))

    def _record(self, vm_id: UUID) -> Any:
        return SimpleNamespace(vm_id=vm_id, disks=self.disks, base="", platform=PLAIN)

    @property
    def path(self) -> Path:
        return self.folders.disk_of(self.vm_id, self.disks[0])

    @property
    def qemu(self) -> Qemu:
        assert self.guests.domain is not None
        return self.guests.domain.qemu

    async def make(self) -> None:
        await run_program("qemu-img", "create", "-q", "-f", "qcow2", self.path, f"{DISK_MIB}M")

    def start(self) -> None:
        self.guests.domain = Domain(Qemu({NAME: self.path}))

    def stop(self, *, killed: bool = False) -> None:
        self.qemu.end(killed=killed)
        self.guests.domain = None

    def write(self, place_mib: float, length: int = 4096) -> None:
        self.qemu.write(NAME, f"write -P {self.rng.randrange(1, 256)} {int(place_mib * MIB)} {length}")

    async def content(self, path: Path | None = None) -> str:
        if self.guests.domain is not None:
            self.qemu.write(NAME, "flush")
        raw = self.folders.root / "raw"
        await run_program("qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw", path or self.path, raw)
        with raw.open("rb") as file:
            digest = hashlib.sha256(file.read(DISK_MIB * MIB)).hexdigest()
        raw.unlink()
        return digest

    async def back_up(self, *forget: UUID, copy_id: UUID | None = None) -> BackupResult:
        operation = VmBackup(vm_id=self.vm_id, copy_id=copy_id or uuid4(), password=KEY, forget=forget)

        async def report(_: int, message: str) -> None:
            if "copying" in message:
                while self.during:
                    self.during.pop()()
            if told := re.fullmatch(r"read (\d+) MiB of (\d+) MiB", message):
                self.read = int(told[1]), int(told[2])

        return await self.backups.backup(operation, report)

    async def restored(self, copy: BackupResult) -> str:
        """As another machine's disk, so that this one goes on."""
        other, running = uuid4(), self.guests.domain
        self.folders.machine(other).mkdir()
        operation = VmRestore(vm_id=other, source_id=self.vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks)
        self.guests.domain = None
        try:
            await self.backups.restore(operation, silent)
            return await self.content(self.folders.disk_of(other, self.disks[0]))
        finally:
            self.guests.domain = running


@asynccontextmanager
async def _alone(_: UUID) -> AsyncIterator[None]:
    yield


async def silent(_: int, __: str) -> None:
    pass


@asynccontextmanager
async def bare_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    """It runs, and 8 MiB of its disk are written."""
    made = Machine(folder, monkeypatch)
    await made.make()
    made.start()
    made.write(0, 8 * MIB)
    yield made
    if made.guests.domain is not None:
        made.stop(killed=True)
