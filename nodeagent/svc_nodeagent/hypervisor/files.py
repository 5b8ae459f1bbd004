"""The agent's files on disk, and how each is created.

    images/            verified image files named by their digest, and an index file for each image id
    machines/<vm_id>/  machine.json (the record), disk-N.qcow2, seed.iso, serial.log, nvram.fd (of a UEFI), and until
                       the first boot is done first-boot.json (0600); while it is reinstalled also reinstall-0.qcow2
                       and reinstall.json; in rescue also rescue.json (0600) and rescue.iso;
                       iso.json, about the medium in its CD-ROM drive
    volumes/           <volume_id>.qcow2: machines' disks besides their first, attached or not
    retained/<vm_id>/  disks of deleted machines whose owner wanted them kept, with the record that says what they were
    backups/machines/  copies of machines' disks, on the file system that an administrator mounted at backups/
    copy-files/<copy_id>/  disks of a copy whose files are readable, for as long as they are (`copy_files`)
    metrics/<vm_id>    hourly samples
    traffic.json       the ledger of traffic

Invariants: a file that has its final name is complete and on disk (it is written under a temporary name, synced and
renamed, and the folder is synced), so after a crash an existing file need not be created again; the record is written
before anything that it describes, and removed last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import trio
from pydantic import BaseModel, ConfigDict

from svc_nodeagent.durable import sync_folder
from svc_nodeagent.protocol import PLAIN, CpuMode, DiskSpec, NetworkSpec, Platform, SeedSpec

P = ParamSpec("P")
T = TypeVar("T")

GIB = 1024**3
RECORD = "machine.json"
SECRET = "first-boot.json"  # noqa: S105  (a file name)
SEED = "seed.iso"
DECISION = "reinstall.json"
"""The new state of a machine whose reinstallation is decided and not complete yet (`reinstallation`)."""
MEDIUM = "iso.json"
"""The medium in a machine's CD-ROM drive (`media`)."""
RESCUE = "rescue.json"
"""What a machine in rescue boots (`rescued`)."""
ABANDONED = "abandoned"
"""Marks the folder of a machine whose creation has failed, so that its remains are removed."""

FILE_THREADS = trio.CapacityLimiter(4)
"""Threads for work on files, which may have to wait for a slow disk, so that it blocks no other threads."""


class MachineRecord(BaseModel):
    """The record of a machine, from which its domain, seed and network are derived. It contains no secrets except those
    that the machine's owner has written into `seed.user_data`, which the guest can read anyway."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vm_id: UUID
    name: str
    vcpus: int
    memory_mib: int
    disks: tuple[DiskSpec, ...]
    base: str
    """The name of the file in images/ on which disk 0 is based."""
    network: NetworkSpec
    seed: SeedSpec
    cpu_mode: CpuMode = CpuMode.DEFAULT
    platform: Platform = PLAIN

    def stored(self) -> bytes:
        """The stored form. Newer fields that have their default are left out: earlier agents do not know these fields,
        and an upgrade may be rolled back."""
        unsaid: dict[str, Any] = {}
        if self.cpu_mode is CpuMode.DEFAULT:
            unsaid["cpu_mode"] = True
        if self.platform == PLAIN:
            unsaid["platform"] = True
        if self.seed.user_data is None:
            unsaid["seed"] = {"user_data"}
        unsaid["disks"] = {n: {"volume_id"} for n, disk in enumerate(self.disks) if disk.volume_id is None}
        return self.model_dump_json(exclude=unsaid).encode()


class FirstBoot(BaseModel):
    """The only secret of a machine, in a file of its own until the first boot has used it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    password_hash: str


