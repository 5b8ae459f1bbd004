"""The medium in a machine's CD-ROM drive.

    machines/<vm_id>/iso.json   which file of images/, and whether it is booted before the disk; none for an empty drive

Invariants: `iso.json` is written first, and the definition and the running guest's drive are changed accordingly; a
change that fails is undone; an image whose file is in a drive stays in the cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

import libvirt
from pydantic import BaseModel, ConfigDict

from svc_nodeagent.durable import sync_folder, write_whole
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.domains import Medium
from svc_nodeagent.hypervisor.files import MEDIUM, Folders
from svc_nodeagent.hypervisor.images import file_name
from svc_nodeagent.protocol import FailureCode, ImageSpec


class InsertedMedium(BaseModel):
    """`file` is a name in images/."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_id: UUID
    file: str
    boot: bool


def installer(iso: ImageSpec) -> InsertedMedium:
    """The ISO that a machine is installed from: it comes after the disk in the boot order, since the disk is empty at
    first."""
    return InsertedMedium(image_id=iso.image_id, file=file_name(iso), boot=False)


def inserted(folders: Folders, vm_id: UUID) -> InsertedMedium | None:
    try:
        return InsertedMedium.model_validate_json(_path(folders, vm_id).read_bytes())
    except FileNotFoundError:
        return None


def write_inserted(folders: Folders, vm_id: UUID, medium: InsertedMedium | None) -> None:
    path = _path(folders, vm_id)
    if medium is not None:
        write_whole(path, medium.model_dump_json().encode(), mode=0o600)
        return
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def medium_of(folders: Folders, vm_id: UUID) -> Medium | None:
    """The medium in the machine's drive. Raises `HostError(not_found)` if its file is no longer on this host."""
    found = inserted(folders, vm_id)
    if found is None:
        return None
    path = folders.images / found.file
    if not path.exists():
        raise HostError(
            FailureCode.NOT_FOUND,
            f"The ISO in the machine's CD-ROM drive is no longer on its node ({found.file}).",
            "Eject it, and insert it anew.",
        )
    return Medium(path, found.boot)


def change_drive(domain: Any, drive: ElementTree.Element) -> None:
    """Change the medium of a running guest, even if the guest has locked the drive, since the machine's owner decides.
    A guest that was started without a drive gets the medium at its next start."""
    definition = ElementTree.fromstring(domain.XMLDesc())  # noqa: S314 - from libvirt itself
    target = drive.find("target")
    assert target is not None
    if definition.find(f"./devices/disk[@device='cdrom']/target[@dev='{target.get('dev')}']") is None:
        return
    flags = libvirt.VIR_DOMAIN_AFFECT_LIVE | libvirt.VIR_DOMAIN_DEVICE_MODIFY_FORCE
    domain.updateDeviceFlags(ElementTree.tostring(drive, encoding="unicode"), flags)


def _path(folders: Folders, vm_id: UUID) -> Path:
    return folders.machine(vm_id) / MEDIUM
