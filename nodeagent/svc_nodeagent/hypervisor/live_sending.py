"""The source of a live migration: the guest runs here until the target has received it completely, and continues here
if anything fails.

Invariant: when a `send` ends, however it ends, libvirt's job is over and the guest is resumed if it is here.

Rejected: libvirt's tunnelled migration, which needs no sockets for memory and disks. It copies no disks by NBD, and the
nodes share no storage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from uuid import UUID
from xml.etree import ElementTree

import libvirt
import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.hypervisor.connection import CALL_TIMEOUT_SECONDS
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.domains import disk_target
from svc_nodeagent.hypervisor.files import SECRET, FirstBoot, Folders, MachineRecord, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import ImageCache
from svc_nodeagent.hypervisor.live_guest import LOOK_SECONDS, call_domain, resume_migrated_guest
from svc_nodeagent.hypervisor.live_streams import SILENCE_SECONDS, Sockets, SocketsOf, listen, relay_accepted
from svc_nodeagent.hypervisor.live_words import FirstBootData, Place, cut_short, dial_streams, line, unreadable
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import DomainState, FailureCode, LivePlace, LiveResult, LiveStreams, VmLiveSend

SETTLE_SECONDS: Final = 60.0
"""How long libvirt may take to end its job."""
_PROGRESS_SECONDS: Final = 1.0
log = structlog.get_logger(__name__)


class LiveSending:
    def __init__(
        self,
        *,
        guests: Guests,
        folders: Folders,
        naming: Naming,
        images: ImageCache,
        definitions: Definitions,
        open_stream: OpenStream,
        sockets: SocketsOf,
    ) -> None:
        self._guests = guests
        self._folders = folders
        self._naming = naming
        self._images = images
        self._definitions = definitions
        self._open_stream = open_stream
        self._sockets = sockets
        self._leaving: dict[UUID, trio.CancelScope] = {}
        self._turns: dict[UUID, trio.Lock] = {}

    async def send(self, operation: VmLiveSend, report: Report) -> LiveResult:
        """Move the guest. Other steps of the machine do not wait for this: a change of its firewall rules must not be
        delayed by hours."""
        vm_id = operation.vm_id
        # A lock of its own instead of the machine's turn. It makes `settle` wait for the end of a `send`.
        async with self._turns.setdefault(vm_id, trio.Lock()):
            record = await self._definitions.record(vm_id)
            if await self._guests.state(vm_id) is not DomainState.RUNNING:
                raise HostError(FailureCode.CONFLICT, "The guest does not run, so it was not moved.")
            with trio.CancelScope() as self._leaving[vm_id]:
                try:
                    why = await self._send(record, operation.streams, report)
                finally:
                    del self._leaving[vm_id]
                    # Shielded, because even a cancelled `send` must leave no job behind: libvirt would refuse the next
                    # move.
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + SETTLE_SECONDS):
                        settled = await self._settled(vm_id)
                # An error of libvirt alone does not decide: the call may fail although the guest has left.
                if why is not None and settled.place is not LivePlace.LEFT:
                    raise cut_short(why)
                return settled
        # This is reached only if the scope was cancelled, which only `settle` does.
        raise cut_short("it was given up")

    async def settle(self, vm_id: UUID) -> LiveResult:
        """End a `send` that is under way, and say where the guest is."""
        if (leaving := self._leaving.get(vm_id)) is not None:
            leaving.cancel()
        async with self._turns.setdefault(vm_id, trio.Lock()):
            return await self._settled(vm_id)

    async def _send(self, record: MachineRecord, streams: LiveStreams, report: Report) -> str | None:
        """Returns why libvirt has failed, or None."""
        vm_id, sockets = record.vm_id, self._sockets(record.vm_id)
        if len(streams.disks) != len(record.disks):
            raise HostError(
                FailureCode.CONFLICT, "The machine's disks differ from those to be moved; it was not moved."
            )
        async with sockets.opened(), dial_streams(self._open_stream, streams) as (words, memory, disks):
            # The two agents first exchange a few lines on the stream that libvirt uses afterwards: the target sends the
            # paths of its files, the source sends the seed and the secret of the first boot, and the target answers
            # that it is ready.
            place = Place.model_validate_json(await line(words))
            await self._send_luggage(vm_id, words)
            fault_point("live.luggage_sent")
            if await line(words) != b"ready":
                raise unreadable()
            parameters = await self._parameters(record, place, sockets)
            async with trio.open_nursery() as nursery:
                # A silence limit makes sense only for libvirt's own connection, which has a keepalive. Memory and disks
                # may be silent for long: for example a disk's stream, once the disk is copied and the guest writes
                # nothing.
                for path, carrying, silence in (
                    (sockets.libvirt, (words,), SILENCE_SECONDS),
                    (sockets.memory, (memory,), None),
                    (sockets.disk, disks, None),
                ):
                    nursery.start_soon(relay_accepted, await listen(path), carrying, silence)
                nursery.start_soon(self._tell, vm_id, report)
                fault_point("live.sending")
                try:
                    why = await self._migrate(vm_id, sockets, parameters)
                finally:
                    nursery.cancel_scope.cancel()
            fault_point("live.sent")
        return why

    async def _migrate(self, vm_id: UUID, sockets: Sockets, parameters: dict[str, Any]) -> str | None:
        # PAUSED: the guest arrives paused, even if it was running here, and continues when the record names the target.
        # PERSIST_DEST: libvirt gives the guest a definition there once it is complete, from which `look` sees that it
        # has arrived. NON_SHARED_INC: the disks are copied, without the image on which they are based, because the
        # target has that already. AUTO_CONVERGE: a guest that writes memory faster than it can be sent is slowed down
        # until the rest fits.
        flags = (
            libvirt.VIR_MIGRATE_LIVE
            | libvirt.VIR_MIGRATE_PEER2PEER
            | libvirt.VIR_MIGRATE_PERSIST_DEST
            | libvirt.VIR_MIGRATE_PAUSED
            | libvirt.VIR_MIGRATE_NON_SHARED_INC
            | libvirt.VIR_MIGRATE_AUTO_CONVERGE
        )

        def migrate(domain: Any) -> str | None:
            try:
                domain.migrateToURI3(f"qemu+unix:///system?socket={sockets.libvirt}", parameters, flags)
            except libvirt.libvirtError as error:
                # Returned and not raised: here an error code for a lost connection means the connection to the target,
                # but `guests` would take it for our own connection.
                return str(error.get_error_message() or error)
            return None

        return await self._guests.on_domain(vm_id, "virDomainMigrateToURI3", migrate)

    async def _parameters(self, record: MachineRecord, place: Place, sockets: Sockets) -> dict[str, Any]:
        # The running definition is for the arriving guest, the stored one is for libvirt at the target to keep.
        # MIGRATABLE is the form that libvirt accepts from another host; SECURE includes secrets.
        live, stored = await self._guests.on_domain(
            record.vm_id,
            "virDomainGetXMLDesc",
            lambda domain: (
                str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_MIGRATABLE | libvirt.VIR_DOMAIN_XML_SECURE)),
                str(domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE)),
            ),
            timeout=CALL_TIMEOUT_SECONDS,
        )
        if place.domain != self._naming.domain(record.vm_id):
            raise HostError(
                FailureCode.CONFLICT,
                "The other host names its domains differently (another prefix), so no machine can be moved there live.",
            )
        base = self._images.base_of(record.base).path
        renamed = {
            self._folders.machine(record.vm_id): place.machine,
            self._folders.volumes: place.volumes,
            base: place.base,
        }
        return {
            libvirt.VIR_MIGRATE_PARAM_URI: f"unix://{sockets.memory}",
            libvirt.VIR_MIGRATE_PARAM_DISKS_URI: f"unix://{sockets.disk}",
            libvirt.VIR_MIGRATE_PARAM_MIGRATE_DISKS: [disk_target(disk.index) for disk in record.disks],
            libvirt.VIR_MIGRATE_PARAM_DEST_XML: _elsewhere(live, renamed),
            libvirt.VIR_MIGRATE_PARAM_PERSIST_XML: _elsewhere(stored, renamed),
        }

    async def _send_luggage(self, vm_id: UUID, stream: trio.abc.Stream) -> None:
        folder = self._folders.machine(vm_id)
        seed = await in_thread(self._folders.seed(vm_id).read_bytes)
        password_hash = None
        if await in_thread((folder / SECRET).exists):
            first_boot = FirstBoot.model_validate_json(await in_thread((folder / SECRET).read_bytes))
            password_hash = first_boot.password_hash
        boot_data = FirstBootData(password_hash=password_hash, seed_bytes=len(seed))
        await stream.send_all(boot_data.model_dump_json().encode() + b"\n" + seed)

    async def _tell(self, vm_id: UUID, report: Report) -> None:
        """Report progress, as long as libvirt reports any."""
        while True:
            await trio.sleep(_PROGRESS_SECONDS)
            try:
                job = await self._guests.on_domain(
                    vm_id, "virDomainGetJobStats", lambda domain: dict(domain.jobStats()), timeout=CALL_TIMEOUT_SECONDS
                )
            except HostError:
                continue  # The job is ending, or has ended.
            total, left = job.get("data_total", 0), job.get("data_remaining", 0)
            if total:
                await report(min(95, 95 * (total - left) // total), "sending the running guest and its disks")

    async def _settled(self, vm_id: UUID) -> LiveResult:
        """End libvirt's job, and resume the guest if it is here."""
        # An aborted job does not end at once, and while it exists libvirt refuses the next move.
        with trio.fail_after(SETTLE_SECONDS):
            while True:
                if await call_domain(self._guests, vm_id, "virDomainAbortJob", _job_is_over) is not False:
                    break
                await trio.sleep(LOOK_SECONDS)
        place = await call_domain(self._guests, vm_id, "virDomainResume", resume_migrated_guest)
        state = await self._guests.state(vm_id)
        return LiveResult(vm_id=vm_id, place=place or LivePlace.ABSENT, state=state)


