"""Checks the order of a new site of any type and writes the site's record. Used by `site.create` and
`account.create`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit
from uuid import UUID

from svc.identity.fields import Email
from svc.panel.apps.models import Entry, HealthPath, require_entry
from svc.panel.config import PanelConfig
from svc.panel.files.models import FolderPath
from svc.panel.services import Panel
from svc.panel.sites.fields import ProxyTarget, WordPressLanguage, WordPressTitle
from svc.panel.wordpress import wordpress_order
from svc.registry.operation import Context, Request
from svc_actors.panel.apps.records import insert_app
from svc_actors.panel.sites.creation import NewSite, create_site
from svc_actors.panel.sites.names import SiteName, is_below
from svc_actors.panel.sites.php import PHP_TYPES, SitePhp, newest_version, require_version
from svc_actors.panel.sites.proxying import proxy_addresses
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteType
from svc_actors.panel.wordpress import creation
from svc_actors.panel.wordpress.records import WordPressOrder
from svc_actors.store import Caller, Transaction
from svc_common.errors import wrong_field
from svc_webhost.apps import AppInterface, AppRuntime
from svc_webhost.launcher import Limits
from svc_webhost.php import PhpVersion


class SiteFields(Request):
    """The fields of a site except its names. A field may be given only for the types of site that have it."""

    proxy_target: ProxyTarget | None = None
    title: WordPressTitle | None = None
    language: WordPressLanguage | None = None
    php_version: PhpVersion | None = None
    runtime: AppRuntime | None = None
    entry: Entry | None = None
    interface: AppInterface = AppInterface.WSGI
    folder: FolderPath = ""
    health_path: HealthPath = "/"


@dataclass(frozen=True)
class PlannedSite:
    """The checked order of a site; only the owner is not checked yet."""

    type: SiteType
    domain: SiteName
    aliases: Sequence[SiteName]
    www: SiteName | None
    proxy_target: str | None
    proxy_addresses: Sequence[IPv4Address | IPv6Address]
    php: SitePhp | None
    app: Mapping[str, str] | None
    wordpress: WordPressOrder | None

    @property
    def by_job(self) -> bool:
        """Whether a job creates the site; other types are created by the site's actor (`Site.build`)."""
        return self.wordpress is not None

    async def record(self, tx: Transaction, caller: Caller, owner_id: UUID, limits: Limits) -> SiteRow:
        """Write the site's record. Raises what `create_site` raises."""
        addresses = self.proxy_addresses
        new = NewSite(
            owner_id, self.domain, self.aliases, self.type, self.proxy_target, addresses, self.php, limits, www=self.www
        )
        site = await create_site(tx, caller, new)
        if self.app is not None:
            await insert_app(tx, site, self.app)
        if self.wordpress is not None:
            await creation.start_creation(tx, site, self.wordpress)
        return site


async def plan_site(
    context: Context[Panel],
    type_: SiteType,
    request: SiteFields,
    domain: SiteName,
    aliases: Sequence[SiteName],
    admin_email: Email | None,
    *,
    www: bool,
) -> PlannedSite:
    """Check the order of a site. `www`: it also gets the name `www.` of its domain, if that is one that a site can have
    in addition (`_www_of`). Raises `invalid` for options that the type does not have, and for missing ones."""
    ordered = await wordpress_order(
        context.services.wordpress, type_, domain.name, admin_email, request.title, request.language
    )
    names = {domain.name, *(alias.name for alias in aliases)}
    further = _www_of(context.services.config, domain, request.proxy_target) if www else None
    if further is not None and further.name in names:
        further = None
    addresses = await _proxied(context, type_, request, names)
    app = _application(type_, request)
    php = await _php(context, type_, request)
    return PlannedSite(type_, domain, aliases, further, request.proxy_target, addresses, php, app, ordered)


def _www_of(config: PanelConfig, domain: SiteName, proxy_target: str | None) -> SiteName | None:
    """`www.` of a domain that was registered as such; people expect none of shop.example.org. None for names of the
    panel, and for the name that the site is a proxy of: visitors would be sent in a circle."""
    www = domain.with_www
    if www is None or any(is_below(www.name, reserved) for reserved in config.reserved_names):
        return None
    if proxy_target is not None and urlsplit(proxy_target).hostname == www.name:
        return None
    return www


async def _php(context: Context[Panel], type_: SiteType, request: SiteFields) -> SitePhp | None:
    if type_ not in PHP_TYPES:
        if request.php_version is not None:
            raise wrong_field("php_version", f"a site of the type {type_.value} has no PHP")
        return None
    versions = await context.services.php.versions()
    version = request.php_version or newest_version(versions)
    require_version(version, versions)
    return SitePhp(version=version)


def _application(type_: SiteType, request: SiteFields) -> Mapping[str, str] | None:
    """The application of a site of the type app."""
    if type_ is not SiteType.APP:
        if request.runtime is not None or request.entry is not None:
            raise wrong_field("runtime", f"a site of the type {type_.value} has no application")
        return None
    if request.runtime is None or request.entry is None:
        raise wrong_field("runtime", "is required for a site of the type app, and so is entry")
    require_entry(request.runtime, request.entry)
    return {
        "runtime": request.runtime.value,
        "interface": request.interface.value,
        "entry": request.entry,
        "folder": request.folder,
        "health_path": request.health_path,
    }


async def _proxied(
    context: Context[Panel], type_: SiteType, request: SiteFields, names: set[str]
) -> Sequence[IPv4Address | IPv6Address]:
    if (type_ is SiteType.PROXY) is (request.proxy_target is None):
        problem = (
            "is required for a site of the type proxy"
            if type_ is SiteType.PROXY
            else "is only for a site of the type proxy"
        )
        raise wrong_field("proxy_target", problem)
    if request.proxy_target is None:
        return []
    return await proxy_addresses(
        context.services.database,
        request.proxy_target,
        context.services.config.dns.site_addresses(),
        names=names,
        anywhere=context.principal.is_operator,
    )
