"""The arrival of a machine from another host, running or not: the mark that the machine has until it has arrived, and
the undoing of an arrival that failed.

Invariant: the mark of an abandoned creation is written before anything of the machine and removed last, so everything
that an interruption or a crash leaves is removed later. The mark names the volumes that come with the machine, since
their files are outside of the machine's folder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.durable import sync_folder
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import DiskSpec, DomainState, FailureCode

UNDO_SECONDS: Final = 30.0
Remove = Callable[[UUID], Awaitable[object]]
log = structlog.get_logger(__name__)


def volumes_of(disks: Sequence[DiskSpec]) -> tuple[UUID, ...]:
    return tuple(disk.volume_id for disk in disks if disk.volume_id is not None)


async def require_nothing_of(guests: Guests, folders: Folders, vm_id: UUID, volumes: Sequence[UUID]) -> None:
    """Raise `HostError(conflict)` if this host already has any part of the machine: its domain, its folder or a
    volume."""

    def has_files() -> bool:
        return folders.machine(vm_id).exists() or any(folders.volume(each).exists() for each in volumes)

    if await in_thread(has_files) or await guests.state(vm_id) is not DomainState.ABSENT:
        raise HostError(
            FailureCode.CONFLICT,
            "This host already has files or a domain of the machine; nothing was changed.",
            "They are removed there before the machine is moved again.",
        )


def start(folders: Folders, vm_id: UUID, volumes: Sequence[UUID]) -> None:
    folder = folders.machine(vm_id)
    folder.mkdir()
    folder.chmod(0o711)
    _mark(folders, vm_id, volumes)
    sync_folder(folder.parent)


def complete(folders: Folders, vm_id: UUID) -> None:
    mark = folders.abandonment(vm_id)
    mark.unlink()
    sync_folder(mark.parent)


async def undo(folders: Folders, vm_id: UUID, volumes: Sequence[UUID], remove: Remove) -> None:
    """Undo a failed arrival. `remove` is called to remove everything of the machine from this host; what cannot be
    removed now is removed when libvirt is back."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_SECONDS):
        try:
            if await in_thread(folders.machine(vm_id).exists):
                await in_thread(_mark, folders, vm_id, volumes)
            await remove(vm_id)
        except (HostError, OSError) as error:
            log.error("move.not_undone", vm_id=str(vm_id), error=str(error))


def _mark(folders: Folders, vm_id: UUID, volumes: Sequence[UUID]) -> None:
    mark = folders.abandonment(vm_id)
    mark.write_text("".join(f"{volume_id}\n" for volume_id in volumes))
    sync_folder(mark.parent)
