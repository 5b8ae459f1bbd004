"""GET and PATCH /settings of the controller."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from svc.controller.services import Controller
from svc.identity.settings import Days, Settings, SettingsUpdate, change_settings, read_as
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.machines import creation, snapshots
from svc_actors.controller.volumes import records as volumes

operations = Operations[Controller]()


class ControllerSettings(Settings):
    """In addition to the settings of every service: how long records of deleted machines and ended tasks are kept, how
    many snapshots a machine may have, and how many machines and volumes, of what total size, a project may have.
    `disk_...` apply to the disks of nodes as well."""

    keep_task_days: int = 90
    keep_sample_days: int = 400
    keep_deleted_days: int = 90
    keep_traffic_months: int = 25
    most_snapshots: int = snapshots.MOST
    most_machines: int = creation.MOST
    most_volumes: int = volumes.MOST
    most_volume_gib: int = volumes.MOST_GIB


class ControllerSettingsUpdate(SettingsUpdate):
    keep_task_days: Days | None = None
    keep_sample_days: Days | None = None
    keep_deleted_days: Days | None = None
    keep_traffic_months: Annotated[int, Field(ge=1, le=1_200)] | None = None
    most_snapshots: (
        Annotated[int, Field(ge=0, le=50, description="Most snapshots of a machine; 0 forbids them.")] | None
    ) = None
    most_machines: (
        Annotated[
            int,
            Field(
                ge=0,
                le=100_000,
                description="Most machines that customers order in a project; 0 forbids their orders. Services do not "
                "count.",
            ),
        ]
        | None
    ) = None
    most_volumes: (
        Annotated[int, Field(ge=0, le=10_000, description="Most volumes of a project; 0 forbids them.")] | None
    ) = None
    most_volume_gib: (
        Annotated[int, Field(ge=0, le=1_000_000, description="Most GiB of all volumes of a project together.")] | None
    ) = None


@operations.declare(
    "settings.show",
    "The settings of the service",
    Route.get("/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show(context: Context[Controller], request: Empty) -> ControllerSettings:
    return await read_as(ControllerSettings, context.services.database)


@operations.declare(
    "settings.update",
    "Change settings of the service",
    Route.patch("/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Controller], request: ControllerSettingsUpdate) -> ControllerSettings:
    return await change_settings(ControllerSettings, context, request)
