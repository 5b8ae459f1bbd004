"""Restoring a host's networks although it refuses one: that machine is left out and closed, and the others stand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

import structlog

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.network import taps
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.hypervisor.network.taps import SeenTap
from svc_nodeagent.protocol import FailureCode

log = structlog.get_logger(__name__)


class LeftOut:
    """Takes out of `planned` those machines for which the host refuses a step, and says why in `refused`."""

    def __init__(self, planned: dict[UUID, tuple[TapPlan, ...]], refused: list[HostError]) -> None:
        self.machines: dict[UUID, tuple[TapPlan, ...]] = {}
        self._planned = planned
        self._refused = refused

    def others(self) -> list[TapPlan]:
        return [tap for tap_plans in self._planned.values() for tap in tap_plans]

    async def each(
        self, step: Callable[[Sequence[TapPlan], dict[str, SeenTap]], Awaitable[None]], seen: dict[str, SeenTap]
    ) -> None:
        """Do a step for all machines together: a program started for each would cost minutes on a full host. Where the
        host refuses that, do it for one after the other, since one refusal ends the commands of all."""
        try:
            await step(self.others(), seen)
            return
        except (HostError, OSError) as error:
            log.warning("network.restored_one_by_one", error=str(error))
        for vm_id, tap_plans in sorted(self._planned.items()):
            devices = [tap.device for tap in tap_plans]
            try:
                await step(tap_plans, await taps.seen_of(devices))
            except (HostError, OSError) as error:
                self._refused.append(refusal_of(vm_id, error))
                self.machines[vm_id] = self._planned.pop(vm_id)
                # Kept for a guest that runs, which would not find one that is made anew; closed, as its rules are not.
                await close(devices)


async def close(devices: Iterable[str]) -> None:
    """Let nothing through these taps. One that cannot be closed is removed."""
    for device in devices:
        if not taps.exists(device):
            continue
        try:
            await taps.change([f"link set dev {device} down"])
        except HostError as error:
            log.error("network.tap_not_closed", device=device, error=error.message)
            await taps.remove_taps((device,))


def refusal_of(vm_id: UUID, error: Exception) -> HostError:
    """Why the host does not have what is recorded of a machine."""
    if isinstance(error, HostError):
        return HostError(error.code, f"The network of machine {vm_id} is not as recorded: {error.message}", error.hint)
    return HostError(FailureCode.HOST, f"The network of machine {vm_id} is not as recorded: {error}")
