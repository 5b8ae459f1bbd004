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
    """Have the machine boot the rescue system, now and at every start until `VmRescueEnd`: `system` is fetched, a guest
    that runs is shut down in order, or stopped at once where that is forced, and the rescue is started. `timed_out`
    leaves the guest running. What fails leaves the machine as it was; `runs` says whether it ran then, which a repeat
    after an interruption could not find out. `instance_id` tells one rescue from another. Root signs in by the password
    of `password_hash` (SHA-512 crypt) or one of the keys. Result: `DomainResult`."""

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
    """Have the machine boot its own disk again, now and from now on; otherwise as `VmRescue`. What fails leaves it in
    rescue. One that is in none is started. Result: `DomainResult`."""

    facts: ClassVar[Facts] = _FACTS
    op: Literal["vm.rescue_end"] = "vm.rescue_end"
    vm_id: UUID
    network: NetworkSpec
    runs: bool
    force: bool = False
    timeout_seconds: Seconds = 90.0


RescueOperation = VmRescue | VmRescueEnd
