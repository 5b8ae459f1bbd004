"""Resumes guests that their host has paused because a write to their disk failed, once there is space again.

QEMU keeps the failed write and tries it again when the guest is resumed, so nothing of the guest is lost. The agent
does this by itself: the controller gets the pause and its end as it gets any change of state.

Invariant: a guest that is paused for another reason (by hand, say) is left alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import Connection, Libvirt
from svc_nodeagent.hypervisor.domains import domain_cause
from svc_nodeagent.hypervisor.files import GIB, Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import StateCause

LOOK_SECONDS = 5.0
LONGEST_PAUSE = 300.0
log = structlog.get_logger(__name__)


@dataclass
class _BackOff:
    """When to resume a guest next that was resumed and has paused again, on Trio's clock."""

    pause: float
    until: float


async def keep_resuming(connection: Connection, guests: Guests, folders: Folders, naming: Naming) -> None:
    """Check every few seconds, for ever."""
    waiting: dict[UUID, _BackOff] = {}
    while True:
        await trio.sleep(LOOK_SECONDS)
        try:
            await _resume(connection, guests, folders, naming, waiting)
        except (HostError, OSError) as error:
            log.warning("paused_guests.not_looked_at", error=str(error))


async def _resume(
    connection: Connection, guests: Guests, folders: Folders, naming: Naming, waiting: dict[UUID, _BackOff]
) -> None:
    if not connection.is_connected:
        return
    now = trio.current_time()
    paused = await connection.call(lambda connected: _paused(connected, naming))
    for vm_id in [vm_id for vm_id, tried in waiting.items() if tried.until + tried.pause < now and vm_id not in paused]:
        del waiting[vm_id]
    if not paused or not await in_thread(_has_space, folders):
        return
    for vm_id in paused:
        tried = waiting.get(vm_id)
        if tried is not None and now < tried.until:
            continue
        pause = LOOK_SECONDS if tried is None else min(2 * tried.pause, LONGEST_PAUSE)
        waiting[vm_id] = _BackOff(pause, now + pause)
        try:
            if await guests.resume_after_disk_error(vm_id):
                log.info("paused_guests.resumed", vm_id=str(vm_id))
        except HostError as error:
            # A guest that cannot be resumed must not delay the others.
            log.warning("paused_guests.not_resumed", vm_id=str(vm_id), error=error.message)


def _paused(connected: Libvirt, naming: Naming) -> tuple[UUID, ...]:
    def after_disk_error(domain: Any) -> bool:
        try:
            return domain_cause(*domain.state()) is StateCause.IO_ERROR
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
            return False  # the guest has vanished since it was listed

    found = connected.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_PAUSED)
    ours = ((naming.machine(UUID(domain.UUIDString()), domain.name()), domain) for domain in found)
    return tuple(vm_id for vm_id, domain in ours if vm_id is not None and after_disk_error(domain))


def _has_space(folders: Folders) -> bool:
    """Whether more than a reserve is free: a GiB, or a fiftieth of a small file system. With less free space, the
    guest's next write would fail at once."""
    filesystem = os.statvfs(folders.machines)
    reserve = min(GIB, filesystem.f_blocks * filesystem.f_frsize // 50)
    return filesystem.f_bavail * filesystem.f_frsize > reserve
