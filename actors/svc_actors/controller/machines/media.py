"""The ISO in a machine's CD-ROM drive: recorded with the order, applied by its task, reverted if that fails.

The record has the desired medium; the node applies it, immediately if the guest is running. The medium is migrated with
the machine: the target node has the image before the migration ends (`MediaWork.carry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.controller.images.files import ImageSources
from svc_actors.controller.machines.records import MachineRow, announce_machine
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.tasks.records import Ending, Task
from svc_actors.controller.tasks.runner import TaskRun, Work
from svc_actors.store import Database, Transaction
from svc_common.errors import conflict, not_found
from svc_nodeagent.protocol import ImageSpec, OperationResult, VmIso

OP: Final = "vm.iso"
ISO: Final = "iso_id"
"""The parameter of a reinstallation that names the ISO to install from: null if the system is in its image."""
_STEP: Final = "host"


@dataclass(frozen=True)
class NewMedium:
    """`image_id` None empties the drive. `boot`: from the machine's next start on it boots the CD before its disk,
    until the CD is ejected."""

    image_id: UUID | None
    boot: bool = False


async def record_medium(tx: Transaction, vm: MachineRow, new: NewMedium) -> dict[str, object]:
    """Record the desired medium; returns the task's parameters. Raises conflict, not_found."""
    if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
        raise conflict(
            f"The machine is {vm.status.value}, so its CD-ROM drive was not changed.",
            details={"status": vm.status.value},
        )
    if new.image_id is None and vm.iso_image_id is None:
        raise conflict("There is nothing in the machine's CD-ROM drive.")
    if new.image_id is not None:
        await _require_iso(tx, new.image_id)
    before = {"image_id": vm.iso_image_id and str(vm.iso_image_id), "boot": vm.iso_boot}
    await _write(tx, vm.id, new.image_id, new.boot)
    await announce_machine(tx, vm.id)
    return {"image_id": new.image_id and str(new.image_id), "boot": new.boot, "before": before}


async def record_end(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    """Record the end of a task that changes the CD-ROM drive: after a failure, the drive's former content."""
    if ending.succeeded:
        return
    before = task.parameters["before"]
    await _write(tx, vm.id, before["image_id"] and UUID(before["image_id"]), before["boot"])
    await announce_machine(tx, vm.id)


def require_boots_disk(vm: MachineRow) -> None:
    """Raises conflict for a machine that would boot its CD instead of a newly installed disk."""
    if vm.iso_boot:
        raise conflict(
            "The machine boots the CD in its drive before its disk, so a new system would not be booted; nothing was"
            " changed.",
            hint="Eject the ISO first, or insert it without `boot`.",
        )


async def reinstalled(tx: Transaction, task: Task) -> None:
    """The host has replaced the system: record the ISO it is installed from as the medium."""
    if (iso_id := task.parameters.get(ISO)) is not None:
        await _write(tx, task.resource_id, UUID(iso_id), False)


class MediaWork:
    """The work of the task on the node, and the steps for media in other tasks: creation, reinstallation and
    migration."""

    def __init__(self, database: Database, images: ImageSources) -> None:
        self._database = database
        self._images = images

    @property
    def works(self) -> Mapping[str, Work]:
        return {OP: self.change}

    async def change(self, run: TaskRun) -> OperationResult:
        parameters = run.task.parameters
        image, fetched = None, False
        if parameters["image_id"] is not None:
            image, fetched = await self._images.of_task(run, UUID(parameters["image_id"]), span=(0, 90))
        operation = VmIso(vm_id=run.task.resource_id, image=image, boot=parameters["boot"])
        return await run.perform(operation, step=_STEP, span=(90, 100) if fetched else (0, 100))

    async def installer(self, run: TaskRun, iso_id: UUID | None) -> ImageSpec | None:
        """The ISO for the drive of a machine that is being created or reinstalled, pulled to its node; None without
        one."""
        if iso_id is None:
            return None
        image, _ = await self._images.of_task(run, iso_id, span=(0, 40), step="iso")
        return image

    async def carry(self, run: TaskRun, node_id: UUID, *, attempt: int) -> None:
        """Insert the same medium on the target node of a migration; nothing if the drive is empty."""
        vm = await self._database.fetchone("SELECT iso_image_id, iso_boot FROM vms WHERE id = $1", run.task.resource_id)
        if vm["iso_image_id"] is None:
            return
        image = await self._images.spec(vm["iso_image_id"], node_id)
        operation = VmIso(vm_id=run.task.resource_id, image=image, boot=vm["iso_boot"])
        await run.perform(operation, step=f"iso-{attempt}", node_id=node_id)


async def _require_iso(tx: Transaction, image_id: UUID) -> None:
    row = await tx.fetchrow("SELECT slug, digest FROM images WHERE id = $1 AND enabled AND kind = 'iso'", image_id)
    if row is None:
        raise not_found("There is no such ISO image.")
    if row["digest"] is None:
        raise conflict(
            f"The image {row['slug']} has no checksum yet, so no node could verify it.",
            hint="An administrator uploads the file.",
        )


async def _write(tx: Transaction, vm_id: UUID, image_id: UUID | None, boot: bool) -> None:
    await tx.execute("UPDATE vms SET iso_image_id = $2, iso_boot = $3 WHERE id = $1", vm_id, image_id, boot)
