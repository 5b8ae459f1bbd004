"""A guest's file systems held still for one moment, where its agent answers, and let go again whatever the agent does.

An agent carries out late what it did not answer in time: one that was silent over the freeze may hold the guest still
afterwards, with nobody there any more who would let go. So whoever has used `frozen` calls `thaw` afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import LibvirtError
from svc_nodeagent.hypervisor.guests import Guests, agent_is_silent

_AGENT_SECONDS: Final = 10
_LATE_SECONDS: Final = 120.0
"""For a guest's agent that is silent: it may be about to freeze, for as long as a busy guest takes to write out."""
_PAUSE_SECONDS: Final = 1.0
log = structlog.get_logger(__name__)


@contextmanager
def frozen(domain: Any) -> Iterator[bool]:
    """In a thread of libvirt's calls: whether the guest is held still in the block. It is asked to go on in the same
    thread, which may end when nobody waits for it any more."""
    domain.agentSetResponseTimeout(_AGENT_SECONDS)
    held = True
    try:
        domain.fsFreeze()
    except libvirt.libvirtError as error:
        held = False
        log.info("guest.not_frozen", domain=domain.name(), why=error.get_error_message())
    try:
        yield held
    finally:
        with suppress(libvirt.libvirtError):  # `thaw` asks again, and tells
            domain.fsThaw()


async def thaw(vm_id: UUID, guests: Guests, *, at_most: float | None = None) -> bool:
    """Let the guest write again, where its file systems may have been left frozen: mostly there is nothing to do, or
    nobody in the guest to ask. While its agent is silent it is asked again, for two minutes or `at_most` seconds; False
    where it is silent still."""

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
