"""Restores the networks of a host even if it refuses that of one machine: this machine is left out and its taps are
closed, while the others work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from uuid import UUID

import structlog

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.hypervisor.network import taps
from svc_nodeagent.hypervisor.network.plan import TapPlan
from svc_nodeagent.hypervisor.network.taps import SeenTap
from svc_nodeagent.protocol import FailureCode

log = structlog.get_logger(__name__)

Step = Callable[[Sequence[TapPlan], dict[str, SeenTap]], Awaitable[None]]
"""Called with the taps to restore, and those of them that the host already has."""


class RefusedMachines:
    """Runs the steps of a restoration for all machines of `planned`. A machine for which the host refuses a step is
    moved from `planned` to `machines`, its taps are closed, and the reason is added to `refused`."""

    def __init__(self, planned: dict[UUID, tuple[TapPlan, ...]], refused: list[HostError], naming: Naming) -> None:
        self.machines: dict[UUID, tuple[TapPlan, ...]] = {}
        self._planned = planned
        self._refused = refused
        self._naming = naming

    def others(self) -> list[TapPlan]:
        return [tap for tap_plans in self._planned.values() for tap in tap_plans]

    async def each(self, step: Step, seen: dict[str, SeenTap]) -> None:
        """Do a step for all machines together: a program started for each would take minutes on a full host."""
        if self._planned:
            await self._do(step, sorted(self._planned), seen)

    async def _do(self, step: Step, machines: Sequence[UUID], seen: dict[str, SeenTap]) -> None:
        """Do the step for these machines. If the host refuses it for several, do it for each half of them, since one
        refusal ends the commands of all."""
        wanted = [tap for vm_id in machines for tap in self._planned[vm_id]]
        devices = {tap.device for tap in wanted}
        try:
            await step(wanted, {device: there for device, there in seen.items() if device in devices})
            return
        except (HostError, OSError) as error:
            if len(machines) > 1:
                log.warning("network.restored_in_parts", machines=len(machines), error=str(error))
                middle = len(machines) // 2
                for half in (machines[:middle], machines[middle:]):
                    await self._do(step, half, await taps.seen_taps(self._naming))
                return
            [vm_id] = machines
            self._refused.append(refusal_of(vm_id, error))
            self.machines[vm_id] = self._planned.pop(vm_id)
        # The taps are kept, because a running guest would not notice new ones; they are closed, because their rules are
        # not in place.
        await close(devices)


async def close(devices: Iterable[str]) -> None:
    """Drop all packets of these taps. A tap for which the host refuses that is removed."""
    for device in devices:
        if not taps.exists(device):
            continue
        try:
            await taps.change([f"link set dev {device} down"])
        except HostError as error:
            log.error("network.tap_not_closed", device=device, error=error.message)
            await taps.remove_taps((device,))


def refusal_of(vm_id: UUID, error: Exception) -> HostError:
    """Why the host refuses the network that is recorded of a machine."""
    if isinstance(error, HostError):
        return HostError(error.code, f"The network of machine {vm_id} is not as recorded: {error.message}", error.hint)
    return HostError(FailureCode.HOST, f"The network of machine {vm_id} is not as recorded: {error}")
