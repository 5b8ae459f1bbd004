"""The files of a reinstallation, and the one step that decides it.

    reinstall-0.qcow2   the new disk, created while the old system runs on
    reinstall.json      the decision: written once the new disk is complete

Invariants: without the decision the machine is the old system, and prepared files are discarded; with it the machine is
the new one, and the next step on the machine completes it first. Every step of `complete` detects whether it was
already done, so after a crash at any point the machine is either the old system or the new one.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from svc_nodeagent.durable import PARTIAL_SUFFIX, sync_folder, write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.hypervisor import platform_state
from svc_nodeagent.hypervisor.disks import make_disk
from svc_nodeagent.hypervisor.domains import BaseImage
from svc_nodeagent.hypervisor.files import (
    DECISION,
    RECORD,
    SECRET,
    FirstBoot,
    Folders,
    MachineRecord,
    in_thread,
    read_record,
)
from svc_nodeagent.hypervisor.media import InsertedMedium, write_inserted


class _Decision(BaseModel):
    """The decided reinstallation: what the machine is from now on. Only root may read its file, since it contains the
    secret of the first boot. `medium` replaces the medium in the machine's CD-ROM drive; None leaves the drive as it
    is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    record: MachineRecord
    password_hash: str | None
    medium: InsertedMedium | None = None


async def prepare(record: MachineRecord, base: BaseImage, folders: Folders, owner: tuple[int, int]) -> None:
    """Create the new disk 0. The remains of an earlier attempt are removed: they may be based on another image."""
    await in_thread(abandon, folders, record.vm_id)
    await make_disk(record.disks[0], base, folders.new_disk(record.vm_id), owner)
    fault_point("reinstall.prepared")


def decide(record: MachineRecord, password_hash: str | None, medium: InsertedMedium | None, folders: Folders) -> None:
    decision = _Decision(record=record, password_hash=password_hash, medium=medium)
    # an agent that was rolled back to an earlier release can then read the decision
    unsaid = {"medium"} if medium is None else None
    write_whole(_path(folders, record.vm_id), decision.model_dump_json(exclude=unsaid).encode(), mode=0o600)
    fault_point("reinstall.decided")


def current(folders: Folders, vm_id: UUID) -> MachineRecord:
    """The machine's current record: the record in the decision, if a decision has not been completed. Raises
    `FileNotFoundError`."""
    try:
        return _Decision.model_validate_json(_path(folders, vm_id).read_bytes()).record
    except FileNotFoundError:
        return read_record(folders.machine(vm_id) / RECORD)


def is_decided(folders: Folders, vm_id: UUID) -> bool:
    return _path(folders, vm_id).exists()


def decided(folders: Folders) -> tuple[UUID, ...]:
    """The machines with a decision that a crash has left incomplete."""
    return tuple(UUID(path.parent.name) for path in sorted(folders.machines.glob(f"*/{DECISION}")))


def complete(folders: Folders, vm_id: UUID) -> None:
    """Replace the old system, whose guest is off, by the new one."""
    decision = _Decision.model_validate_json(_path(folders, vm_id).read_bytes())
    folder, new = folders.machine(vm_id), folders.new_disk(vm_id)
    if new.exists():
        new.replace(folders.disk(vm_id, 0))
        sync_folder(folder)
    fault_point("reinstall.disk")
    platform_state.remove(folders, vm_id)
    if decision.password_hash is None:
        (folder / SECRET).unlink(missing_ok=True)
    else:
        first_boot = FirstBoot(password_hash=decision.password_hash)
        write_whole(folder / SECRET, first_boot.model_dump_json().encode(), mode=0o600)
    if decision.medium is not None:
        write_inserted(folders, vm_id, decision.medium)
    write_whole(folder / RECORD, decision.record.stored(), mode=0o600)
    fault_point("reinstall.recorded")
    _path(folders, vm_id).unlink()
    sync_folder(folder)


def abandon(folders: Folders, vm_id: UUID) -> None:
    """Remove prepared files without a decision."""
    new = folders.new_disk(vm_id)
    new.unlink(missing_ok=True)
    new.with_name(new.name + PARTIAL_SUFFIX).unlink(missing_ok=True)


def _path(folders: Folders, vm_id: UUID) -> Path:
    return folders.machine(vm_id) / DECISION
