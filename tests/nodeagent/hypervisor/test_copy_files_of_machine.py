"""Files of a machine's backup, by way of its target and its host, while the machine is there as it was."""

from __future__ import annotations

import base64
from pathlib import Path
from uuid import uuid4

import pytest

from svc_nodeagent.hypervisor import LibvirtHost
from svc_nodeagent.protocol import (
    BackupResult,
    CopiedFolder,
    CopiedPart,
    VmBackup,
    VmCreate,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
)
from tests.nodeagent.hypervisor.builders import image, machine, network, rescue_image, silent

pytestmark = [pytest.mark.system, pytest.mark.isolated, pytest.mark.own_host]

KEY = "the key of the store"


async def test_a_file_of_a_machine_is_had_out_of_its_backup(
    host: LibvirtHost, demo_image: Path, rescue_system: Path, data_folder: Path, files: dict[str, Path]
) -> None:
    (data_folder / "backups" / "machines").mkdir(parents=True)
    files[f"file:{rescue_system}"] = rescue_system
    spec = machine(network())
    vm_id, disk = spec.vm_id, data_folder / "machines" / str(spec.vm_id) / "disk-0.qcow2"
    await host.perform(VmCreate(machine=spec, image=image(demo_image), start=False), silent)
    copy = await host.perform(VmBackup(vm_id=vm_id, copy_id=uuid4(), password=KEY), silent)
    assert isinstance(copy, BackupResult)
    before = disk.stat()

    told: list[str] = []

    async def report(_: int, message: str) -> None:
        told.append(message)

    system = rescue_image(rescue_system)
    opening = VmFilesOpen(vm_id=vm_id, copy_id=copy.copy_id, password=KEY, disks=copy.disks, system=system)
    await host.perform(opening, report)
    listing = VmFilesList(vm_id=vm_id, copy_id=copy.copy_id, volume=0, path="/etc", offset=0)
    listed = await host.perform(listing, silent)
    assert isinstance(listed, CopiedFolder)
    assert "passwd" in [each.name for each in listed.entries]
    reading = VmFilesRead(vm_id=vm_id, copy_id=copy.copy_id, volume=0, path="/etc/passwd", offset=0, length=1000)
    part = await host.perform(reading, silent)
    assert isinstance(part, CopiedPart)
    assert base64.b64decode(part.data).startswith(b"root:")
    await host.perform(VmFilesClose(vm_id=vm_id, copy_id=copy.copy_id), silent)

    assert "reading disk 0" in told
    assert (disk.stat().st_ino, disk.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
