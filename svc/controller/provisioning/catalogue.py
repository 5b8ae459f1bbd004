"""What a billing system reads before it sells anything: which server answers, what can be ordered, what a suspension
does."""

from __future__ import annotations

from importlib.metadata import version
from uuid import UUID

from svc.controller.services import Controller
from svc.identity.settings import Settings, SettingsUpdate, change_settings, read_as
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.controller.provisioning.states import SuspendMode
from svc_actors.store import Queryable

operations = Operations[Controller]()


class ProvisionPing(Model):
    """`ready`: a machine can be ordered; otherwise `problems` say why."""

    service: str
    version: str
    api: str
    ready: bool
    problems: list[str]


class SoldPlan(Model):
    id: UUID
    slug: str
    name: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    ipv4_count: int


class SoldImage(Model):
    """`min_...`: the least that a plan must have for this image."""

    id: UUID
    slug: str
    name: str
    os_family: str
    min_disk_gib: int
    min_memory_mib: int


class SoldLocation(Model):
    id: UUID
    name: str


class ProvisionCatalogue(Model):
    """What can be ordered now: enabled plans, and enabled images with a known checksum."""

    plans: list[SoldPlan]
    images: list[SoldImage]
    locations: list[SoldLocation]
    suspend_mode: SuspendMode


class ProvisionSettings(Model):
    """`suspend_mode`: what a suspension does if its order names no mode."""

    suspend_mode: SuspendMode


class ProvisionSettingsRequest(Request):
    suspend_mode: SuspendMode


class _Settings(Settings):
    suspend_mode: SuspendMode = SuspendMode.POWER_OFF


class _SettingsUpdate(SettingsUpdate):
    suspend_mode: SuspendMode


@operations.declare(
    "service.ping",
    "Name and version of this service, and whether it can provision",
    Route.get("/provision/ping"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def ping(context: Context[Controller], request: Empty) -> ProvisionPing:
    row = await context.services.database.fetchone(
        """SELECT EXISTS (SELECT FROM nodes WHERE state = 'online' AND mode = 'managed' AND NOT maintenance
                                                AND deleted_at IS NULL) AS node,
                  EXISTS (SELECT FROM plans WHERE enabled) AS plan,
                  EXISTS (SELECT FROM images WHERE kind = 'disk' AND enabled AND digest IS NOT NULL) AS image"""
    )
    missing = {
        "node": "No node is online and managed.",
        "plan": "There is no plan that is enabled.",
        "image": "There is no image that machines can be made from.",
    }
    problems = [words for name, words in missing.items() if not row[name]]
    title = context.services.realm.title
    return ProvisionPing(service=title, version=version("svc"), api="v1", ready=not problems, problems=problems)


@operations.declare(
    "service.catalogue",
    "What can be ordered: plans, images, locations; and what a suspension does",
    Route.get("/provision/catalogue"),
    access=Access.STAFF,
    scope=Scope.PROVISION,
)
async def catalogue(context: Context[Controller], request: Empty) -> ProvisionCatalogue:
    async with context.services.database.transaction() as tx:
        plans = await tx.fetch("SELECT * FROM plans WHERE enabled ORDER BY memory_mib, slug")
        images = await tx.fetch(
            "SELECT * FROM images WHERE kind = 'disk' AND enabled AND digest IS NOT NULL ORDER BY slug"
        )
        locations = await tx.fetch("SELECT * FROM locations ORDER BY name")
        suspend_mode = await suspend_mode_of(tx)
    return ProvisionCatalogue(
        plans=[SoldPlan(**{name: row[name] for name in SoldPlan.model_fields}) for row in plans],
        images=[SoldImage(**{name: row[name] for name in SoldImage.model_fields}) for row in images],
        locations=[SoldLocation(id=row["id"], name=row["name"]) for row in locations],
        suspend_mode=suspend_mode,
    )


@operations.declare(
    "service.settings",
    "Set the default mode of suspensions",
    Route.put("/provision/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.PROVISION,
    positional=("suspend_mode",),
    target="settings",
)
async def set_suspend_mode(context: Context[Controller], request: ProvisionSettingsRequest) -> ProvisionSettings:
    changed = await change_settings(_Settings, context, _SettingsUpdate(suspend_mode=request.suspend_mode))
    return ProvisionSettings(suspend_mode=changed.suspend_mode)


async def suspend_mode_of(queryable: Queryable) -> SuspendMode:
    return (await read_as(_Settings, queryable)).suspend_mode
