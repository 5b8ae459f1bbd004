"""Operations of a rescue: a machine boots a small system from memory, with its disks attached and not mounted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from uuid import UUID

from pydantic import Field

from svc_nodeagent.protocol.facts import Facts, Lane
from svc_nodeagent.protocol.machines import ImageSpec, SshKey
from svc_nodeagent.protocol.networks import NetworkSpec
from svc_nodeagent.protocol.values import FEW, Name, Seconds, Secret, Wire

__all__ = ["RescueOperation", "VmRescue", "VmRescueEnd"]

_FACTS = Facts(Lane.PATIENCE, "domain", task_seconds=900.0, yields_to_force_stop=True, since=5)


class VmRescue(Wire):
    """Have the machine boot the rescue system, now and at every start until `VmRescueEnd`: `system` is fetched, a
    running guest is shut down gracefully, or stopped at once with `force`, and the rescue system is started.
    `timed_out` leaves the guest running. A failure leaves the machine as it was; `runs` says whether it ran, since a
    repeat after an interruption could not find that out. `instance_id` distinguishes rescues. Root signs in with the
    password of `password_hash` (SHA-512 crypt) or one of the keys. Result: `DomainResult`."""

    facts: ClassVar[Facts] = _FACTS
    op: Literal["vm.rescue"] = "vm.rescue"
    vm_id: UUID
    instance_id: Name
    system: ImageSpec
    password_hash: Secret = Field(repr=False)
    ssh_keys: Annotated[tuple[SshKey, ...], Field(max_length=FEW)] = ()
    network: NetworkSpec
    runs: bool
    force: bool = False
    timeout_seconds: Seconds = 90.0


class VmRescueEnd(Wire):
    """Have the machine boot its own disk again, now and at every start; otherwise as `VmRescue`. A failure leaves the
    machine in rescue. A machine that is not in rescue is started. Result: `DomainResult`."""

    facts: ClassVar[Facts] = _FACTS
    op: Literal["vm.rescue_end"] = "vm.rescue_end"
    vm_id: UUID
    network: NetworkSpec
    runs: bool
    force: bool = False
    timeout_seconds: Seconds = 90.0


RescueOperation = VmRescue | VmRescueEnd
