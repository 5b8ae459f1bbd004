"""The changes that restoring a backup's configuration would make: shown before the restore is ordered."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.backups.access import backup_of, site_to_restore
from svc.panel.backups.models import BackupRequest
from svc.panel.config import PanelConfig
from svc.panel.services import Panel
from svc.panel.sites.access import site_of
from svc.panel.sites.sites import name_of_a_site
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.backups.configuration import Part, parsed_configuration
from svc_actors.panel.backups.configuration_changes import Allowed, ConfigurationAction, changes_of
from svc_common.errors import conflict

operations = Operations[Panel]()


class BackupConfigurationRequest(BackupRequest):
    site: Annotated[UUID | None, Field(description="Which site would get it; by default the backup's own.")] = None


class ConfigurationChange(Model):
    """`detail`: the new value, or why this part is not restored."""

    part: Part
    name: str
    action: ConfigurationAction
    detail: str


@operations.declare(
    "backup.configuration",
    "What restoring a backup's configuration would change: names, redirects, protection, DNS, PHP, app, tasks, TLS",
    Route.get("/backups/{id}/configuration"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("part", "name", "action", "detail"),
)
async def show_configuration(context: Context[Panel], request: BackupConfigurationRequest) -> list[ConfigurationChange]:
    services = context.services
    backup = await backup_of(services.database, context.principal, request.id)
    site = await site_of(services.database, context.principal, site_to_restore(backup, request.site))
    told = await services.database.fetchval("SELECT configuration FROM site_backups WHERE id = $1", backup.id)
    if told is None or site.owner_id != backup.owner_id:
        raise conflict(
            "The configuration in this backup cannot be shown: it was made by an earlier release, is not completed, or "
            "belongs to another customer.",
            hint="Create a new backup, or restore only files and databases.",
        )
    allowed = what_is_allowed(services.config, await services.php.versions())
    changes = await changes_of(services.database, services.sealer, site, parsed_configuration(told), allowed)
    return [ConfigurationChange.model_validate(vars(change)) for change in changes]


def what_is_allowed(config: PanelConfig, php_versions: Collection[str]) -> Allowed:
    """What a restored configuration may contain. Not names of the provider's own domain, which only administrators
    assign."""
    name = partial(name_of_a_site, config, provider=False)
    return Allowed(name, php_versions, config.dns.authority(config.public_host).nameservers)
