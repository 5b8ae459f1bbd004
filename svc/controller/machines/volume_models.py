"""The API's models of volumes: answers and requests."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.access import visible_projects
from svc.controller.machines.fields import DiskGib, Labels, Selector
from svc.controller.services import Controller
from svc.controller.tasks import TaskModel
from svc.registry.operation import Context, Model, Request
from svc.registry.paging import Condition, PageRequest, joined
from svc.registry.principal import Principal
from svc.registry.shapes import Shape
from svc_actors.controller.volumes.records import serial_of
from svc_actors.controller.volumes.states import VolumeState
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found

VolumeName = Annotated[
    str,
    Shape(
        r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,61}[A-Za-z0-9])?",
        "1 to 63 letters, digits, spaces, dots, hyphens and underscores, with a letter or digit at both ends",
    ),
]
Confirmation = Annotated[str, Field(max_length=128, description="The volume's name, repeated.")]
DeleteWithMachine = Annotated[bool, Field(description="Delete it when the machine that has it is deleted.")]
Protected = Annotated[bool, Field(description="Keep it from being deleted.")]


class Volume(Model):
    """A further disk of a machine. `serial` is what the guest knows it by, and `device` its name there, where the guest
    makes such names. The node is shown to staff and administrators; `project_id` is null for a volume that was found on
    a node and belongs to nobody yet. `kept_of`: the machine that it was the disk of, before that was deleted. `error`
    says why a volume that `failed` cannot be used."""

    id: UUID
    name: str
    state: VolumeState
    error: str | None
    size_gib: int
    project_id: UUID | None
    project_name: str | None
    node_id: UUID | None
    node_name: str | None
    vm_id: UUID | None
    vm_name: str | None
    serial: str
    device: str
    delete_with_machine: bool
    protected: bool
    labels: dict[str, str]
    kept_of: UUID | None
    created_at: datetime

    @classmethod
    def of(cls, row: Record, principal: Principal) -> Volume:
        serial, sees = serial_of(row["id"]), principal.is_operator
        return cls(
            id=row["id"],
            name=row["name"],
            state=VolumeState(row["state"]),
            error=row["error"],
            size_gib=row["size_gib"],
            project_id=row["project_id"],
            project_name=row["project_name"],
            node_id=row["node_id"] if sees else None,
            node_name=row["node_name"] if sees else None,
            vm_id=row["vm_id"],
            vm_name=row["vm_name"],
            serial=serial,
            device=f"/dev/disk/by-id/virtio-{serial}",
            delete_with_machine=row["delete_with_machine"],
            protected=row["protected"],
            labels=row["labels"],
            kept_of=row["kept_of"],
            created_at=row["created_at"],
        )


class VolumeOrdered(Model):
    """The volume as it is recorded now, and the task that creates it. `replayed`: an earlier request with this
    idempotency key started the task."""

    volume: Volume
    task: TaskModel
    replayed: bool


class VolumeList(PageRequest):
    """`node` is for staff and administrators; a customer's list by node is empty."""

    project: UUID | None = None
    vm: UUID | None = None
    node: UUID | None = None
    state: VolumeState | None = None
    label: Selector | None = None


class VolumeRequest(Request):
    id: UUID


class VolumeCreateRequest(Request):
    """With `vm_id` the volume is created on the machine's node, in the machine's project, and attached to the machine.
    Without it, staff and administrators name the project and the node, and the volume is attached to no machine."""

    name: VolumeName
    size_gib: DiskGib
    vm_id: UUID | None = None
    project_id: UUID | None = None
    node_id: UUID | None = None
    delete_with_machine: DeleteWithMachine = False
    protected: Protected = False
    labels: Annotated[Labels, Field(default_factory=dict)]
    idempotency_key: (
        Annotated[
            str,
            Field(min_length=1, max_length=200, description="A repeated call with the same key has no further effect."),
        ]
        | None
    ) = None


class VolumeUpdateRequest(Request):
    """Fields left out stay as they are. `labels` replace all earlier labels. `project_id` gives the volume to another
    project; only administrators may do that."""

    id: UUID
    name: VolumeName | None = None
    labels: Labels | None = None
    protected: Protected | None = None
    delete_with_machine: DeleteWithMachine | None = None
    project_id: UUID | None = None


class VolumeDeleteRequest(Request):
    """Everything on it is lost."""

    id: UUID
    confirm: Confirmation


class VolumeAttachRequest(Request):
    """The machine must be in the volume's project and on its node."""

    id: UUID
    vm_id: UUID


class VolumeGrowRequest(Request):
    id: UUID
    size_gib: DiskGib


SELECT: Final = """
SELECT volumes.*, projects.name AS project_name, nodes.name AS node_name, vms.name AS vm_name
FROM volumes LEFT JOIN projects ON projects.id = volumes.project_id
LEFT JOIN nodes ON nodes.id = volumes.node_id LEFT JOIN vms ON vms.id = volumes.vm_id"""
NOT_DELETED: Final = Condition("volumes.deleted_at IS NULL")


async def visible_volume(queryable: Queryable, principal: Principal, volume_id: UUID) -> Record:
    """The row of a volume that the caller may see. Raises not_found."""
    condition = joined(
        [NOT_DELETED, Condition("volumes.id = $1", (volume_id,)), visible_projects(principal, "volumes.project_id")]
    )
    row = await queryable.fetchrow(f"{SELECT} WHERE {condition.sql}", *condition.args)
    if row is None:
        raise not_found("There is no such volume.")
    return row


async def shown(context: Context[Controller], volume_id: UUID) -> Volume:
    return Volume.of(await visible_volume(context.services.database, context.principal, volume_id), context.principal)
