"""The API's models of a site, and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field

from svc.panel.services import Panel
from svc.panel.sites.access import visible_row
from svc.registry.operation import Model
from svc.registry.paging import Condition
from svc.registry.principal import Principal
from svc_actors.panel.accounts.allowances import SHELL_ALLOWED
from svc_actors.panel.sites.previews import Previews, preview_name, read_previews
from svc_actors.panel.sites.states import SiteStatus, SiteType, SuspendedBy
from svc_actors.store import Record
from svc_common.errors import not_found
from svc_webhost.nginx import Ports

MOST_CPU_PERCENT: Final = 6400
MOST_MEMORY_MIB: Final = 1024 * 1024
MOST_PROCESSES: Final = 10_000
MOST_DISK_MIB: Final = 64 * 1024 * 1024

CpuPercent = Annotated[int, Field(ge=5, le=MOST_CPU_PERCENT, description="Of one core: 150 is one and a half.")]
MemoryMib = Annotated[int, Field(ge=32, le=MOST_MEMORY_MIB)]
Processes = Annotated[int, Field(ge=4, le=MOST_PROCESSES)]
DiskMib = Annotated[int, Field(ge=16, le=MOST_DISK_MIB)]


class SiteLimits(Model):
    """The limits of all processes of a site together, and of its files; None is no limit."""

    cpu_percent: CpuPercent | None = None
    memory_mib: MemoryMib | None = None
    processes: Processes | None = None
    disk_mib: DiskMib | None = None


class SitePhpVersion(Model):
    """The version alone; `site.php_show` has the settings."""

    version: str


class Site(Model):
    """`account` is its system user on this server. `reason` says why it is suspended or has failed. `shell`: access
    accounts with a shell are allowed."""

    id: UUID
    number: int
    domain: str
    aliases: list[str]
    type: SiteType
    owner_id: UUID
    owner_email: str
    status: SiteStatus
    reason: str | None
    suspended_by: SuspendedBy | None
    proxy_target: str | None
    limits: SiteLimits
    php: SitePhpVersion | None
    force_https: bool
    fallback_page: str | None
    cache_assets: bool
    utf8_pages: bool
    shell: bool
    account: str
    staging_of: Annotated[UUID | None, Field(description="The site that this one is a staging copy of.")]
    preview_url: Annotated[
        str | None, Field(description="Where it is seen before its domain leads here; null without previews.")
    ]
    created_at: datetime


SELECT_SITES: Final = f"""
SELECT sites.id, sites.number, sites.domain, sites.type, sites.owner_id, sites.status, sites.reason, sites.suspended_by,
       sites.proxy_target, sites.cpu_percent, sites.memory_mib, sites.processes, sites.disk_mib, sites.force_https,
       sites.fallback_page, sites.cache_assets, sites.utf8_pages,
       sites.php, {SHELL_ALLOWED} AS shell, sites.created_at, sites.staging_of,
       users.email AS owner_email,
       ARRAY(SELECT name FROM site_domains AS named
             WHERE named.site_id = sites.id AND named.name <> sites.domain ORDER BY name) AS aliases
FROM sites JOIN users ON users.id = sites.owner_id"""


_UNSEEN: Final = frozenset({SiteStatus.FAILED, SiteStatus.DELETING})


@dataclass(frozen=True)
class PreviewUrls:
    previews: Previews
    ports: Ports

    def of(self, row: Record) -> str | None:
        """The preview's URL for a site of this row of `SELECT_SITES`."""
        if self.previews.domain is None or SiteStatus(row["status"]) in _UNSEEN:
            return None
        scheme = "https" if self.previews.tls else "http"
        name = preview_name(row["id"], row["domain"], self.previews.domain)
        return f"{scheme}://{name}{self.ports.suffix(scheme)}"


async def preview_urls(services: Panel) -> PreviewUrls:
    config = services.config
    previews = await read_previews(services.database, config.folders)
    return PreviewUrls(previews, Ports(config.sites_http_port, config.sites_https_port))


def site_model(row: Record, previews: PreviewUrls) -> Site:
    """The site of a row of `SELECT_SITES`."""
    members: dict[str, Any] = dict(row)
    limits = SiteLimits(**{name: members.pop(name) for name in SiteLimits.model_fields})
    php = members.pop("php")
    version = SitePhpVersion(version=php["version"]) if php else None
    return Site(**members, php=version, limits=limits, account=f"s{row['number']}", preview_url=previews.of(row))


async def shown_site(services: Panel, principal: Principal, site_id: UUID) -> Site:
    """The site as the API shows it. Raises not_found."""
    where, absent = Condition("sites.id = $1", (site_id,)), not_found("There is no such site.")
    row = await visible_row(services.database, principal, SELECT_SITES, where, absent)
    return site_model(row, await preview_urls(services))
