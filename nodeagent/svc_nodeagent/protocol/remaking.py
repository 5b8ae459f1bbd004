"""Operations that replace a part of a machine: its size, its processor, its system."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.facts import GUEST_SHUTDOWN_SECONDS, Facts, Lane
from svc_nodeagent.protocol.machines import CpuMode, ImageSpec, SeedSpec
from svc_nodeagent.protocol.networks import NetworkSpec
from svc_nodeagent.protocol.platforms import PLAIN, Platform
from svc_nodeagent.protocol.values import Gibibytes, Seconds, Wire
from svc_nodeagent.protocol.versions import Since

__all__ = ["CpuMode", "MachineSize", "RemakingOperation", "VmCpuSet", "VmReinstall", "VmResize"]

CPU_RESTART_SECONDS: Final = 180.0
"""How long a guest may take to shut down when it is restarted for another processor."""


class MachineSize(Wire):
    """`disk_gib` is of disk 0."""

    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=64, le=2**31 - 1)
    disk_gib: Gibibytes


class VmResize(Wire):
    """Give the machine these sizes, and disk 0 at least `disk_gib`: it grows at once, even while the guest runs, and
    never shrinks. New processors and memory need `restart`: the guest is shut down gracefully and started again, unless
    it runs with them already. `timed_out` leaves it running, and any failure leaves the machine with the sizes
    `before`; these are passed because a repeat after an interruption could not find them out."""

    facts: ClassVar[Facts] = Facts(Lane.PATIENCE, "domain", task_seconds=GUEST_SHUTDOWN_SECONDS + 600.0, since=4)
    op: Literal["vm.resize"] = "vm.resize"
    vm_id: UUID
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=64, le=2**31 - 1)
    disk_gib: Gibibytes
    before: MachineSize
    restart: bool
    timeout_seconds: Seconds = GUEST_SHUTDOWN_SECONDS


class VmCpuSet(Wire):
    """Rewrite only the processor in the stored definition: a running guest keeps its processor until it is stopped and
    started. `restart`: shut it down gracefully first, and start it afterwards; `timed_out` leaves it running and its
    definition as it was. `before`: the mode that a failure restores; it is passed because a repeat after an
    interruption could not find it out."""

    facts: ClassVar[Facts] = Facts(Lane.PATIENCE, "domain", task_seconds=CPU_RESTART_SECONDS + 600.0, since=4)
    op: Literal["vm.cpu.set"] = "vm.cpu.set"
    vm_id: UUID
    cpu_mode: CpuMode
    before: CpuMode
    restart: bool
    timeout_seconds: Seconds = CPU_RESTART_SECONDS


class VmReinstall(Wire):
    """Create disk 0 anew from an image, reset the state of firmware and TPM, and start the first boot. The guest keeps
    running until the new disk is ready; a failure leaves it as it was, and success means that the machine has the new
    system, started or not. `seed.instance_id` distinguishes reinstallations. `iso` replaces the content of the CD-ROM
    drive, and is booted after the disk.

    The deadline is that of one attempt. The task itself has none: only the host knows which system the machine has, so
    it is asked until it answers."""

    facts: ClassVar[Facts] = Facts(Lane.CREATIONS, "domain", task_seconds=1800.0, since=4)
    op: Literal["vm.reinstall"] = "vm.reinstall"
    vm_id: UUID
    image: ImageSpec
    seed: SeedSpec
    network: NetworkSpec
    platform: Annotated[Platform, Since(5)] = PLAIN
    iso: Annotated[ImageSpec | None, Since(5)] = None


RemakingOperation = VmResize | VmCpuSet | VmReinstall
