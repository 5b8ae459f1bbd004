"""Decides about resizing and reinstalling a machine: refusals, and the parameters of the task.

Both run in the transaction of the Machine actor's order, which has locked the row.

Why: docs/decisions/0026-resize-reinstall-rescue-iso.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from uuid import UUID

from svc_actors.controller.machines import platforms
from svc_actors.controller.machines.admission import (
    moved,
    require_not_in_rescue,
    require_not_suspended,
    require_unprotected,
)
from svc_actors.controller.machines.creation import KEY_LIFETIME, require_large_enough, require_usable
from svc_actors.controller.machines.media import ISO, require_boots_disk
from svc_actors.controller.machines.network_attachment import require_addresses_allowed
from svc_actors.controller.machines.outcomes import GENERATION, WINDOWS
from svc_actors.controller.machines.records import MachineRow, write_size
from svc_actors.controller.machines.spec import Seed
from svc_actors.controller.machines.states import MachineStatus, Order, refusal_text
from svc_actors.controller.machines.windows import FirstBoot
from svc_actors.controller.placement.refusals import require_platform
from svc_actors.controller.placement.scheduler import require_room
from svc_actors.controller.tasks.runner import Task, get_task
from svc_actors.sealing import Sealer
from svc_actors.store import Transaction
from svc_common.errors import conflict, invalid

Parameters = dict[str, object]


@dataclass(frozen=True)
class Size:
    plan_id: UUID | None
    vcpus: int
    memory_mib: int
    disk_gib: int

    def as_parameters(self) -> dict[str, object]:
        return vars(self) | {"plan_id": str(self.plan_id) if self.plan_id is not None else None}


@dataclass(frozen=True)
class NewSize:
    """The desired size: a plan with its sizes, or individual sizes; None leaves a size as it is. `reboot`: a running
    guest may be shut down and started again, because new processors and memory need a restart. `bounded`: the plan's
    limit of addresses applies, as for a customer."""

    plan_id: UUID | None
    vcpus: int | None
    memory_mib: int | None
    disk_gib: int | None
    reboot: bool
    bounded: bool

    def instead_of(self, now: Size) -> Size:
        given = {name: value for name in vars(now) if (value := getattr(self, name)) is not None}
        return replace(now, **given)


@dataclass(frozen=True)
class NewSystem:
    """The system to reinstall a machine with. `password_hash` is SHA-512 crypt; `generated` is the password itself if
    the service generated it. `order` identifies the order, so that a repeated one is recognised. `first_boot`: for
    Windows. `user_data` is the owner's own, for cloud-init. `iso_id`: an ISO from which the system is installed on an
    empty disk; then `image_id` is the same."""

    image_id: UUID
    access_mode: str
    ssh_keys: tuple[str, ...]
    password_hash: str | None
    generated: str | None
    order: str | None = None
    first_boot: FirstBoot | None = None
    user_data: str | None = field(default=None, repr=False)
    iso_id: UUID | None = None


async def resize(tx: Transaction, vm: MachineRow, size: NewSize) -> tuple[Parameters, MachineStatus | None]:
    """Change the record; returns the task's parameters, and the machine's status meanwhile: None if it does not change.
    Raises conflict, invalid, capacity."""
    require_not_in_rescue(vm, refusal_text(Order.RESIZE))
    before = Size(vm.plan_id, vm.vcpus, vm.memory_mib, vm.disk_gib)
    after = size.instead_of(before)
    if size.plan_id is None and after == before:
        raise invalid("Nothing would change.", hint="Give vcpus, memory_mib or disk_gib that differs.")
    status = vm.status if vm.status is MachineStatus.STOPPED else moved(vm, Order.RESIZE)
    runs = vm.status is MachineStatus.RUNNING
    restart = runs and (after.vcpus, after.memory_mib) != (vm.vcpus, vm.memory_mib)
    if restart:
        await require_not_suspended(tx, vm)
    if restart and not size.reboot:
        raise conflict(
            "The machine runs, and its processors and memory change only with a restart; nothing was changed.",
            hint="Allow it with reboot, or shut the machine down first.",
        )
    if after.disk_gib < vm.disk_gib:
        raise conflict(
            f"The machine's disk has {vm.disk_gib} GiB, and a disk only grows; nothing was changed.",
            hint=f"Choose a size with {vm.disk_gib} GiB or more.",
            details={"disk_gib": vm.disk_gib},
        )
    image_id: UUID | None = await tx.fetchval("SELECT image_id FROM vms WHERE id = $1", vm.id)
    if after.memory_mib < vm.memory_mib and image_id is not None:
        await require_large_enough(tx, image_id, disk_gib=after.disk_gib, memory_mib=after.memory_mib)
    if size.bounded and after.plan_id != before.plan_id:
        await require_addresses_allowed(tx, vm, after.plan_id)
    if vm.node_id is not None:
        await require_room(
            tx,
            vm.node_id,
            vcpus=after.vcpus - vm.vcpus,
            memory_mib=after.memory_mib - vm.memory_mib,
            disk_gib=after.disk_gib - vm.disk_gib,
        )
    await write_size(tx, vm.id, **vars(after))
    parameters: Parameters = {"before": before.as_parameters(), "after": after.as_parameters(), "restart": restart}
    return parameters, status if restart else None


async def reinstall(
    tx: Transaction, vm: MachineRow, new: NewSystem, sealer: Sealer
) -> tuple[Parameters, MachineStatus]:
    """Store the new password and the user-data sealed; returns the task's parameters and the machine's status
    meanwhile. Raises conflict, invalid, not_found, not_ready."""
    require_unprotected(vm, Order.REINSTALL)
    require_not_in_rescue(vm, refusal_text(Order.REINSTALL))
    if new.iso_id is None:
        require_boots_disk(vm)
    await require_not_suspended(tx, vm)
    status = moved(vm, Order.REINSTALL)
    await require_usable(tx, new.image_id, disk_gib=vm.disk_gib, memory_mib=vm.memory_mib)
    platform = await platforms.of_image(tx, new.image_id)
    await require_platform(tx, vm.node_id, platform)
    seed = Seed(new.password_hash, new.generated, new.user_data)
    secret = seed.sealed(sealer) if seed != Seed(None) else None
    await tx.execute("UPDATE vms SET sealed_seed = $2 WHERE id = $1", vm.id, secret)
    parameters: Parameters = {
        "image_id": str(new.image_id),
        "access_mode": new.access_mode,
        "ssh_keys": list(new.ssh_keys),
        "order": new.order,
        WINDOWS: None if new.first_boot is None else {"password": new.first_boot.password is not None},
        GENERATION: vm.net_wanted,
        platforms.PLATFORM: platforms.as_parameter(platform),
        ISO: None if new.iso_id is None else str(new.iso_id),
    }
    return parameters, status


async def task_of_order(tx: Transaction, vm_id: UUID, op: str, order: str | None) -> Task | None:
    """The task that this order started earlier, as long as its idempotency key counts."""
    task_id: UUID | None = await tx.fetchval(
        """SELECT id FROM tasks WHERE resource_kind = 'vm' AND resource_id = $1 AND op = $2
                                  AND parameters->>'order' = $3 AND created_at > now() - $4::interval
           ORDER BY created_at DESC LIMIT 1""",
        vm_id,
        op,
        order,
        KEY_LIFETIME,
    )
    return None if task_id is None else await get_task(tx, task_id)
