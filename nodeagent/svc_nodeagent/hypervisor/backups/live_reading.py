"""Reads the disks of a running guest while the guest writes to them: most of a backup is read this way. This does not
slow down the guest's writes, but the blocks are not all of one moment. So what the guest writes meanwhile is recorded
(`bitmaps`) and read again.

The server of the disks ends with the block of `live_of`. If the agent dies before, `end_job` ends the server, as it
does with a backup job.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.backups import bitmaps
from svc_nodeagent.hypervisor.backups.reading import DiskSnapshot, end_job, socket_folder, start_marks, written_since
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.domains import disk_target
from svc_nodeagent.hypervisor.files import Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guests import Guests

_END_SECONDS: Final = 30.0
log = structlog.get_logger(__name__)


@asynccontextmanager
async def live_of(
    record: MachineRecord, guests: Guests, folders: Folders, since: Mapping[int, str], keep: Collection[str]
) -> AsyncIterator[DiskSnapshot]:
    """A live view of the disks. Its bitmaps (`marks`) were started before anything was read. If QEMU could start no
    bitmap, the view shows no disk, since writes during the reading would be missed."""
    vm_id = record.vm_id
    paths = {disk.index: folders.disk_of(vm_id, disk) for disk in record.disks}
    await end_job(vm_id, guests)
    async with socket_folder(vm_id) as sockets:
        address = sockets / "live"
        try:
            # If this agent dies, the file tells the next one that this machine has a server to end.
            await in_thread(folders.live(vm_id).touch)
            marks = await start_marks(vm_id, guests, paths, {*since.values(), *keep})
            exports = await _shown(vm_id, guests, {index: paths[index] for index in marks}, address)
            written = await written_since(vm_id, guests, paths, address, {i: since[i] for i in exports if i in since})
            yield DiskSnapshot(exports, False, {index: marks[index] for index in exports}, written)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
                try:
                    await guests.on_domain(vm_id, "nbd-server-stop", bitmaps.hide)
                except HostError as error:
                    log.warning("backup.live_not_ended", vm_id=str(vm_id), error=error.message)
                await in_thread(folders.live(vm_id).unlink, missing_ok=True)


async def _shown(vm_id: UUID, guests: Guests, paths: Mapping[int, Path], address: Path) -> dict[int, tuple[Path, str]]:
    if not paths:
        return {}
    try:
        names = await guests.on_domain(
            vm_id, "nbd-server-start", lambda domain: bitmaps.show_disks(domain, paths, address)
        )
    except ConnectionLost:
        raise
    except HostError as error:
        log.warning("backup.not_shown_live", vm_id=str(vm_id), error=error.message)
        return {}
    return {index: (address, name) for index, name in names.items()}


async def changed_bytes(vm_id: UUID, guests: Guests, paths: Mapping[int, Path], since: Mapping[int, str]) -> int | None:
    """How many bytes were written since these marks, and are still to be read; None if that is not known for every
    disk."""

    def count(domain: Any) -> int | None:
        return bitmaps.count(domain, paths, since)

    try:
        return await guests.on_domain(vm_id, "query-named-block-nodes", count)
    # A lost connection fails the backup, which is then repeated. After any other error the backup only has to read
    # more.
    except ConnectionLost:
        raise
    except HostError:
        return None


async def disk_wait_seconds(vm_id: UUID, guests: Guests, indexes: Collection[int]) -> float | None:
    """The seconds that the guest's requests to these disks have taken since its start; None if not known."""
    # QEMU adds up the times of all requests, in nanoseconds, so the sum grows faster than the clock when several
    # requests are under way.

    def total(domain: Any) -> int:
        told = [domain.blockStatsFlags(disk_target(index)) for index in indexes]
        names = ("rd_total_times", "wr_total_times", "flush_total_times")
        return sum(int(each.get(name, 0)) for each in told for name in names)

    try:
        return await guests.on_domain(vm_id, "virDomainBlockStatsFlags", total) / 1e9
    except ConnectionLost:
        raise
    except HostError:
        return None
