"""Snapshots inside a machine's qcow2 disks. A snapshot has the same id in all disks of the machine.

If the guest runs, QEMU takes the snapshot of all disks in one transaction; the guest's file systems are frozen
meanwhile if its agent answers. If the guest is off, qemu-img takes it. A snapshot contains only disks, never memory: if
the guest was not frozen, a restored machine starts as after a power cut.

Invariants: a snapshot that was reported as taken is in every disk that the machine then had; a restoration starts only
if the snapshot is in every current disk, and repeating an interrupted restoration completes it; while a guest may be
frozen, a mark exists, so that after a crash the next agent thaws the guest.

Why: docs/decisions/0030-snapshots-and-backup-format.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import libvirt_qemu
import structlog
import trio

from svc_nodeagent.faults import fault_point
from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.disks import grow, inspect
from svc_nodeagent.hypervisor.files import RECORD, Folders, MachineRecord, in_thread, read_record
from svc_nodeagent.hypervisor.freezing import thaw, while_frozen
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.programs import run_program
from svc_nodeagent.hypervisor.shutdown import OFF
from svc_nodeagent.protocol import (
    DomainResult,
    Done,
    FailureCode,
    OperationResult,
    SnapshotOperation,
    SnapshotResult,
    VmSnapshotDelete,
    VmSnapshotRestore,
    VmSnapshotTake,
)

_DISK_SECONDS: Final = 1200.0
"""Seconds for one disk. The work depends on a table whose size is a fixed share of the disk, 64 KiB per GiB."""
_THAW_SECONDS: Final = 30.0
log = structlog.get_logger(__name__)
Steps = Callable[[UUID], AbstractAsyncContextManager[None]]


class Snapshots:
    """Takes, restores and deletes snapshots. Inside a block of `steps(vm_id)`, no other step of that machine runs."""

    def __init__(self, guests: Guests, folders: Folders, steps: Steps) -> None:
        self._guests = guests
        self._folders = folders
        self._steps = steps
        self._under_way: set[UUID] = set()

    async def perform(self, operation: SnapshotOperation) -> OperationResult:
        match operation:
            case VmSnapshotTake():
                return await self.take(operation)
            case VmSnapshotRestore():
                return await self.restore(operation)
            case VmSnapshotDelete():
                await self.delete(operation)
                return Done()

    async def take(self, operation: VmSnapshotTake) -> SnapshotResult:
        vm_id, tag = operation.vm_id, str(operation.snapshot_id)
        record = await self._record(vm_id)
        await self.delete(operation)
        if await self._is_off(vm_id):
            await self._take_of_stopped(record, tag)
            frozen = False
        else:
            frozen = await self._take_of_running(record, tag)
        fault_point("snapshot.taken")
        return SnapshotResult(vm_id=vm_id, snapshot_id=operation.snapshot_id, frozen=frozen)

    async def restore(self, operation: VmSnapshotRestore) -> DomainResult:
        vm_id, tag = operation.vm_id, str(operation.snapshot_id)
        async with self._steps(vm_id):
            record = await self._record(vm_id)
            if not await self._is_off(vm_id):
                raise HostError(FailureCode.CONFLICT, "The machine is not off; it was not changed.", "Stop it first.")
            missing = [index for index, path in self._disks(record).items() if tag not in await _tags(path)]
            if missing:
                raise HostError(
                    FailureCode.NOT_FOUND,
                    f"Disk {missing[0]} of the machine does not have this snapshot; nothing was changed.",
                    "Restore another one, or a backup.",
                )
            # Shielded: a cancellation in between would leave restored disks next to current ones.
            with trio.CancelScope(shield=True):
                for disk in record.disks:
                    path = self._folders.disk_of(vm_id, disk)
                    await run_program("qemu-img", "snapshot", "-a", tag, path, timeout=_DISK_SECONDS)
                    fault_point(f"snapshot.disk{disk.index}.restored")
                    await grow(path, disk.size_gib)
        return DomainResult(vm_id=vm_id, state=await self._guests.state(vm_id))

    async def delete(self, operation: VmSnapshotTake | VmSnapshotDelete) -> None:
        vm_id, tag = operation.vm_id, str(operation.snapshot_id)
        record = await self._record(vm_id)
        if await self._is_off(vm_id):
            async with self._steps(vm_id):
                await self._delete_of_stopped(record, tag)
            return
        paths = self._disks(record)

        def delete(domain: Any) -> None:
            for node, tags in _nodes(domain, paths).values():
                if tag in tags:
                    _monitor(domain, "blockdev-snapshot-delete-internal-sync", {"device": node, "name": tag})

        await self._guests.on_domain(vm_id, "blockdev-snapshot-delete-internal-sync", delete)

    async def thaw_abandoned(self) -> None:
        """Thaw guests that the death of an agent may have left frozen."""
        for vm_id in await in_thread(self._folders.maybe_frozen):
            if vm_id not in self._under_way and await thaw(vm_id, self._guests):
                await in_thread(self._folders.frozen(vm_id).unlink, missing_ok=True)

    async def _take_of_running(self, record: MachineRecord, tag: str) -> bool:
        vm_id, paths = record.vm_id, self._disks(record)

        def take(domain: Any) -> None:
            fault_point("snapshot.frozen")
            actions = [
                {"type": "blockdev-snapshot-internal-sync", "data": {"device": node, "name": tag}}
                for node, _ in _nodes(domain, paths).values()
            ]
            _monitor(domain, "transaction", {"actions": actions})

        mark, held = self._folders.frozen(vm_id), True
        self._under_way.add(vm_id)
        try:
            await in_thread(mark.touch)
            frozen = await while_frozen(vm_id, self._guests, "blockdev-snapshot-internal-sync", take)
            held = not await thaw(vm_id, self._guests)
        finally:
            with trio.CancelScope(shield=True):
                if not held or await thaw(vm_id, self._guests, at_most=_THAW_SECONDS):
                    await in_thread(mark.unlink, missing_ok=True)
            self._under_way.discard(vm_id)
        return frozen

    async def _take_of_stopped(self, record: MachineRecord, tag: str) -> None:
        async with self._steps(record.vm_id):
            # Shielded, so that the snapshot is in every disk or, after a failure, in none.
            with trio.CancelScope(shield=True):
                try:
                    for path in self._disks(record).values():
                        await run_program("qemu-img", "snapshot", "-c", tag, path, timeout=_DISK_SECONDS)
                except HostError:
                    await self._delete_of_stopped(record, tag)
                    raise

    async def _delete_of_stopped(self, record: MachineRecord, tag: str) -> None:
        for path in self._disks(record).values():
            if tag in await _tags(path):
                with trio.CancelScope(shield=True):
                    await run_program("qemu-img", "snapshot", "-d", tag, path, timeout=_DISK_SECONDS)

    def _disks(self, record: MachineRecord) -> dict[int, Path]:
        return {disk.index: self._folders.disk_of(record.vm_id, disk) for disk in record.disks}

    async def _is_off(self, vm_id: UUID) -> bool:
        return await self._guests.state(vm_id) in OFF

    async def _record(self, vm_id: UUID) -> MachineRecord:
        try:
            return await in_thread(read_record, self._folders.machine(vm_id) / RECORD)
        except FileNotFoundError as error:
            raise absent(vm_id) from error


async def _tags(path: Path) -> tuple[str, ...]:
    return (await inspect(path, "qcow2")).snapshots


def _nodes(domain: Any, paths: Mapping[int, Path]) -> dict[int, tuple[str, tuple[str, ...]]]:
    """For each disk, QEMU's name of the node that the guest writes to, and its snapshots."""
    found = {
        each["inserted"]["file"]: each["inserted"] for each in _monitor(domain, "query-block", {}) if "inserted" in each
    }
    nodes = {}
    for index, path in paths.items():
        inserted = found.get(str(path))
        if inserted is None:
            raise HostError(
                FailureCode.CONFLICT,
                f"The guest runs without disk {index} of the machine; nothing was changed.",
                "Stop the machine and start it again.",
            )
        tags = tuple(str(each["name"]) for each in inserted["image"].get("snapshots", ()))
        nodes[index] = (str(inserted["node-name"]), tags)
    return nodes


def _monitor(domain: Any, command: str, arguments: dict[str, Any]) -> Any:
    """QEMU's answer to this command. libvirt is not used for this, since it supports snapshots of disks without memory
    only as separate files."""
    said = json.loads(
        libvirt_qemu.qemuMonitorCommand(domain, json.dumps({"execute": command, "arguments": arguments}), 0)
    )
    if "error" in said:
        raise HostError(FailureCode.HOST, f"QEMU refused {command}: {said['error'].get('desc')}")
    return said["return"]
