"""A machine's recorded firmware and TPM: those of the image, or of the copy, that it was last created from.

Why: docs/decisions/0027-images-firmware-tpm.md.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from svc_actors.controller.machines.records import MachineRow
from svc_actors.controller.placement.refusals import require_platform
from svc_actors.controller.platforms import platform_of
from svc_actors.controller.tasks.records import Task
from svc_actors.store import Queryable, Transaction
from svc_nodeagent.protocol import Platform

PLATFORM: Final = "platform"
"""The parameter of a task that changes the machine's firmware and TPM: the new ones."""


def as_parameter(platform: Platform) -> dict[str, Any]:
    """The platform as a parameter of a task."""
    return platform.model_dump(mode="json")


def of_task(task: Task) -> Platform | None:
    """The task's new platform; None if it does not change, or if the task is from a release that did not record it."""
    value = task.parameters.get(PLATFORM)
    return None if value is None else Platform.model_validate(value)


async def of_image(queryable: Queryable, image_id: UUID) -> Platform:
    return platform_of(await queryable.fetchone("SELECT firmware, tpm FROM images WHERE id = $1", image_id))


async def of_copy(queryable: Queryable, copy_id: UUID) -> Platform:
    """The platform of the machine when it was copied."""
    return platform_of(await queryable.fetchone("SELECT firmware, tpm FROM machine_backups WHERE id = $1", copy_id))


async def of_machine(queryable: Queryable, vm_id: UUID) -> Platform:
    return platform_of(await queryable.fetchone("SELECT firmware, tpm FROM vms WHERE id = $1", vm_id))


async def restoration_parameters(tx: Transaction, vm: MachineRow, copy_id: UUID) -> dict[str, object]:
    """The platform's parameters of a restoration. Raises conflict if the node does not support the copy's platform."""
    then = await of_copy(tx, copy_id)
    await require_platform(tx, vm.node_id, then)
    return {} if then == await of_machine(tx, vm.id) else {PLATFORM: as_parameter(then)}


async def changed(tx: Transaction, task: Task) -> None:
    """Record the task's platform, which the host has applied."""
    if (platform := of_task(task)) is not None:
        await write(tx, task.resource_id, platform)


async def write(tx: Transaction, vm_id: UUID, platform: Platform) -> None:
    await tx.execute(
        "UPDATE vms SET firmware = $2, tpm = $3 WHERE id = $1", vm_id, platform.firmware.value, platform.tpm.value
    )
