"""The record of a machine, and what is derived from it: libvirt's definition, the seed, and the network.

Invariant: the record is written first and the rest follows from it, so anything that a crash leaves incomplete is
completed by deriving it again.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc_nodeagent.durable import write_whole
from svc_nodeagent.faults import fault_point
from svc_nodeagent.hypervisor import disks, media, rescued
from svc_nodeagent.hypervisor.acceleration import Acceleration, qemu_user
from svc_nodeagent.hypervisor.domains import domain_xml
from svc_nodeagent.hypervisor.files import RECORD, SECRET, FirstBoot, Folders, MachineRecord, in_thread, read_record
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.seeds import write_seed
from svc_nodeagent.protocol import NetworkSpec

PUT_BACK_SECONDS = 10.0
"""Seconds for restoring the previous state after a failed change."""
log = structlog.get_logger()


class Definitions:
    """Writes records and what is derived from them. The callers hold the machine's lock (`turns`), so no other step of
    the machine runs meanwhile."""

    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        network: HostNetwork,
        acceleration: Acceleration,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._naming = naming
        self._images = images
        self._network = network
        self._acceleration = acceleration

    async def exists(self, vm_id: UUID) -> bool:
        return await in_thread(self._path(vm_id).exists)

    async def record(self, vm_id: UUID) -> MachineRecord:
        try:
            return await in_thread(read_record, self._path(vm_id))
        except FileNotFoundError as error:
            raise absent(vm_id) from error

    async def write(self, record: MachineRecord, password_hash: str | None = None) -> None:
        """Write the record. `password_hash` is the hash of the password for the first boot; None leaves an existing
        hash in place."""
        await in_thread(self._write, record, password_hash)

    async def with_network(self, vm_id: UUID, network: NetworkSpec) -> MachineRecord:
        return await self.not_older((await self.record(vm_id)).model_copy(update={"network": network}))

    async def not_older(self, record: MachineRecord) -> MachineRecord:
        """This record, with the network of the stored record if that network is newer."""
        if not await self.exists(record.vm_id):
            return record
        known = await self.record(record.vm_id)
        if known.network.generation <= record.network.generation:
            return record
        return record.model_copy(update={"network": known.network})

    async def apply_network(self, record: MachineRecord) -> None:
        """Write the record with its network, then apply the network on the host. After a crash in between, the next
        start of the agent applies what the record says. If the host refuses the network, the record gets its previous
        network back."""
        before = await self.record(record.vm_id)
        await self.write(record)
        fault_point("network.recorded")
        try:
            await self._network.apply(record.vm_id, record.network)
        except BaseException:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + PUT_BACK_SECONDS):
                await self.write(before)
            raise

    async def define(self, record: MachineRecord) -> None:
        verdict = await self._acceleration.verdict()
        base = self._images.base_of(record.base)
        await in_thread(disks.require, record, base, self._folders)
        boot = await in_thread(rescued.boot_of, self._folders, record.vm_id)
        medium = await in_thread(media.medium_of, self._folders, record.vm_id)
        xml = domain_xml(record, base, self._folders, self._naming, verdict.accelerator, boot, medium)
        await self._guests.define(xml)

    async def define_again(self, record: MachineRecord) -> None:
        if await self._guests.is_transient(record.vm_id):
            await self.define(record)
            log.warning("machine.defined_again", vm_id=str(record.vm_id))

    async def write_seed(self, record: MachineRecord) -> None:
        secret = await in_thread(_read_secret, self._folders.machine(record.vm_id) / SECRET)
        await write_seed(record, secret, self._folders.seed(record.vm_id), qemu_user().owner)
        await rescued.write_seed(record, self._folders, qemu_user().owner)

    def _write(self, record: MachineRecord, password_hash: str | None) -> None:
        folder = self._folders.machine(record.vm_id)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)
        if password_hash is not None and not (folder / RECORD).exists():
            first_boot = FirstBoot(password_hash=password_hash)
            write_whole(folder / SECRET, first_boot.model_dump_json().encode(), mode=0o600)
        write_whole(folder / RECORD, record.stored(), mode=0o600)

    def _path(self, vm_id: UUID) -> Path:
        return self._folders.machine(vm_id) / RECORD


def _read_secret(path: Path) -> str | None:
    try:
        return FirstBoot.model_validate_json(path.read_bytes()).password_hash
    except FileNotFoundError:
        return None