@dataclass(frozen=True)
class Folders:
    """The paths below the agent's data folder."""

    root: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def machines(self) -> Path:
        return self.root / "machines"

    @property
    def volumes(self) -> Path:
        return self.root / "volumes"

    @property
    def retained(self) -> Path:
        return self.root / "retained"

    @property
    def backups(self) -> Path:
        """The administrator's folder: it exists if the file system of the target is mounted (`backups.store`)."""
        return self.root / "backups" / "machines"

    @property
    def copy_files(self) -> Path:
        return self.root / "copy-files"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics"

    @property
    def traffic(self) -> Path:
        return self.root / "traffic.json"

    def machine(self, vm_id: UUID) -> Path:
        return self.machines / str(vm_id)

    def disk(self, vm_id: UUID, index: int) -> Path:
        """The file of a disk that is not a volume."""
        return self.machine(vm_id) / f"disk-{index}.qcow2"

    def disk_of(self, vm_id: UUID, disk: DiskSpec) -> Path:
        """The file of any disk of a machine."""
        return self.disk(vm_id, disk.index) if disk.volume_id is None else self.volume(disk.volume_id)

    def volume(self, volume_id: UUID) -> Path:
        return self.volumes / f"{volume_id}.qcow2"

    def scratch(self, vm_id: UUID, index: int) -> Path:
        """The scratch file of a disk while it is copied: what the guest overwrites meanwhile."""
        return self.machine(vm_id) / f"backup-{index}.qcow2"

    def live(self, vm_id: UUID) -> Path:
        """A file that exists while QEMU shows the machine's disks as they are now, for a backup."""
        return self.machine(vm_id) / "backup-live.qcow2"

    def scratched(self) -> tuple[UUID, ...]:
        return tuple({UUID(path.parent.name) for path in self.machines.glob("*/backup-*.qcow2")})

    def frozen(self, vm_id: UUID) -> Path:
        """A file that exists while the guest's file systems may be frozen for a snapshot."""
        return self.machine(vm_id) / "frozen"

    def maybe_frozen(self) -> tuple[UUID, ...]:
        return tuple(UUID(path.parent.name) for path in self.machines.glob("*/frozen"))

    def restored_disk(self, vm_id: UUID, index: int) -> Path:
        """The file of a disk while it is written from a copy."""
        return self.machine(vm_id) / f"restore-{index}.qcow2"

    def new_disk(self, vm_id: UUID) -> Path:
        return self.machine(vm_id) / "reinstall-0.qcow2"

    def nvram(self, vm_id: UUID) -> Path:
        """The variables of a UEFI. The file exists once the machine was started."""
        return self.machine(vm_id) / "nvram.fd"

    def seed(self, vm_id: UUID) -> Path:
        return self.machine(vm_id) / SEED

    def rescue_seed(self, vm_id: UUID) -> Path:
        return self.machine(vm_id) / "rescue.iso"

    def in_rescue(self, vm_id: UUID) -> bool:
        return (self.machine(vm_id) / RESCUE).exists()

    def serial_log(self, vm_id: UUID) -> Path:
        return self.machine(vm_id) / "serial.log"

    def abandonment(self, vm_id: UUID) -> Path:
        return self.machine(vm_id) / ABANDONED

    def abandoned(self) -> tuple[UUID, ...]:
        return tuple(UUID(path.parent.name) for path in sorted(self.machines.glob(f"*/{ABANDONED}")))

    def create(self) -> None:
        """Create the folders. QEMU's account may pass through (x) the folders above disks and images, and cannot list
        them."""
        self.root.mkdir(parents=True, exist_ok=True)
        for folder, mode in (
            (self.images, 0o711),
            (self.machines, 0o711),
            (self.volumes, 0o711),
            (self.retained, 0o700),
            (self.metrics, 0o700),
        ):
            folder.mkdir(exist_ok=True)
            folder.chmod(mode)

    def records(self) -> dict[UUID, MachineRecord]:
        """Every machine with a record on this host. Raises `ValueError` naming a record that cannot be read."""
        found = {}
        for path in sorted(self.machines.glob(f"*/{RECORD}")):
            record = read_record(path)
            found[record.vm_id] = record
        return found

    def bases_in_use(self) -> dict[str, int]:
        """How many machines and retained disks use each image file: as a base, as a rescue system, or in the drive."""
        counts: dict[str, int] = {}
        for path in (*self.machines.glob(f"*/{RECORD}"), *self.retained.glob(f"*/{RECORD}")):
            base = read_record(path).base
            counts[base] = counts.get(base, 0) + 1
        for path in self.machines.glob(f"*/{DECISION}"):
            base = json.loads(path.read_bytes())["record"]["base"]
            counts[base] = counts.get(base, 0) + 1
        for path in self.machines.glob(f"*/{RESCUE}"):
            system = json.loads(path.read_bytes())["system"]
            counts[system] = counts.get(system, 0) + 1
        for path in self.machines.glob(f"*/{MEDIUM}"):
            medium = json.loads(path.read_bytes())["file"]
            counts[medium] = counts.get(medium, 0) + 1
        return counts


def read_record(path: Path) -> MachineRecord:
    """The machine's record in the file. Raises `ValueError` for an invalid record, `FileNotFoundError` if there is
    none."""
    try:
        return MachineRecord.model_validate(_upgraded(json.loads(path.read_bytes())))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a machine record this version can read: {error}") from error


def _upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """Convert a record of the first version, which had the topology in the NIC (now each address has one) and listed
    routed addresses one by one. So machines keep their networks when their agent is upgraded."""
    for nic in record["network"]["nics"]:
        topology = nic.pop("topology", None)
        if topology is not None:
            for address in nic["addresses"]:
                address |= {"network": address["interface"].partition("/")[0], "topology": topology}
    return record


def put_in_place(temporary: Path, path: Path, *, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Sync a finished file that another program wrote, set its mode, and rename it to its own name."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fchmod(descriptor, mode)
        if owner is not None:
            os.fchown(descriptor, *owner)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.rename(path)
    sync_folder(path.parent)


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do file work in a thread. If the caller is cancelled, this still waits for the end of the work: a write that has
    started is always completed."""
    return await trio.to_thread.run_sync(partial(work, *arguments, **named), limiter=FILE_THREADS)
