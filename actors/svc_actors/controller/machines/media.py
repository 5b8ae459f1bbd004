"""What is in a machine's CD-ROM drive: decided with the order, done by its task, and put back where that fails.

The record says what shall be in the drive; its node makes it so, at once where the guest runs. It moves with the
machine: the node that takes it in has the image before the move ends (`MediaWork.carry`).
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
from svc_actors.errors import conflict, not_found
from svc_actors.store import Database, Transaction
from svc_nodeagent.protocol import ImageSpec, OperationResult, VmIso

OP: Final = "vm.iso"
ISO: Final = "iso_id"
"""The parameter of a reinstallation that names what the new system is installed from: null where it is in its image."""
_STEP: Final = "host"


@dataclass(frozen=True)
class NewMedium:
    """`image_id` None is an empty drive. `boot`: from its next start on the machine boots the CD before its disk, until
    it is ejected."""

    image_id: UUID | None
    boot: bool = False


async def begin(tx: Transaction, vm: MachineRow, new: NewMedium) -> dict[str, object]:
    """Record what shall be in the drive; gives the task's parameters. Raises conflict, not_found."""
    if vm.status not in (MachineStatus.STOPPED, MachineStatus.RUNNING):
        raise conflict(
            f"The machine is {vm.status.value}, so its drive is left as it is.", details={"status": vm.status.value}
        )
    if new.image_id is None and vm.iso_image_id is None:
        raise conflict("There is nothing in the machine's CD-ROM drive.")
    if new.image_id is not None:
        await _require_iso(tx, new.image_id)
    before = {"image_id": vm.iso_image_id and str(vm.iso_image_id), "boot": vm.iso_boot}
    await _write(tx, vm.id, new.image_id, new.boot)
    await announce_machine(tx, vm.id)
    return {"image_id": new.image_id and str(new.image_id), "boot": new.boot, "before": before}


async def ended(tx: Transaction, vm: MachineRow, task: Task, ending: Ending) -> None:
    if ending.succeeded:
        return
    before = task.parameters["before"]
    await _write(tx, vm.id, before["image_id"] and UUID(before["image_id"]), before["boot"])
    await announce_machine(tx, vm.id)


def require_boots_disk(vm: MachineRow) -> None:
    """Raises conflict for a machine whose new system would not be what it boots."""
    if vm.iso_boot:
        raise conflict(
            "The machine boots the CD in its drive before its disk, so a new system would not be booted; nothing was"
            " changed.",
            hint="Eject the ISO first, or insert it without `boot`.",
        )


async def reinstalled(tx: Transaction, task: Task) -> None:
    """The host has put a new system in the place of the old one: what that is installed from is in the drive now."""
    if (iso_id := task.parameters.get(ISO)) is not None:
        await _write(tx, task.resource_id, UUID(iso_id), False)


class MediaWork:
    """What the task does on the node, and what the tasks of others do for it: that which makes the machine, or its
    system anew, and a move on the other node."""

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
        """The ISO that is in the drive of a machine that is being made, brought to its node; None where there is
        none."""
        if iso_id is None:
            return None
        image, _ = await self._images.of_task(run, iso_id, span=(0, 40), step="iso")
        return image

    async def carry(self, run: TaskRun, node_id: UUID, *, attempt: int) -> None:
        """Have the node that has taken the machine in put the same into its drive; nothing where that is empty."""
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
