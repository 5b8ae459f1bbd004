"""A host without a hypervisor: machines in memory that behave as libvirt's would, for load and fault tests.

Delays and failures are drawn from a seed. The host's content is its state (`simulated_state`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import trio

from svc_nodeagent.calls import host_call
from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError, Report
from svc_nodeagent.protocol import (
    PLATFORM_FEATURES,
    BackupResult,
    CachedImage,
    Capacity,
    CertificateRenew,
    CheckStatus,
    ConsoleKind,
    ConsoleOpen,
    DeleteResult,
    DiskSpec,
    DomainResult,
    DomainState,
    Done,
    FailureCode,
    GuestTold,
    ImagePull,
    ImageRemove,
    ImageResult,
    ImageSpec,
    InventoryResult,
    KeptDisk,
    LivePlace,
    LiveResult,
    MachineSpec,
    NetworkResult,
    NetworkSpec,
    NodeFacts,
    NodeInventory,
    NodeNetProbe,
    NodeOperation,
    NodePreflight,
    NodeTraffic,
    NodeUpgrade,
    OperationResult,
    PreflightCheck,
    PreflightResult,
    ReleaseResult,
    SentDisks,
    StateCause,
    VmBackup,
    VmBackupsForget,
    VmBackupsRemove,
    VmCpuSet,
    VmCreate,
    VmCreateFromCopy,
    VmDelete,
    VmDescribe,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
    VmForceStop,
    VmIso,
    VmLiveFinish,
    VmLiveLook,
    VmLiveReceive,
    VmLiveSend,
    VmLiveSettle,
    VmMetrics,
    VmMigrate,
    VmNetApply,
    VmNetRelease,
    VmReboot,
    VmReinstall,
    VmRescue,
    VmRescueEnd,
    VmReset,
    VmResize,
    VmRestore,
    VmSend,
    VmSetPassword,
    VmShutdown,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
    VmStart,
    VmUpdate,
    VmWindowsPassword,
    VmWindowsReport,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
    VolumeOperation,
    WindowsReport,
)
from svc_nodeagent.simulated_console import open_console
from svc_nodeagent.simulated_machines import (
    SimulatedMachine,
    copied,
    describe,
    in_rescue,
    live_result,
    metrics,
    new_machine,
    observed_domain,
    require_running,
    snapshot,
    without_password,
)
from svc_nodeagent.simulated_network import FEATURES
from svc_nodeagent.simulated_state import SimulatedState
from svc_nodeagent.simulated_volumes import SimulatedVolume, changed, machine_removed, observed


@dataclass(frozen=True)
class Behaviour:
    """How the simulated host delays and fails. Seconds are drawn evenly between the two ends."""

    seed: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)
    pull_seconds: tuple[float, float] = (0.0, 0.0)
    failure_rate: float = 0.0
    cpus: int = 64
    memory_mib: int = 512 * 1024
    disk_gib: float = 10_000.0


@dataclass
class SimulatedHost(SimulatedState):
    """A `Host` without a hypervisor. `performed` lists the operations that were executed, for tests that none is
    executed twice."""

    hostname: str
    host_uuid: UUID
    behaviour: Behaviour = field(default_factory=Behaviour)
    windows: dict[UUID, WindowsReport] = field(default_factory=dict)
    """The first-boot reports of Windows guests."""
    performed: list[NodeOperation] = field(default_factory=list)
    network_features: tuple[str, ...] = FEATURES
    host_addresses: tuple[str, ...] = ()
    platform_features: tuple[str, ...] = PLATFORM_FEATURES

    def __post_init__(self) -> None:
        super().__post_init__()
        self._random = random.Random(self.behaviour.seed)  # noqa: S311 - a simulation

    def populate(self, machines: int) -> None:
        """Adds running machines, as if created long ago."""
        for number in range(machines):
            vm_id = UUID(int=self._random.getrandbits(128), version=4)
            self.machines[vm_id] = SimulatedMachine(
                vm_id=vm_id,
                name=f"simulated-{number}",
                vcpus=1,
                memory_mib=512,
                state=DomainState.RUNNING,
                started_at=datetime.now(UTC),
            )
        self._save()

    async def capacity(self) -> Capacity:
        await trio.lowlevel.checkpoint()
        running = [each for each in self.machines.values() if each.state is DomainState.RUNNING]
        used = sum(each.memory_mib for each in running)
        return Capacity(
            cpus=self.behaviour.cpus,
            memory_mib=self.behaviour.memory_mib,
            memory_free_mib=max(0, self.behaviour.memory_mib - used),
            disk_gib=self.behaviour.disk_gib,
            # Machines use less disk than they were promised, as on a real host, where disks are thin.
            disk_free_gib=max(0.0, self.behaviour.disk_gib - 2.0 * len(self.machines)),
            load_1m=round(0.05 * len(running), 2),
        )

    async def facts(self) -> NodeFacts:
        await trio.lowlevel.checkpoint()
        return NodeFacts(
            hostname=self.hostname,
            host_uuid=self.host_uuid,
            agent_version="simulated",
            os="simulated",
            kernel="0",
            libvirt="0",
            hypervisor="simulated",
            cpu_model="simulated",
            accelerator="simulated",
            machine_types=("simulated",),
            network_features=self.network_features,
            network_lacks={each: "It is not simulated." for each in FEATURES if each not in self.network_features},
            host_addresses=self.host_addresses,
            platform_features=self.platform_features,
            platform_lacks={
                each: "It is not simulated." for each in PLATFORM_FEATURES if each not in self.platform_features
            },
        )

    async def open_console(self, vm_id: UUID, kind: ConsoleKind) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        machine = self._machine(vm_id)
        if machine.state is not DomainState.RUNNING:
            raise HostError(FailureCode.CONFLICT, f"Machine {machine.name} is not running.")
        return open_console(machine.name, kind)

    async def perform(self, operation: NodeOperation, report: Report) -> OperationResult:
        await self._take_time(operation, report)
        if self._random.random() < self.behaviour.failure_rate:
            raise HostError(FailureCode.HOST, f"A simulated failure of {operation.op}.", "Try again.")
        fault_point("simulated.before")
        try:
            with host_call(f"simulated {operation.op}"):
                result = await self._carry_out(operation)
        except OSError as error:
            self._load()  # If the change cannot be stored, it has not happened: go back to the stored state.
            raise HostError(FailureCode.HOST, f"The host cannot write: {error.strerror}.") from error
        self.performed.append(operation)
        fault_point("simulated.after")
        return result

    async def _take_time(self, operation: NodeOperation, report: Report) -> None:
        pulls = (
            isinstance(operation, VmCreate | VmCreateFromCopy | VmReinstall | ImagePull)
            and operation.image.image_id not in self.images
        )
        seconds = self._random.uniform(*self.behaviour.pull_seconds) if pulls else 0.0
        if seconds:
            for percent in range(0, 60, 20):
                await report(percent, "reading the image")
                await trio.sleep(seconds / 3)
        if isinstance(operation, VmCreate):
            await report(60, "preparing the disk")
        await trio.sleep(self._random.uniform(*self.behaviour.seconds))

    async def _carry_out(self, operation: NodeOperation) -> OperationResult:
        match operation:
            case VmCreate():
                return self._create(operation)
            case VmCreateFromCopy(machine=machine, image=image, start=start):
                return self._create(VmCreate(machine=machine, image=image, start=start))
            case VmStart():
                self._recorded(operation.vm_id)
                self.networks.apply(operation.vm_id, operation.network)
                return self._moved(operation.vm_id, DomainState.RUNNING, "started")
            case VmShutdown():
                self._machine(operation.vm_id)
                return self._moved(operation.vm_id, DomainState.STOPPED, "shut down", StateCause.GUEST)
            case VmForceStop():
                self._machine(operation.vm_id)
                return self._moved(operation.vm_id, DomainState.STOPPED, "stopped at once", StateCause.FORCED)
            case VmReboot() | VmReset():
                if self._machine(operation.vm_id).state is not DomainState.RUNNING:
                    raise HostError(FailureCode.CONFLICT, "The machine is not running.")
                return self._moved(operation.vm_id, DomainState.RUNNING, "restarted")
            case VmDelete():
                return self._delete(operation)
            case VmUpdate():
                change = {"name": operation.name, "vcpus": operation.vcpus, "memory_mib": operation.memory_mib}
                self._change(operation.vm_id, change | {"defined": True})
                return DomainResult(vm_id=operation.vm_id, state=self.machines[operation.vm_id].state)
            case VmResize():
                return self._resize(operation)
            case VmCpuSet(vm_id=vm_id, cpu_mode=mode, restart=restart):
                state = DomainState.RUNNING if restart else self._machine(vm_id).state
                self._change(vm_id, {"cpu_mode": mode})
                return self._moved(vm_id, state, "given another processor")
            case VmReinstall():
                return self._reinstall(operation)
            case VmBackup(vm_id=vm_id, copy_id=copy_id, forget=forget):
                self._recorded(vm_id)
                disks = copied(self.machines[vm_id])
                return BackupResult(
                    vm_id=vm_id,
                    copy_id=copy_id,
                    disks=disks,
                    stored_bytes=0,
                    frozen=False,
                    forgotten=forget,
                    state="none",
                )
            case VmRestore(vm_id=vm_id, platform=platform):
                if self._machine(vm_id).state is not DomainState.STOPPED:
                    raise HostError(FailureCode.CONFLICT, "The machine is not off.")
                spec = self._machine(vm_id).spec
                if platform is not None and spec is not None:
                    self._change(vm_id, {"spec": spec.model_copy(update={"platform": platform})})
                self._change(vm_id, {"snapshots": ()})
                return DomainResult(vm_id=vm_id, state=DomainState.STOPPED)
            case VmFilesOpen() | VmFilesList() | VmFilesRead() | VmFilesClose():
                self._recorded(operation.vm_id)
                return self._copy_files.perform(operation)
            case VmSnapshotTake() | VmSnapshotRestore() | VmSnapshotDelete():
                change, result = snapshot(self._machine(operation.vm_id), operation)
                self._change(operation.vm_id, change)
                return result
            case VmIso(vm_id=vm_id, image=image):
                if image is not None:
                    self._pull(image)
                self._change(vm_id, {"iso": image.image_id if image is not None else None})
                return Done()
            case VmRescue() | VmRescueEnd():
                self._change(operation.vm_id, {"rescue": in_rescue(operation)})
                self.networks.apply(operation.vm_id, operation.network)
                return self._moved(operation.vm_id, DomainState.RUNNING, "started")
            case VmBackupsForget() | VmBackupsRemove():
                return Done()
            case VolumeCreate() | VolumeAttach() | VolumeDetach() | VolumeGrow() | VolumeDelete():
                return self._change_volumes(operation)
            case VmMigrate():
                return self._take_in(operation)
            case VmSend(vm_id=vm_id):
                if self._machine(vm_id).state is not DomainState.STOPPED:
                    raise HostError(FailureCode.CONFLICT, "The machine is not off.")
                return SentDisks(vm_id=vm_id, disks=copied(self.machines[vm_id]))
            case VmLiveReceive():
                return self._receive(operation)
            case VmLiveSend(vm_id=vm_id):
                require_running(self._machine(vm_id))
                self._change(vm_id, {"place": LivePlace.LEFT})
                self._moved(vm_id, DomainState.STOPPED, "migrated")
                return live_result(vm_id, self.machines[vm_id])
            case VmLiveSettle(vm_id=vm_id) | VmLiveLook(vm_id=vm_id):
                return live_result(vm_id, self.machines.get(vm_id))
            case VmLiveFinish(vm_id=vm_id, network=network):
                self._change(vm_id, {"place": LivePlace.HERE})
                self.networks.apply(vm_id, network)
                return self._moved(vm_id, DomainState.RUNNING, "resumed")
            case VmSetPassword():
                if self._machine(operation.vm_id).state is not DomainState.RUNNING:
                    raise HostError(FailureCode.CONFLICT, "The machine is not running.")
                return Done()
            case VmWindowsReport(vm_id=vm_id):
                return self.windows.get(vm_id, WindowsReport(vm_id=vm_id, booted=False))
            case VmWindowsPassword(vm_id=vm_id):
                if vm_id not in self.windows or self._machine(vm_id).state is not DomainState.RUNNING:
                    raise HostError(FailureCode.CONFLICT, "No agent of a Windows answers.")
                return Done()
            case VmDescribe():
                return describe(self._recorded(operation.vm_id), self.networks)
            case VmMetrics():
                return metrics(self._machine(operation.vm_id), operation, self._random)
            case VmNetApply():
                return self._apply(operation)
            case VmNetRelease():
                removed = self.networks.release(operation.vm_id, operation.addresses)
                self._save()
                return ReleaseResult(vm_id=operation.vm_id, removed=removed)
            case NodeNetProbe():
                running = {each.vm_id: each.state is DomainState.RUNNING for each in self.machines.values()}
                return self.networks.probe(running)
            case NodeTraffic():
                result = self.networks.traffic(
                    each.vm_id for each in self.machines.values() if each.state is DomainState.RUNNING
                )
                self._save()
                return result
            case NodeInventory():
                return await self._inventory()
            case NodePreflight():
                return PreflightResult(
                    checks=(
                        PreflightCheck(name="libvirt", status=CheckStatus.PASSED, message="simulated"),
                        PreflightCheck(name="accelerator", status=CheckStatus.PASSED, message="simulated"),
                        PreflightCheck(name="nftables", status=CheckStatus.PASSED, message="simulated"),
                        PreflightCheck(name="disk", status=CheckStatus.PASSED, message="simulated"),
                        PreflightCheck(name="firmware", status=CheckStatus.PASSED, message="simulated"),
                    )
                )
            case ImagePull():
                return ImageResult(image=self._pull(operation.image))
            case ImageRemove():
                self.images.pop(operation.image_id, None)
                self._save()
                return Done()
            case ConsoleOpen() | CertificateRenew() | NodeUpgrade():
                raise HostError(FailureCode.UNSUPPORTED, f"{operation.op} is for the agent, not for its hypervisor.")

    def _create(self, operation: VmCreate) -> DomainResult:
        """Like every operation it succeeds if the machine exists, so repeating an interrupted creation is harmless."""
        spec: MachineSpec = operation.machine
        self._pull(operation.image)
        if spec.vm_id not in self.machines:
            kept = spec.model_copy(update={"seed": without_password(spec.seed)})
            self.machines[spec.vm_id] = new_machine(kept, operation.image.digest)
        self.networks.apply(spec.vm_id, spec.network)
        state = DomainState.RUNNING if operation.start else self.machines[spec.vm_id].state
        return self._moved(spec.vm_id, state, "created")

    def _resize(self, operation: VmResize) -> DomainResult:
        machine = self._machine(operation.vm_id)
        change: dict[str, object] = {"vcpus": operation.vcpus, "memory_mib": operation.memory_mib}
        if machine.spec is not None:
            first, *others = machine.spec.disks
            grown = first.model_copy(update={"size_gib": max(first.size_gib, operation.disk_gib)})
            change["spec"] = machine.spec.model_copy(update={"disks": (grown, *others)})
        self._change(operation.vm_id, change)
        state = DomainState.RUNNING if operation.restart else machine.state
        return self._moved(operation.vm_id, state, "resized")

    def _take_in(self, operation: VmMigrate) -> SentDisks:
        """Receive a machine. All disks are empty here, so no stream is opened."""
        spec = operation.machine
        if spec.vm_id in self.machines:
            raise HostError(FailureCode.CONFLICT, "This host already has files or a domain of the machine.")
        self._pull(operation.image)
        self.machines[spec.vm_id] = new_machine(spec, operation.image.digest, operation.cpu_mode)
        self.networks.apply(spec.vm_id, NetworkSpec(nics=()))
        for disk in spec.disks:
            if disk.volume_id is not None:
                came = SimulatedVolume(size_gib=disk.size_gib, vm_id=spec.vm_id, index=disk.index)
                self.volumes[disk.volume_id] = came
        self._save()
        self._tell(spec.vm_id, DomainState.STOPPED, "defined", None)
        return SentDisks(vm_id=spec.vm_id, disks=copied(self.machines[spec.vm_id]))

    def _receive(self, operation: VmLiveReceive) -> LiveResult:
        """As `_take_in`, for a running guest: it is paused until the record says that it is here."""
        empty = VmMigrate(
            machine=operation.machine, image=operation.image, cpu_mode=operation.cpu_mode, stream_token=""
        )
        self._take_in(empty)
        self._change(operation.vm_id, {"place": LivePlace.ARRIVED})
        self.set_state(operation.vm_id, DomainState.PAUSED, "received")
        return live_result(operation.vm_id, self.machines[operation.vm_id])

    def _reinstall(self, operation: VmReinstall) -> DomainResult:
        machine = self._machine(operation.vm_id)
        self._pull(operation.image)
        change: dict[str, object] = {"image_digest": operation.image.digest, "snapshots": ()}
        if machine.spec is not None:
            new = {"seed": without_password(operation.seed), "platform": operation.platform}
            change["spec"] = machine.spec.model_copy(update=new)
        self._change(operation.vm_id, change)
        self.networks.apply(operation.vm_id, operation.network)
        return self._moved(operation.vm_id, DomainState.RUNNING, "reinstalled")

    def _delete(self, operation: VmDelete) -> DeleteResult:
        machine = self.machines.pop(operation.vm_id, None)
        retained: tuple[str, ...] = ()
        self.volumes = machine_removed(self.volumes, operation.vm_id, operation.destroy_volumes)
        if machine is not None and not operation.destroy_disks:
            size_gib = machine.spec.disks[0].size_gib if machine.spec is not None else 1
            name = f"retained/{machine.vm_id}/disk-0.qcow2"
            kept = KeptDisk(name=name, vm_id=machine.vm_id, vm_name=machine.name, size_bytes=size_gib * 2**30)
            self.kept_disks, retained = (*self.kept_disks, kept), (name,)
        addresses = self.networks.remove(operation.vm_id)
        self._save()
        return DeleteResult(vm_id=operation.vm_id, removed_addresses=addresses, retained_disks=retained)

    def _change_volumes(self, operation: VolumeOperation) -> OperationResult:
        vm_id = getattr(operation, "vm_id", None)
        machine = self._recorded(vm_id) if vm_id is not None else None
        self.volumes, self.kept_disks = changed(self.volumes, self.kept_disks, operation)
        if machine is None or machine.spec is None:
            self._save()
            return Done()
        first = machine.spec.disks[0]
        added = tuple(
            DiskSpec(index=volume.index, size_gib=volume.size_gib, volume_id=volume_id)
            for volume_id, volume in self.volumes.items()
            if volume.vm_id == vm_id and volume.index is not None
        )
        disks = (first, *sorted(added, key=lambda disk: disk.index))
        self._change(machine.vm_id, {"spec": machine.spec.model_copy(update={"disks": disks})})
        return DomainResult(vm_id=machine.vm_id, state=machine.state) if operation.op != "volume.grow" else Done()

    async def _inventory(self) -> InventoryResult:
        return InventoryResult(
            facts=await self.facts(),
            capacity=await self.capacity(),
            domains=tuple(observed_domain(each) for each in self.machines.values() if each.defined),
            images=tuple(self.images.values()),
            retained_disks=(*self.retained_disks, *(disk.name for disk in self.kept_disks)),
            volumes=observed(self.volumes),
            kept_disks=self.kept_disks,
        )

    def _pull(self, image: ImageSpec) -> CachedImage:
        kept = self.images.get(image.image_id)
        if kept is None or kept.digest != image.digest:
            kept = self.images[image.image_id] = CachedImage(
                image_id=image.image_id,
                format=image.format,
                size_bytes=image.size_bytes or 2**30,
                digest=image.digest,
                pulled_at=datetime.now(UTC),
            )
            self._save()
        return kept

    def _apply(self, operation: VmNetApply) -> NetworkResult:
        running = self._machine(operation.vm_id).state is DomainState.RUNNING
        generation = self.networks.apply(operation.vm_id, operation.network)
        self._save()
        told = GuestTold.TOLD if running else GuestTold.AT_BOOT
        return NetworkResult(vm_id=operation.vm_id, generation=generation, told=told)

    def _moved(self, vm_id: UUID, state: DomainState, reason: str, cause: StateCause | None = None) -> DomainResult:
        self.set_state(vm_id, state, reason, cause)
        return DomainResult(vm_id=vm_id, state=state)
