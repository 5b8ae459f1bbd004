"""Changing the medium of a machine's CD-ROM drive: in its record, in its definition, and in the running guest."""

from __future__ import annotations

from uuid import UUID

import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor.connection import ConnectionLost
from svc_nodeagent.hypervisor.definitions import PUT_BACK_SECONDS, Definitions
from svc_nodeagent.hypervisor.domains import cd_drive
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache, file_name
from svc_nodeagent.hypervisor.media import InsertedMedium, change_drive, inserted, medium_of, write_inserted
from svc_nodeagent.hypervisor.shutdown import OFF
from svc_nodeagent.hypervisor.turns import Turns
from svc_nodeagent.protocol import VmIso

log = structlog.get_logger()


class Drives:
    def __init__(
        self, *, guests: Guests, folders: Folders, images: ImageCache, definitions: Definitions, turns: Turns
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._images = images
        self._definitions = definitions
        self._turns = turns

    async def change(self, operation: VmIso, report: Report) -> None:
        vm_id, image = operation.vm_id, operation.image
        await self._definitions.record(vm_id)
        wanted = None
        if image is not None:
            await self._images.ensure(image, report)
            wanted = InsertedMedium(image_id=image.image_id, file=file_name(image), boot=operation.boot)
        async with self._turns.steps(vm_id):
            before = await in_thread(inserted, self._folders, vm_id)
            try:
                await self._change(vm_id, wanted)
            except ConnectionLost:
                raise  # the same operation continues once libvirt is back
            except BaseException:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                    await self._put_back(vm_id, before)
                raise

    async def _change(self, vm_id: UUID, wanted: InsertedMedium | None) -> None:
        record = await self._definitions.record(vm_id)
        await in_thread(write_inserted, self._folders, vm_id, wanted)
        fault_point("iso.recorded")
        await self._definitions.define(record)
        fault_point("iso.defined")
        if await self._guests.state(vm_id) not in OFF:
            drive = cd_drive(await in_thread(medium_of, self._folders, vm_id))
            await self._guests.on_domain(
                vm_id, "virDomainUpdateDeviceFlags", lambda domain: change_drive(domain, drive)
            )

    async def _put_back(self, vm_id: UUID, before: InsertedMedium | None) -> None:
        try:
            await self._change(vm_id, before)
        except (HostError, OSError) as error:
            log.error("iso.not_put_back", vm_id=str(vm_id), error=str(error))
