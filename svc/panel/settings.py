"""GET and PATCH /settings of the panel: the settings that every service has."""

from __future__ import annotations

from svc.identity.settings import Settings, SettingsUpdate, change_settings, read_as
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope

operations = Operations[Panel]()


@operations.declare(
    "settings.show",
    "The settings of the service",
    Route.get("/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def show(context: Context[Panel], request: Empty) -> Settings:
    return await read_as(Settings, context.services.database)


@operations.declare(
    "settings.update",
    "Change settings of the service",
    Route.patch("/settings"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
)
async def update(context: Context[Panel], request: SettingsUpdate) -> Settings:
    return await change_settings(Settings, context, request)
