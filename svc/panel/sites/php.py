"""PHP of sites: version and settings, and the versions and extensions of this server."""

from __future__ import annotations

from uuid import UUID

from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, site_of
from svc.panel.sites.sites import ask_change
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.sites.php import PHP_TYPES, SitePhp, newest_version, php_of, require_version
from svc_actors.panel.sites.records import SiteRow, change_record
from svc_actors.panel.sites.site import Changed
from svc_actors.store import Transaction
from svc_common.errors import not_found
from svc_webhost.php import ErrorReporting, PhpSettings, PhpVersion
from svc_webhost.php.settings import (
    ExecutionSeconds,
    InputVariables,
    MemoryLimitMib,
    TimeZone,
    UploadMib,
    Workers,
)

operations = Operations[Panel]()


class PhpVersionInfo(Model):
    """`newest`: a new site gets this version if its order names none."""

    version: str
    newest: bool


class PhpExtension(Model):
    name: str
    enabled: bool


class SitePhpInfo(Model):
    site_id: UUID
    version: str
    settings: PhpSettings


class SitePhpRequest(SiteRequest):
    """Names the site."""


class SitePhpExtensionsRequest(SiteRequest):
    """Names the site whose PHP version is meant."""


class SitePhpUpdateRequest(SiteChange):
    """Fields left out stay as they are."""

    version: PhpVersion | None = None
    memory_limit_mib: MemoryLimitMib | None = None
    upload_max_filesize_mib: UploadMib | None = None
    max_execution_time: ExecutionSeconds | None = None
    max_input_vars: InputVariables | None = None
    display_errors: bool | None = None
    error_reporting: ErrorReporting | None = None
    timezone: TimeZone | None = None
    workers: Workers | None = None


class SitePhpRestartRequest(SiteChange):
    """Restarts the PHP of one site."""


@operations.declare(
    "php.versions",
    "The versions of PHP that sites may have",
    Route.get("/php/versions"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("version", "newest"),
)
async def list_versions(context: Context[Panel], request: Empty) -> list[PhpVersionInfo]:
    versions = await context.services.php.versions()
    return [PhpVersionInfo(version=version, newest=version == newest_version(versions)) for version in versions]


@operations.declare(
    "site.php_show",
    "Version and settings of a site's PHP",
    Route.get("/sites/{id}/php"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("site", "php", "show"),
)
async def show(context: Context[Panel], request: SitePhpRequest) -> SitePhpInfo:
    return await _shown(context, request.id)


@operations.declare(
    "site.php_update",
    "Change version and settings of a site's PHP; visitors notice nothing",
    Route.patch("/sites/{id}/php"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "php", "update"),
)
async def update(context: Context[Panel], request: SitePhpUpdateRequest) -> SitePhpInfo:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    _require_php(site)
    if request.version is not None:
        require_version(request.version, await services.php.versions())
    given = request.model_dump(mode="json", exclude={"id", "site_id", "version"}, exclude_none=True)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        php = php_of(locked).record
        php["settings"] |= given
        php["version"] = request.version or php["version"]
        await change_record(tx, locked, {"php": SitePhp.model_validate(php).record})
        return Changed(locked.target, given | ({"version": request.version} if request.version else {}))

    await ask_change(context, site.id, change)
    return await _shown(context, site.id)


@operations.declare(
    "site.php_restart",
    "Restart a site's PHP with empty caches; visitors notice nothing",
    Route.post("/sites/{id}/php/restart"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "php", "restart"),
)
async def restart(context: Context[Panel], request: SitePhpRestartRequest) -> SitePhpInfo:
    site = await site_of(context.services.database, context.principal, request.id)
    _require_php(site)

    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        php = php_of(locked)
        await change_record(tx, locked, {"php": php.model_copy(update={"restarts": php.restarts + 1}).record})
        return Changed(locked.target)

    await ask_change(context, site.id, change)
    return await _shown(context, site.id)


@operations.declare(
    "site.php_extensions",
    "The extensions of the version of PHP that a site has",
    Route.get("/sites/{id}/php/extensions"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("site", "php", "extensions"),
    columns=("name", "enabled"),
)
async def site_extensions(context: Context[Panel], request: SitePhpExtensionsRequest) -> list[PhpExtension]:
    site = await site_of(context.services.database, context.principal, request.id)
    _require_php(site)
    found = await context.services.php.extensions(php_of(site).version)
    return [PhpExtension(name=each.name, enabled=each.enabled) for each in found]


async def _shown(context: Context[Panel], site_id: UUID) -> SitePhpInfo:
    site = await site_of(context.services.database, context.principal, site_id)
    _require_php(site)
    php = php_of(site)
    return SitePhpInfo(site_id=site.id, version=php.version, settings=php.settings)


def _require_php(site: SiteRow) -> None:
    if site.type not in PHP_TYPES:
        raise not_found(f"{site.domain} is of the type {site.type.value} and has no PHP.")
