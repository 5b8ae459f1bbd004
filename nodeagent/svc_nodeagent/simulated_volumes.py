"""Volumes of a simulated host: their ids, sizes and machines. They have no content."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from svc_nodeagent.host import HostError
from svc_nodeagent.protocol import (
    FailureCode,
    KeptDisk,
    ObservedVolume,
    VolumeAttach,
    VolumeCreate,
    VolumeDelete,
    VolumeDetach,
    VolumeGrow,
    VolumeOperation,
    Wire,
)

_GIB = 1024**3


class SimulatedVolume(Wire):
    size_gib: int
    vm_id: UUID | None = None
    index: int | None = None


Volumes = dict[UUID, SimulatedVolume]


def changed(
    volumes: Mapping[UUID, SimulatedVolume], kept_disks: tuple[KeptDisk, ...], operation: VolumeOperation
) -> tuple[Volumes, tuple[KeptDisk, ...]]:
    """The volumes and kept disks after the operation. Raises `HostError` as a real host does."""
    after, volume_id = dict(volumes), operation.volume_id
    match operation:
        case VolumeCreate(size_gib=size_gib):
            after.setdefault(volume_id, SimulatedVolume(size_gib=size_gib))
        case VolumeAttach(vm_id=vm_id, index=index):
            kept_disks = _taken_over(after, kept_disks, operation)
            if after[volume_id].vm_id not in (None, vm_id):
                raise HostError(FailureCode.CONFLICT, "Another machine has the volume.")
            after[volume_id] = after[volume_id].model_copy(update={"vm_id": vm_id, "index": index})
        case VolumeDetach():
            if volume_id in after:
                after[volume_id] = after[volume_id].model_copy(update={"vm_id": None, "index": None})
        case VolumeGrow(size_gib=size_gib):
            kept_disks = _taken_over(after, kept_disks, operation)
            grown = max(after[volume_id].size_gib, size_gib)
            after[volume_id] = after[volume_id].model_copy(update={"size_gib": grown})
        case VolumeDelete(kept=name):
            if volume_id in after and after[volume_id].vm_id is not None:
                raise HostError(FailureCode.CONFLICT, "A machine has the volume.")
            after.pop(volume_id, None)
            kept_disks = tuple(disk for disk in kept_disks if disk.name != name)
    return after, kept_disks


def observed(volumes: Mapping[UUID, SimulatedVolume]) -> tuple[ObservedVolume, ...]:
    return tuple(
        ObservedVolume(volume_id=volume_id, vm_id=volume.vm_id, index=volume.index, size_bytes=volume.size_gib * _GIB)
        for volume_id, volume in sorted(volumes.items())
    )


def machine_removed(volumes: Mapping[UUID, SimulatedVolume], vm_id: UUID, destroyed: tuple[UUID, ...]) -> Volumes:
    free = {"vm_id": None, "index": None}
    return {
        volume_id: volume.model_copy(update=free) if volume.vm_id == vm_id else volume
        for volume_id, volume in volumes.items()
        if volume_id not in destroyed
    }


def _taken_over(
    after: Volumes, kept: tuple[KeptDisk, ...], operation: VolumeAttach | VolumeGrow
) -> tuple[KeptDisk, ...]:
    if operation.volume_id in after:
        return kept
    for disk in kept:
        if disk.name == operation.kept:
            after[operation.volume_id] = SimulatedVolume(size_gib=disk.size_bytes // _GIB)
            return tuple(each for each in kept if each is not disk)
    raise HostError(FailureCode.NOT_FOUND, "The volume's file is no longer on its node.")