def _job_is_over(domain: Any) -> bool:
    """Whether libvirt's job is over. If there is one, it is aborted, and the caller asks again until it is over."""
    try:
        if not domain.isActive() or domain.jobInfo()[0] == libvirt.VIR_DOMAIN_JOB_NONE:
            return True
        domain.abortJob()
    except libvirt.libvirtError as error:
        # The job has ended between the two calls, or cannot be aborted at this moment: look again.
        if error.get_error_code() != libvirt.VIR_ERR_OPERATION_INVALID:
            raise
    return False


def _elsewhere(xml: str, renamed: dict[Path, Path]) -> str:
    """The definition with the target's file names. What libvirt chose for the running guest (a pseudo terminal, the
    socket of a channel or of VNC) is left out: the target's libvirt chooses its own."""
    domain = ElementTree.fromstring(xml)  # noqa: S314 - from libvirt itself
    for device in domain.iterfind("./devices/*"):
        if device.tag in ("serial", "console", "channel"):
            for source in device.findall("source"):
                device.remove(source)
            device.attrib.pop("tty", None)
        if device.tag == "graphics":
            for element in device.iter():
                element.attrib.pop("socket", None)
    for element in domain.iter():
        for attribute in ("file", "path"):
            if (named := element.get(attribute)) is not None:
                element.set(attribute, _named_there(named, renamed))
    if (nvram := domain.find("./os/nvram")) is not None and nvram.text:
        nvram.text = _named_there(nvram.text, renamed)
    return ElementTree.tostring(domain, encoding="unicode")


def _named_there(file: str, renamed: dict[Path, Path]) -> str:
    path = Path(file)
    for here, there in renamed.items():
        if path == here:
            return str(there)
        if here in path.parents:
            return str(there / path.relative_to(here))
    return file
