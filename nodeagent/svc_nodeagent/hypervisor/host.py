"""The libvirt host: implements `svc_nodeagent.host.Host` with libvirt, QEMU and nftables.

    async with LibvirtHost.open(Path("/var/lib/svc"), open_stream=...) as host:
        await host.perform(operation, report)

Invariants: the host can be opened while libvirt is down, and connects as soon as possible; if the connection is lost
during an operation, it is established again and the operation, which is idempotent, is repeated.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog
import trio

from svc_nodeagent import outbound
from svc_nodeagent.host import HostError, OpenStream, Report
from svc_nodeagent.hypervisor import inventory
from svc_nodeagent.hypervisor.acceleration import Acceleration
from svc_nodeagent.hypervisor.backups.copies import MachineBackups
from svc_nodeagent.hypervisor.backups.new_machine import create_from_copy
from svc_nodeagent.hypervisor.backups.orphans import end_orphans
from svc_nodeagent.hypervisor.connection import Connection, ConnectionLost
from svc_nodeagent.hypervisor.consoles import SerialLines, stream_of
from svc_nodeagent.hypervisor.copy_files.opened import CopyFiles
from svc_nodeagent.hypervisor.definitions import Definitions
from svc_nodeagent.hypervisor.drives import Drives
from svc_nodeagent.hypervisor.files import Folders, in_thread
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.hypervisor.images import SILENCE_TIMEOUT_SECONDS, ImageCache
from svc_nodeagent.hypervisor.libvirt_loop import EVENT_LOOP
from svc_nodeagent.hypervisor.live_moving import LiveMoves
from svc_nodeagent.hypervisor.machine_events import MachineEvents
from svc_nodeagent.hypervisor.machines import Machines
from svc_nodeagent.hypervisor.metrics import Measurements, keep_sampling
from svc_nodeagent.hypervisor.moving import Moves
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network.apply import HostNetwork
from svc_nodeagent.hypervisor.paused import keep_resuming
from svc_nodeagent.hypervisor.preflight import network_features, preflight
from svc_nodeagent.hypervisor.remaking import Remaking
from svc_nodeagent.hypervisor.rescue import Rescues
from svc_nodeagent.hypervisor.snapshots import Snapshots
from svc_nodeagent.hypervisor.traffic import HostTraffic
from svc_nodeagent.hypervisor.turns import Turns
from svc_nodeagent.hypervisor.volume_files import kept_disks, observed_volumes
from svc_nodeagent.hypervisor.volumes import Volumes
from svc_nodeagent.hypervisor.windows import WindowsGuests
from svc_nodeagent.protocol import (
    Capacity,
    CertificateRenew,
    ConsoleKind,
    ConsoleOpen,
    DomainChanged,
    Done,
    FailureCode,
    ImagePull,
    ImageRemove,
    ImageResult,
    InventoryResult,
    MachineResult,
    MetricsResult,
    NodeFacts,
    NodeInventory,
    NodeNetProbe,
    NodeOperation,
    NodePreflight,
    NodeTraffic,
    NodeUpgrade,
    OperationResult,
    PreflightResult,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
    VmCpuSet,
    VmCreateFromCopy,
    VmDelete,
    VmDescribe,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
    VmIso,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
    VmMetrics,
    VmMigrate,
    VmReinstall,
    VmRescue,
    VmRescueEnd,
    VmResize,
    VmRestore,
    VmSend,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
    VmWindowsPassword,
    VmWindowsReport,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
)

ATTEMPTS = 3
LIBVIRT_URI = "qemu:///system"

_ROOM_PERIOD = 60.0
log = structlog.get_logger()


class LibvirtHost:
    """A `Host`. Created by `open`."""

    def __init__(
        self,
        folders: Folders,
        naming: Naming,
        network: HostNetwork,
        traffic: HostTraffic,
        open_stream: OpenStream,
        uri: str,
        bridge: str | None,
        image_networks: Sequence[outbound.Network],
        controller: str | None,
    ) -> None:
        self._folders = folders
        self._naming = naming
        self._controller = controller
        self._bridge = bridge
        self._network = network
        self._traffic = traffic
        self._connection = Connection(uri)
        self._acceleration = Acceleration(folders.root / "accelerator.json")
        self._images = ImageCache(
            folders,
            open_stream,
            open_client=partial(outbound.client, timeout=SILENCE_TIMEOUT_SECONDS, allowed=image_networks),
        )
        self._measurements = Measurements(folders.metrics)
        self._guests = Guests(self._connection)
        self._windows = WindowsGuests(self._guests)
        definitions = Definitions(
            guests=self._guests,
            folders=folders,
            naming=naming,
            images=self._images,
            network=network,
            acceleration=self._acceleration,
        )
        turns = Turns(self._guests, folders)
        self._machines = Machines(
            guests=self._guests,
            folders=folders,
            images=self._images,
            network=network,
            definitions=definitions,
            turns=turns,
        )
        self._remaking = Remaking(
            guests=self._guests,
            folders=folders,
            images=self._images,
            acceleration=self._acceleration,
            definitions=definitions,
            turns=turns,
        )
        self._drives = Drives(
            guests=self._guests, folders=folders, images=self._images, definitions=definitions, turns=turns
        )
        self._rescues = Rescues(
            guests=self._guests, folders=folders, images=self._images, definitions=definitions, turns=turns
        )
        self._backups = MachineBackups(self._guests, folders, self._images, definitions, turns.steps)
        self._copy_files = CopyFiles(folders, self._images, self._acceleration)
        self._snapshots = Snapshots(self._guests, folders, turns.steps)
        self._volumes = Volumes(self._guests, folders, definitions, turns.steps)
        self._moves = Moves(
            guests=self._guests,
            folders=folders,
            naming=naming,
            images=self._images,
            acceleration=self._acceleration,
            open_stream=open_stream,
            steps=turns.steps,
            remove=self._machines.remove_within,
        )
        self._live_moves = LiveMoves(
            guests=self._guests,
            folders=folders,
            naming=naming,
            images=self._images,
            network=network,
            definitions=definitions,
            open_stream=open_stream,
            steps=turns.steps,
            remove=self._machines.remove_within,
        )
        self._lines = SerialLines(self._guests, folders)
        self._events = MachineEvents(
            connection=self._connection,
            folders=folders,
            naming=naming,
            guests=self._guests,
            machines=self._machines,
            lines=self._lines,
            after_connecting=(
                self._read_emulator,
                self._machines.remove_abandoned,
                self._backups.end_abandoned,
                self._snapshots.thaw_abandoned,
                self._remaking.complete_reinstallations,
            ),
        )
        self._restore_failure: str | None = None
        self._emulator: inventory.Emulator | None = None
        self._nursery: trio.Nursery

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        folder: Path,
        *,
        open_stream: OpenStream,
        naming: Naming | None = None,
        uri: str = LIBVIRT_URI,
        bridge: str | None = None,
        image_networks: Sequence[outbound.Network] = (),
        controller: str | None = None,
    ) -> AsyncIterator[LibvirtHost]:
        """A host that keeps its files in `folder`, which QEMU's user must be able to pass through. `bridge` holds the
        uplink; bridged NICs are plugged into it. `image_networks`: networks, besides the public Internet, that images
        may be fetched from. `controller`: the name or address of its gateway, which no machine's network may take.

        The host is ready for operations: servers that a dead agent has left, and that would lock a disk, are ended; the
        network is restored from the records; the accelerator is chosen. Raises `ValueError` if the record of a machine
        cannot be read. A process can have one host open at a time."""
        folders = Folders(folder)
        await in_thread(folders.create)
        await in_thread(end_orphans, folders.root)
        records = await in_thread(folders.records)
        naming = naming or Naming()
        traffic = await HostTraffic.open(folders.traffic, naming)
        networks = {vm_id: record.network for vm_id, record in records.items()}
        network = HostNetwork(naming, networks, controller=controller, before_removal=traffic.before_removal)
        host = cls(folders, naming, network, traffic, open_stream, uri, bridge, image_networks, controller)
        await host._restore_network()
        async with trio.open_nursery() as loop:
            await loop.start(EVENT_LOOP.run)
            try:
                async with trio.open_nursery() as host._nursery:
                    await host._nursery.start(host._events.run)
                    await host._nursery.start(host._connection.run, host._events)
                    await host._nursery.start(host._copy_files.run)
                    host._nursery.start_soon(keep_sampling, host._connection, naming, host._measurements)
                    host._nursery.start_soon(traffic.run)
                    host._nursery.start_soon(network.keep)
                    host._nursery.start_soon(keep_resuming, host._connection, host._guests, folders, naming)
                    host._nursery.start_soon(host._keep_room)
                    await host._choose_accelerator()
                    try:
                        yield host
                    finally:
                        with trio.CancelScope(shield=True, deadline=trio.current_time() + 10):
                            await in_thread(host._measurements.flush)
                            await traffic.close()
                        host._nursery.cancel_scope.cancel()
            finally:
                loop.cancel_scope.cancel()

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        """Perform the operation. If the connection to libvirt is lost, an operation that changes something is repeated
        for as long as its caller waits, and a query up to `ATTEMPTS` times."""
        for attempt in itertools.count(1):
            try:
                return await self._perform(operation, report)
            except ConnectionLost as lost:
                if attempt >= ATTEMPTS and not operation.facts.recorded:
                    raise
                log.warning("operation.retried", operation=operation.op, error=lost.message)
                await report(0, "libvirt cannot be reached on this node; trying again")
            except (OSError, ValueError) as error:
                log.exception("operation.failed", operation=operation.op)
                raise HostError(
                    FailureCode.HOST, f"The host failed: {error}", "See the agent's log on the node."
                ) from error
        raise AssertionError("unreachable")

    async def capacity(self) -> Capacity:
        return await inventory.capacity(self._folders)

    async def facts(self) -> NodeFacts:
        if self._emulator is None and self._connection.is_connected:
            await self._read_emulator()
        emulator = self._emulator or inventory.NO_EMULATOR
        return await inventory.facts(emulator, self._acceleration, self._naming, self._bridge, self._controller)

    def domain_changes(self) -> AsyncIterator[DomainChanged]:
        return self._events.changes()

    async def open_console(self, vm_id: UUID, kind: ConsoleKind) -> trio.abc.Stream:
        if kind is ConsoleKind.VNC:
            try:
                return stream_of(await self._guests.open_screen(vm_id))
            except HostError as error:
                raise _console_failed(error) from error
        return await self._lines.watch(vm_id, self._nursery)

    async def _perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        match operation:
            case VmDelete():
                result = await self._machines.perform(operation, report)
                await in_thread(self._measurements.forget, operation.vm_id)
                return result
            case VmResize() | VmCpuSet() | VmReinstall():
                return await self._remaking.perform(operation, report)
            case VmIso():
                await self._drives.change(operation, report)
                return Done()
            case VmRescue() | VmRescueEnd():
                return await self._rescues.perform(operation, report)
            case VmWindowsReport():
                return await self._windows.report(operation.vm_id)
            case VmWindowsPassword():
                await self._windows.set_password(operation.vm_id, operation.account, operation.password)
                return Done()
            case VmSnapshotTake() | VmSnapshotRestore() | VmSnapshotDelete():
                return await self._snapshots.perform(operation)
            case VolumeCreate() | VolumeAttach() | VolumeDetach() | VolumeGrow() | VolumeDelete():
                return await self._volumes.perform(operation)
            case VmBackup():
                return await self._backups.backup(operation, report)
            case VmRestore():
                return await self._backups.restore(operation, report)
            case VmCreateFromCopy():
                return await create_from_copy(
                    operation, report, guests=self._guests, machines=self._machines, backups=self._backups
                )
            case VmBackupsForget():
                await self._backups.forget(operation)
                return Done()
            case VmBackupsRemove():
                await self._backups.remove(operation)
                return Done()
            case VmFilesOpen() | VmFilesList() | VmFilesRead() | VmFilesClose():
                return await self._copy_files.perform(operation, report)
            case VmMigrate():
                return await self._moves.take_in(operation, report)
            case VmSend():
                return await self._moves.send(operation, report)
            case VmLiveSend() | VmLiveReceive() | VmLiveSettle() | VmLiveLook() | VmLiveFinish():
                return await self._live_moves.perform(operation, report)
            case VmDescribe():
                return MachineResult(machine=await self._machines.describe(operation.vm_id))
            case VmMetrics():
                return await self._metrics(operation)
            case NodeNetProbe():
                return await self._network.probe()
            case NodeTraffic():
                return await self._traffic.result()
            case NodeInventory():
                return await self._inventory()
            case NodePreflight():
                return await self._preflight()
            case ImagePull():
                return ImageResult(image=await self._images.ensure(operation.image, report))
            case ImageRemove():
                await self._images.remove(operation.image_id)
                return Done()
            case ConsoleOpen() | CertificateRenew() | NodeUpgrade():
                raise HostError(FailureCode.UNSUPPORTED, f"{operation.op} is for the agent, not for its hypervisor.")
            case _:
                return await self._machines.perform(operation, report)

    async def _inventory(self) -> InventoryResult:
        return InventoryResult(
            facts=await self.facts(),
            capacity=await self.capacity(),
            domains=await inventory.domains(self._connection, self._naming, self._folders),
            images=await self._images.cached(),
            retained_disks=await in_thread(inventory.retained_disks, self._folders),
            volumes=await in_thread(observed_volumes, self._folders),
            kept_disks=await in_thread(kept_disks, self._folders),
        )

    async def _preflight(self) -> PreflightResult:
        if self._restore_failure is not None:
            await self._restore_network()
        return PreflightResult(
            checks=await preflight(
                connection=self._connection,
                acceleration=self._acceleration,
                folders=self._folders,
                restore_failure=self._restore_failure,
                bridge=self._bridge,
            )
        )

    async def _metrics(self, operation: VmMetrics) -> MetricsResult:
        resolution, points = await in_thread(
            self._measurements.points,
            operation.vm_id,
            resolution_seconds=operation.resolution_seconds,
            hours=operation.hours,
            now=time.time(),
        )
        return MetricsResult(vm_id=operation.vm_id, resolution_seconds=resolution, points=points)

    async def _restore_network(self) -> None:
        """Restore the networks of all machines. If that fails, the taps stay down and preflight reports the failure;
        every preflight and every start of a machine tries again."""
        try:
            self._network.plug_into((await network_features(self._bridge)).uplink(self._bridge))
            await self._network.restore()
            self._restore_failure = None
        except (HostError, OSError) as error:
            self._restore_failure = str(error)
            log.error("network.not_restored", error=str(error))

    async def _choose_accelerator(self) -> None:
        """Choose the accelerator before the first operation, which would otherwise have to wait for it. If that fails
        (because the disk is full, for example), the host opens nevertheless."""
        try:
            await self._acceleration.verdict()
        except (HostError, OSError) as error:
            log.warning("accelerator.not_chosen", error=str(error))

    async def _read_emulator(self) -> None:
        self._emulator = await inventory.emulator(self._connection)

    async def _keep_room(self) -> None:
        """Every minute, have the image cache make room if the disk is nearly full, before a guest's write fails."""
        while True:
            try:
                for image_id in await self._images.make_room():
                    log.info("image.removed_for_space", image_id=str(image_id))
            except (OSError, ValueError) as error:
                log.warning("image.room_not_made", error=str(error))
            await trio.sleep(_ROOM_PERIOD)


def _console_failed(error: HostError) -> HostError:
    if error.code is FailureCode.CONFLICT:
        return HostError(FailureCode.CONFLICT, "The machine is not running, so it has no screen.", "Start it first.")
    return error
