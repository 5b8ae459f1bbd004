"""libvirt calls about a guest that both ends of a live migration use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import libvirt

from svc_nodeagent.hypervisor.connection import CALL_TIMEOUT_SECONDS, LibvirtError
from svc_nodeagent.hypervisor.domains import domain_state
from svc_nodeagent.hypervisor.guests import Guests
from svc_nodeagent.protocol import DomainState, LivePlace

LOOK_SECONDS: Final = 0.1


async def call_domain(guests: Guests, vm_id: UUID, name: str, work: Callable[[Any], Any]) -> Any:
    """Call libvirt about the guest's domain; None if there is no such domain."""
    try:
        return await guests.on_domain(vm_id, name, work, timeout=CALL_TIMEOUT_SECONDS)
    except LibvirtError as error:
        if error.number == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def resume_migrated_guest(domain: Any) -> LivePlace:
    """Resume a guest that a migration has paused, and return whether the guest is on this host."""
    state, reason = domain.state()
    # After a complete move, the source's domain is off, and libvirt gives the migration as the reason. If it is off for
    # another reason, the guest is still here.
    if state == libvirt.VIR_DOMAIN_SHUTOFF and reason == libvirt.VIR_DOMAIN_SHUTOFF_MIGRATED:
        return LivePlace.LEFT
    # A guest that was paused because its disk is full is not resumed here: it resumes by itself once there is space.
    if domain_state(state, reason) is DomainState.PAUSED and reason != libvirt.VIR_DOMAIN_PAUSED_IOERROR:
        domain.resume()
    return LivePlace.HERE
