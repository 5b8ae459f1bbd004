"""Operations of a live migration: a running guest moves from one host to another.

The source host (`VmLiveSend`) and the target host (`VmLiveReceive`) dial the gateway with a token for each stream. A
guest that has arrived stays paused until the controller has recorded that the guest is on the target and sends
`VmLiveFinish`. So the controller's record decides where the guest runs, and after any interruption it runs on one host
at most.
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
    """The state of a live migration on one host."""

    HERE = "here"
    """The machine is here, running or not; it was not handed over."""
    LEFT = "left"
    """The guest was transferred completely to the other host; definition and disks are still here."""
    ARRIVED = "arrived"
    """The guest has arrived completely and is paused: it was not resumed yet."""
    ABSENT = "absent"


class LiveStreams(Wire):
    """A token for each stream: between the two libvirts, of the guest's memory, and of each disk."""

    libvirt: Secret = Field(repr=False)
    memory: Secret = Field(repr=False)
    disks: Annotated[tuple[Secret, ...], Field(min_length=1, max_length=16, repr=False)]


class VmLiveReceive(Wire):
    """Prepare for a guest that arrives (image, empty disks, taps that are blocked) and receive it. A failure leaves
    nothing. `conflict` if the host has a machine with this id. Result: `LiveResult`, `arrived`.

    It is not repeatable, since a stream can be opened only once."""

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
    """Send the running guest and its disks to the target host. It runs here until the switch-over, and continues here
    if anything fails. Result: `LiveResult`; the result of a later `VmLiveSettle` takes precedence."""

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
    """The controller's record says that the machine is here now: apply its network, resume the guest, and have it
    announce its addresses. It may be repeated. Result: `DomainResult`."""

    facts: ClassVar[Facts] = Facts(Lane.FORCE, "domain", task_seconds=600.0, recorded=False, since=5)
    op: Literal["vm.live.finish"] = "vm.live.finish"
    vm_id: UUID
    network: NetworkSpec


LiveOperation = VmLiveReceive | VmLiveSend | VmLiveSettle | VmLiveLook | VmLiveFinish
