"""Operations on volumes: a machine's disks besides its first, each a file of its own that outlives the machine.

`kept`: the name, below the agent's data folder, of a disk that was kept when its machine was deleted and has since
become a volume. It is taken over, with all that it needs of its image, before it is attached or grown.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal
from uuid import UUID

from pydantic import Field, model_validator

from svc_nodeagent.protocol.facts import Facts, Lane
from svc_nodeagent.protocol.values import Gibibytes, Name, Seconds, Size, Wire

__all__ = [
    "MOST_VOLUMES",
    "UNPLUG_SECONDS",
    "KeptDisk",
    "ObservedVolume",
    "VolumeAttach",
    "VolumeCreate",
    "VolumeDelete",
    "VolumeDetach",
    "VolumeGrow",
    "VolumeOperation",
    "volume_serial",
]

MOST_VOLUMES: Final = 8
"""The most volumes of a machine. A guest is started with a free slot for each volume that it may get while it runs."""
UNPLUG_SECONDS: Final = 60.0
"""How long a running guest has to let go of a volume."""


def volume_serial(volume_id: UUID) -> str:
    """The serial number of a volume: the guest finds it as /dev/disk/by-id/virtio-<serial>. virtio has room for 20
    characters."""
    return volume_id.hex[:20]


class VolumeCreate(Wire):
    """Create an empty volume; an existing one stays as it is. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done", task_seconds=600.0, since=5)
    op: Literal["volume.create"] = "volume.create"
    volume_id: UUID
    size_gib: Gibibytes


class VolumeAttach(Wire):
    """Attach a volume as disk `index` of a machine, at once if its guest runs. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "domain", task_seconds=3600.0, since=5)
    op: Literal["volume.attach"] = "volume.attach"
    vm_id: UUID
    volume_id: UUID
    index: int = Field(ge=1, le=15)
    size_gib: Gibibytes
    kept: Name | None = None


class VolumeDetach(Wire):
    """Detach a volume from a machine. A running guest has to release it; if it does not, the result is `timed_out` and
    the volume stays attached. A volume that is not attached is success. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.PATIENCE, "domain", task_seconds=900.0, since=5)
    op: Literal["volume.detach"] = "volume.detach"
    vm_id: UUID
    volume_id: UUID
    timeout_seconds: Seconds = UNPLUG_SECONDS


class VolumeGrow(Wire):
    """Grow a volume; one that is as large already stays as it is. `vm_id`: the machine to which it is attached; a
    running guest is notified. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done", task_seconds=3600.0, since=5)
    op: Literal["volume.grow"] = "volume.grow"
    volume_id: UUID
    vm_id: UUID | None
    size_gib: Gibibytes
    kept: Name | None = None


class VolumeDelete(Wire):
    """Delete a volume. Refused while a machine has it; a missing volume is success. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done", task_seconds=600.0, since=5)
    op: Literal["volume.delete"] = "volume.delete"
    volume_id: UUID
    kept: Name | None = None


VolumeOperation = VolumeCreate | VolumeAttach | VolumeDetach | VolumeGrow | VolumeDelete


class ObservedVolume(Wire):
    """A volume on a node. `size_bytes` is 0 if its file is missing, and only the machine's record names it. `vm_id` and
    `index`: the machine to which it is attached, and as which disk; both or neither."""

    volume_id: UUID
    vm_id: UUID | None
    index: int | None = Field(ge=1, le=15)
    size_bytes: Size

    @model_validator(mode="after")
    def _has_a_place(self) -> ObservedVolume:
        if (self.vm_id is None) != (self.index is None):
            raise ValueError("a volume is a disk of a machine, or of none")
        return self


class KeptDisk(Wire):
    """A disk that was kept when its machine was deleted, by its `name` below the agent's data folder."""

    name: Name
    vm_id: UUID
    vm_name: Name
    size_bytes: Size
