"""Freezes a guest's file systems for a short time, if its agent answers, and thaws them whatever the agent does.

If a guest's agent did not answer in time, it may still freeze the file systems later, when nobody is left to thaw them.
So every caller of `while_frozen` calls `thaw` afterwards, also after a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import LibvirtError
from svc_nodeagent.hypervisor.guests import Guests, agent_is_silent
from svc_nodeagent.protocol import FailureCode

_AGENT_SECONDS: Final = 10
_LATE_SECONDS: Final = 120.0
"""How long to wait for a silent guest agent: it may still be about to freeze, for as long as a busy guest takes to
write out its caches."""
_PAUSE_SECONDS: Final = 1.0
_MOMENT_SECONDS: Final = 60.0
"""Three times the time that the guest's agent has for an answer, and more than libvirt takes for the rest."""
log = structlog.get_logger(__name__)


async def while_frozen(vm_id: UUID, guests: Guests, name: str, work: Callable[[Any], None]) -> bool:
    """Call `work` on the guest's domain, with the guest frozen if its agent answers; returns whether the guest was
    frozen. Waits for the end of `work` even if cancelled: an abandoned call would continue after the caller has undone
    its effects, and might leave the guest frozen."""

    def held_still(domain: Any) -> bool:
        domain.agentSetResponseTimeout(_AGENT_SECONDS)
        frozen = True
        try:
            domain.fsFreeze()
        except libvirt.libvirtError as error:
            frozen = False
            log.info("guest.not_frozen", domain=domain.name(), why=error.get_error_message())
        try:
            work(domain)
        finally:
            # Thawed here too, because this thread may continue after its caller has ended. `thaw` repeats it and
            # reports the result.
            with suppress(libvirt.libvirtError):
                domain.fsThaw()
        return frozen

    with trio.CancelScope(shield=True, deadline=trio.current_time() + _MOMENT_SECONDS):
        return await guests.on_domain(vm_id, name, held_still)
    raise HostError(FailureCode.TIMED_OUT, f"libvirt did not end {name} within {_MOMENT_SECONDS:g} s.")


async def thaw(vm_id: UUID, guests: Guests, *, at_most: float | None = None) -> bool:
    """Thaw the guest's file systems, in case they are still frozen. Usually they are not, or there is no agent in the
    guest. While the guest's agent does not answer, it is asked again, for two minutes or `at_most` seconds; returns
    False if there is still no answer."""

    def work(domain: Any) -> None:
        if domain.isActive():
            domain.agentSetResponseTimeout(_AGENT_SECONDS)
            domain.fsThaw()

    with trio.move_on_after(_LATE_SECONDS if at_most is None else at_most):
        while True:
            try:
                await guests.on_domain(vm_id, "virDomainFSThaw", work)
            except HostError as error:
                if isinstance(error, LibvirtError) and not agent_is_silent(error):
                    log.info("guest.thaw_not_answered", vm_id=str(vm_id), error=error.message)
                    return True
            else:
                return True
            await trio.sleep(_PAUSE_SECONDS)
    log.error("guest.not_thawed", vm_id=str(vm_id))
    return False
