"""GET and PATCH /settings of the panel."""

from __future__ import annotations

from svc.identity.settings import Settings, SettingsUpdate, change_settings, read_as
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.backups.schedules import DEFAULT_BACKUPS, DefaultBackups

operations = Operations[Panel]()


class PanelSettings(Settings):
    """In addition to the settings of every service: `default_backups` is how often a new site is backed up, unless its
    owner's plan says otherwise. A site's owner may change its schedule."""

    default_backups: DefaultBackups = DEFAULT_BACKUPS


class PanelSettingsUpdate(SettingsUpdate):
    default_backups: DefaultBackups | None = None


@operations.declare(
    "settings.show",
    "The settings of the service",
    Route.get("/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show(context: Context[Panel], request: Empty) -> PanelSettings:
    return await read_as(PanelSettings, context.services.database)


@operations.declare(
    "settings.update",
    "Change settings of the service",
    Route.patch("/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Panel], request: PanelSettingsUpdate) -> PanelSettings:
    return await change_settings(PanelSettings, context, request)
