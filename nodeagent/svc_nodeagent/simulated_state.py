"""The state of a simulated host, and what happens to it from outside: a crash, a power cut, a domain removed by hand.

With a state file, it survives the death of the process, as domains survive the death of a real agent: the file is
replaced atomically at every change.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self
from uuid import UUID

import trio
from pydantic import Field

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import (
    CachedImage,
    CopiedFolder,
    CopiedPart,
    CopiedVolume,
    CopyEntry,
    CopyFilesOperation,
    CopyVolumeState,
    DomainChanged,
    DomainState,
    Done,
    EntryKind,
    FailureCode,
    KeptDisk,
    LivePlace,
    OpenedCopy,
    OperationResult,
    StateCause,
    VmFilesClose,
    VmFilesList,
    VmFilesOpen,
    VmFilesRead,
    Wire,
)
from svc_nodeagent.simulated_machines import SimulatedMachine
from svc_nodeagent.simulated_network import NetworkState, SimulatedNetworks
from svc_nodeagent.simulated_volumes import SimulatedVolume

_CHANGES: Final = 10_000

FILES: Final = {
    "/etc/hostname": b"simulated\n",
    "/etc/nginx/nginx.conf": b"events {}\n" * 200,
    "/home/alice/%FF notes.txt": b"kept\n",
    "/var/lib/large": bytes(range(256)) * 6_000,
}
_VOLUME: Final = CopiedVolume(
    number=1, device="vda1", type="ext4", size_bytes=1024**3, state=CopyVolumeState.MOUNTED, system=True
)


class _State(Wire):
    machines: dict[UUID, SimulatedMachine] = Field(default_factory=dict)
    images: dict[UUID, CachedImage] = Field(default_factory=dict)
    retained_disks: tuple[str, ...] = ()
    volumes: dict[UUID, SimulatedVolume] = Field(default_factory=dict)
    kept_disks: tuple[KeptDisk, ...] = ()
    network: NetworkState = Field(default_factory=NetworkState)


class SimulatedCopyFiles:
    """The files of copies: every copy has the same few, on one volume."""

    def __init__(self) -> None:
        self._open: set[tuple[UUID, UUID]] = set()

    def perform(self, operation: CopyFilesOperation) -> OperationResult:
        """Answer an operation on a copy's files. Raises `HostError` as a real host does."""
        which = (operation.vm_id, operation.copy_id)
        match operation:
            case VmFilesOpen():
                self._open.add(which)
                return OpenedCopy(vm_id=operation.vm_id, copy_id=operation.copy_id, volumes=(_VOLUME,))
            case VmFilesClose():
                self._open.discard(which)
                return Done()
        if which not in self._open:
            raise HostError(FailureCode.INTERRUPTED, "The backup's files are not open on the machine's node.")
        path = "/" + operation.path.strip("/")
        match operation:
            case VmFilesList():
                entries = _entries(path)
                return CopiedFolder(
                    volumes=(_VOLUME,), volume=1, path=path, entries=entries, total=len(entries), cut=False
                )
            case VmFilesRead():
                content = FILES.get(path)
                if content is None:
                    raise HostError(FailureCode.NOT_FOUND, "The backup has no such file or folder.")
                part = content[operation.offset : operation.offset + operation.length]
                data = base64.b64encode(part).decode()
                return CopiedPart(volume=1, path=path, size_bytes=len(content), modified=1_700_000_000, data=data)


def _entries(path: str) -> tuple[CopyEntry, ...]:
    above = path.rstrip("/") + "/"
    found: dict[str, CopyEntry] = {}
    for file, content in FILES.items():
        if file.startswith(above):
            name, _, below = file.removeprefix(above).partition("/")
            kind, size = (EntryKind.FOLDER, 0) if below else (EntryKind.FILE, len(content))
            mode = 0o755 if below else 0o644
            found[name] = CopyEntry(name=name, kind=kind, size_bytes=size, modified=1_700_000_000, mode=mode)
    if not found:
        raise HostError(FailureCode.NOT_FOUND, "The backup has no such file or folder.")
    return tuple(found[name] for name in sorted(found))


