"""Operations of a live migration: a running guest moves from one host to another.

The host that has it (`VmLiveSend`) and the host that receives it (`VmLiveReceive`) dial the gateway with a token for
each of their streams. A guest that has arrived stays paused until the controller sends `VmLiveFinish`, which says that
it now belongs there: so no interruption lets it run twice, and the controller's record decides where it runs.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.facts import Facts, Lane, query
from svc_nodeagent.protocol.machines import CpuMode, ImageSpec, MachineSpec
from svc_nodeagent.protocol.networks import NetworkSpec
from svc_nodeagent.protocol.values import Secret, Wire

__all__ = [
    "LiveOperation",
    "LivePlace",
    "LiveStreams",
    "VmLiveFinish",
    "VmLiveLook",
    "VmLiveReceive",
    "VmLiveSend",
    "VmLiveSettle",
]


class LivePlace(StrEnum):
    """What a host has of a guest that moves."""

    HERE = "here"
    """The machine, running or not; it was not given away."""
    LEFT = "left"
    """The guest has gone to the other host, complete; definition and disks are still there."""
    ARRIVED = "arrived"
    """The guest, complete and paused: it has not been let go on."""
    ABSENT = "absent"


class LiveStreams(Wire):
    """A token for each: libvirt's words with libvirt, the guest's memory, and each of its disks."""

    libvirt: Secret = Field(repr=False)
    memory: Secret = Field(repr=False)
    disks: Annotated[tuple[Secret, ...], Field(min_length=1, max_length=16, repr=False)]


class VmLiveReceive(Wire):
    """Make room for a guest that comes: image, empty disks, taps that carry nothing; then take it in. A failure leaves
    nothing. `conflict` if the host has a machine with this id. Result: `LiveResult`, `arrived`.

    A stream is opened once, so it is not done again."""

    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "live", task_seconds=6 * 3600.0, repeatable=False, since=5)
    op: Literal["vm.live.receive"] = "vm.live.receive"
    machine: MachineSpec
    image: ImageSpec
    cpu_mode: CpuMode
    streams: LiveStreams

    @property
    def vm_id(self) -> UUID:
        return self.machine.vm_id


class VmLiveSend(Wire):
    """Send the running guest and its disk to the host that takes it in. It runs here until the last moment, and on
    where anything fails. Result: `LiveResult`, of which `VmLiveSettle` has the last word."""

    facts: ClassVar[Facts] = Facts(Lane.TRANSFERS, "live", task_seconds=6 * 3600.0, repeatable=False, since=5)
    op: Literal["vm.live.send"] = "vm.live.send"
    vm_id: UUID
    streams: LiveStreams


class VmLiveSettle(Wire):
    """To the source host: end the migration that is in progress, resume the guest if it is still here, and report where
    it is. It is not journalled, since the answer is about the present. Result: `LiveResult`."""

    facts: ClassVar[Facts] = Facts(Lane.ORDERS, "live", recorded=False, since=5)
    op: Literal["vm.live.settle"] = "vm.live.settle"
    vm_id: UUID


class VmLiveLook(Wire):
    """To the target host: report how much has arrived. Result: `LiveResult`."""

    facts: ClassVar[Facts] = query("live", since=5)
    op: Literal["vm.live.look"] = "vm.live.look"
    vm_id: UUID


class VmLiveFinish(Wire):
    """The machine is here now, by the record: carry its network, let the guest go on, and have it announce its
    addresses. Done again it changes nothing. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.FORCE, "domain", task_seconds=600.0, recorded=False, since=5)
    op: Literal["vm.live.finish"] = "vm.live.finish"
    vm_id: UUID
    network: NetworkSpec


LiveOperation = VmLiveReceive | VmLiveSend | VmLiveSettle | VmLiveLook | VmLiveFinish
