"""Shuts a guest down gracefully: its power button is pressed until the guest is off, or until a later order supersedes
this one."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import trio

from svc_nodeagent.host import HostError, Report
from svc_nodeagent.hypervisor.guests import Guests, absent
from svc_nodeagent.hypervisor.turns import Order
from svc_nodeagent.protocol import DomainState, FailureCode

POLL_SECONDS = 0.5
PRESS_AGAIN_SECONDS = 10.0
OFF: Final = (DomainState.STOPPED, DomainState.CRASHED)


async def wait_until_off(guests: Guests, vm_id: UUID, seconds: float, order: Order, report: Report) -> None:
    """Press the power button, repeatedly (a guest that is still booting ignores it), until the guest is off."""
    began = trio.current_time()
    pressed = -PRESS_AGAIN_SECONDS
    while (state := await guests.state(vm_id)) not in OFF:
        if state is DomainState.ABSENT:
            raise absent(vm_id)
        order.check()
        if state is DomainState.PAUSED:
            raise HostError(
                FailureCode.CONFLICT,
                "The guest is paused by its host and cannot shut down; it was left as it is.",
                "A full disk on the node is the usual reason. Free space, or stop the machine by force.",
            )
        waited = trio.current_time() - began
        if waited > seconds:
            raise HostError(
                FailureCode.TIMED_OUT,
                f"The guest did not shut down within {seconds:g} s; it was left running.",
                "Look at its console, or stop it by force.",
            )
        if waited - pressed >= PRESS_AGAIN_SECONDS and state is DomainState.RUNNING:
            pressed = waited
            await report(min(90, int(90 * waited / seconds)), "asking the guest to shut down")
            await guests.press_power_button(vm_id)
        await trio.sleep(POLL_SECONDS)
