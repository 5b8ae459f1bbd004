"""The contents of a machine's CD-ROM drive."""

from __future__ import annotations

from typing import ClassVar, Literal
from uuid import UUID

from svc_nodeagent.protocol.facts import Facts, Lane
from svc_nodeagent.protocol.machines import ImageSpec
from svc_nodeagent.protocol.values import Wire

__all__ = ["VmIso"]


class VmIso(Wire):
    """Put this image into the machine's CD-ROM drive (it is fetched if the cache lacks it), or empty the drive: at once
    if the guest runs and has a drive, otherwise at its next start. `boot`: from then on the machine boots the CD before
    its disk. A failure leaves the drive as it was. Result: `Done`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "done", task_seconds=300.0, since=5)
    op: Literal["vm.iso"] = "vm.iso"
    vm_id: UUID
    image: ImageSpec | None
    boot: bool = False
