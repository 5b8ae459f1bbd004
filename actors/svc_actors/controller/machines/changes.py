"""Changes of a machine. The machine's settings are only in its record; its name and size are on its host as well."""

from __future__ import annotations

from dataclasses import dataclass, field

from svc_actors.controller.machines.records import (
    MachineRow,
    MachineSettings,
    announce_machine,
    write_definition,
    write_settings,
)
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.placement.scheduler import require_room
from svc_actors.store import Caller, Transaction, UniqueViolationError, audit
from svc_common.errors import conflict


@dataclass(frozen=True)
class Changes:
    """The changes to make; None leaves a field as it is. Sizes change only while the machine is stopped. The host
    is not asked for a change of `settings`."""

    name: str | None = None
    vcpus: int | None = None
    memory_mib: int | None = None
    settings: MachineSettings = field(default_factory=MachineSettings)

    def of_the_definition(self, vm: MachineRow) -> dict[str, object]:
        """The name and size that the host's definition would have."""
        given = {"name": self.name, "vcpus": self.vcpus, "memory_mib": self.memory_mib}
        return definition(vm) | {name: value for name, value in given.items() if value is not None}


def definition(vm: MachineRow) -> dict[str, object]:
    """The name and size that the host's definition has."""
    return {"name": vm.name, "vcpus": vm.vcpus, "memory_mib": vm.memory_mib}


async def update_settings(tx: Transaction, caller: Caller, vm: MachineRow, changes: Changes) -> None:
    """Write the settings that differ from the record, with audit row and event."""
    row = await tx.fetchone("SELECT * FROM vms WHERE id = $1", vm.id)
    changed = {name: value for name, value in changes.settings.columns().items() if value != row[name]}
    if not changed:
        return
    await write_settings(tx, vm.id, changes.settings)
    await audit.record(tx, caller, vm.target, changed)
    await announce_machine(tx, vm.id)


async def start_change(tx: Transaction, vm: MachineRow, changes: Changes) -> dict[str, object]:
    """Record the new name and size; returns the task's parameters. Raises capacity, conflict."""
    before, after = definition(vm), changes.of_the_definition(vm)
    grows = (after["vcpus"], after["memory_mib"]) != (before["vcpus"], before["memory_mib"])
    if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
        raise conflict(f"The machine is {vm.status.value} and cannot be changed.")
    if grows and vm.status is not MachineStatus.STOPPED:
        raise conflict("vcpus and memory change only while the machine is stopped.", hint="Shut it down first.")
    name = changes.name or vm.name
    vcpus, memory_mib = changes.vcpus or vm.vcpus, changes.memory_mib or vm.memory_mib
    if grows and vm.node_id is not None:
        await require_room(tx, vm.node_id, vcpus=vcpus - vm.vcpus, memory_mib=memory_mib - vm.memory_mib)
    try:
        await write_definition(tx, vm.id, name=name, vcpus=vcpus, memory_mib=memory_mib)
    except UniqueViolationError:
        raise conflict(f"The project has a machine named {name} already.") from None
    return {"before": before, "after": after}