@dataclass(kw_only=True)
class SimulatedState:
    """Machines, images, volumes and networks. Reports each change of a guest's state (`domain_changes`)."""

    state_file: Path | None = None
    machines: dict[UUID, SimulatedMachine] = field(default_factory=dict)
    images: dict[UUID, CachedImage] = field(default_factory=dict)
    retained_disks: tuple[str, ...] = ()
    """Disks that were kept before there were volumes; only their names are known."""
    volumes: dict[UUID, SimulatedVolume] = field(default_factory=dict)
    kept_disks: tuple[KeptDisk, ...] = ()
    networks: SimulatedNetworks = field(default_factory=lambda: SimulatedNetworks(NetworkState()))

    def __post_init__(self) -> None:
        self._sending, self._changes = trio.open_memory_channel[DomainChanged](_CHANGES)
        self._load()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sending.close()

    def set_state(self, vm_id: UUID, state: DomainState, reason: str, cause: StateCause | None = None) -> None:
        """Change a guest's state from outside, as a crash or a `poweroff` inside it would."""
        machine = self.machines[vm_id]
        started = datetime.now(UTC) if state is DomainState.RUNNING else None
        changed: dict[str, object] = {"state": state, "cause": cause, "defined": True, "started_at": started}
        if state is DomainState.RUNNING:
            changed["place"] = LivePlace.HERE
        self.machines[vm_id] = machine.model_copy(update=changed)
        self._save()
        if machine.state is not state:
            self._tell(vm_id, state, reason, cause)

    def lose_power(self) -> None:
        """Simulate a power cut: every guest is off, and the agent, which has started again as well, reports each
        machine that it finds."""
        for vm_id, machine in self.machines.items():
            off = {"state": DomainState.STOPPED, "cause": None, "started_at": None}
            self.machines[vm_id] = machine.model_copy(update=off)
            if machine.defined:
                self._tell(vm_id, DomainState.STOPPED, "seen when libvirt answered again", None)
        self._save()

    def undefine(self, vm_id: UUID) -> None:
        """Simulate the removal of a domain by hand: record and disks stay."""
        self._change(vm_id, {"state": DomainState.STOPPED, "cause": None, "defined": False, "started_at": None})
        self._tell(vm_id, DomainState.ABSENT, "removed from the host", None)

    def lose_files(self, vm_id: UUID) -> None:
        """Simulate the loss of a machine: its domain and all of its files are removed."""
        del self.machines[vm_id]
        self._save()
        self._tell(vm_id, DomainState.ABSENT, "removed from the host", None)

    def _tell(self, vm_id: UUID, state: DomainState, reason: str, cause: StateCause | None) -> None:
        change = DomainChanged(vm_id=vm_id, state=state, reason=reason, cause=cause, at=datetime.now(UTC))
        self._sending.send_nowait(change)

    @property
    def caught_up(self) -> bool:
        """Whether the listener of `domain_changes` has taken every change, and waits for more."""
        channel = self._sending.statistics()
        return channel.current_buffer_used == 0 and channel.tasks_waiting_receive > 0

    async def domain_changes(self) -> AsyncIterator[DomainChanged]:
        async for change in self._changes:
            yield change

    def _machine(self, vm_id: UUID) -> SimulatedMachine:
        machine = self._recorded(vm_id)
        if not machine.defined:
            raise HostError(FailureCode.NOT_FOUND, f"This host has no machine {vm_id}.")
        return machine

    def _recorded(self, vm_id: UUID) -> SimulatedMachine:
        """As `_machine`, including one whose domain is gone: a start or an update defines it again."""
        try:
            return self.machines[vm_id]
        except KeyError:
            raise HostError(FailureCode.NOT_FOUND, f"This host has no machine {vm_id}.") from None

    def _change(self, vm_id: UUID, change: dict[str, object]) -> None:
        self.machines[vm_id] = self._recorded(vm_id).model_copy(update=change)
        self._save()

    def _load(self) -> None:
        if self.state_file is not None and self.state_file.exists():
            state = _State.model_validate_json(self.state_file.read_bytes())
            self.machines, self.images = dict(state.machines), dict(state.images)
            self.retained_disks = state.retained_disks
            self.volumes, self.kept_disks = dict(state.volumes), state.kept_disks
            self.networks = SimulatedNetworks(state.network)
        self._copy_files = SimulatedCopyFiles()

    def _save(self) -> None:
        if self.state_file is None:
            return
        state = _State(
            machines=self.machines,
            images=self.images,
            retained_disks=self.retained_disks,
            volumes=self.volumes,
            kept_disks=self.kept_disks,
            network=self.networks.state(),
        )
        new = self.state_file.with_suffix(".new")
        new.write_text(state.model_dump_json())
        fault_point("simulated.saving")
        new.rename(self.state_file)
