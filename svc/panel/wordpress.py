"""WordPress in sites of that type: its state, a link that signs its administrator in, plugins, maintenance mode."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import Field

from svc.identity.fields import Email
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.panel.sites.fields import WordPressLanguage, WordPressTitle
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.certificates import read_site_certificate
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.states import SiteStatus, SiteType
from svc_actors.panel.wordpress.records import WordPressOrder, WordPressRow, read_wordpress, wordpress_site
from svc_actors.store import Transaction, audit
from svc_common.errors import conflict, invalid, unavailable, wrong_field
from svc_webhost.wordpress import (
    Plugin,
    Theme,
    WordPressError,
    WordPressRefusedError,
    WordPressSites,
)

T = TypeVar("T")

operations = Operations[Panel]()

_HTTPS_PORT = 443
_HTTP_PORT = 80

Login = Annotated[
    str,
    Field(max_length=60, description="A user of the WordPress; its first administrator by default."),
    Shape(r"[A-Za-z0-9][A-Za-z0-9 _.@-]*", "a user name of WordPress: letters, digits, spaces and _ . @ -"),
]
PluginFile = Annotated[
    str,
    Field(max_length=200, description="As wordpress.get names it: akismet/akismet.php"),
    Shape(
        r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)?[A-Za-z0-9_][A-Za-z0-9_.-]*\.php",
        "a plugin's file below wp-content/plugins, as akismet/akismet.php",
    ),
]


class WordPressPlugin(Model):
    """`update`: the newer version that this WordPress knows of."""

    file: str
    name: str
    version: str
    active: bool
    update: str | None


class WordPressTheme(Model):
    """`update`: the newer version that this WordPress knows of."""

    folder: str
    name: str
    version: str
    active: bool
    update: str | None


class WordPressView(Model):
    """What this WordPress reports. `update`: the newer version of WordPress that it knows of. `debug`: it shows or logs
    its errors (WP_DEBUG). `admin_login`: its first administrator."""

    site_id: UUID
    url: str
    version: str
    update: str | None
    title: str
    language: str
    admin_login: str
    admin_email: str
    debug: bool
    maintenance: bool
    plugins: list[WordPressPlugin]
    themes: list[WordPressTheme]


class WordPressLoginLink(Model):
    """A link that logs one visitor in, once."""

    url: str
    login: str
    expires_at: datetime


class WordPressPassword(Model):
    """Shown only once."""

    login: str
    password: str


class WordPressMaintenance(Model):
    maintenance: bool


class WordPressPluginState(Model):
    plugin: str
    active: bool


class WordPressGetRequest(SiteRequest):
    """Names the site."""


class WordPressLoginRequest(SiteChange):
    login: Login | None = None


class WordPressPasswordRequest(SiteChange):
    login: Login | None = None


class PluginActivateRequest(SiteChange):
    plugin: PluginFile


class PluginDeactivateRequest(SiteChange):
    plugin: PluginFile


class WordPressMaintenanceRequest(SiteChange):
    """`maintenance` true: visitors get the maintenance page."""

    maintenance: bool


@operations.declare(
    "wordpress.get",
    "Version, plugins, themes and known updates of a site's WordPress",
    Route.get("/sites/{id}/wordpress"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_wordpress(context: Context[Panel], request: WordPressGetRequest) -> WordPressView:
    site, ordered = await _installed(context, request)
    state = await _told(lambda: context.services.wordpress.look(wordpress_site(site)))
    return WordPressView(
        site_id=site.id,
        url=await _address(context, site),
        admin_login=ordered.admin_login,
        admin_email=ordered.admin_email,
        plugins=[_plugin(plugin) for plugin in state.plugins],
        themes=[_theme(theme) for theme in state.themes],
        **state.model_dump(exclude={"plugins", "themes"}),
    )


@operations.declare(
    "wordpress.login",
    "A link that logs into a site's WordPress, once and within minutes",
    Route.post("/sites/{id}/wordpress/login"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    secret=True,
)
async def login(context: Context[Panel], request: WordPressLoginRequest) -> WordPressLoginLink:
    site, ordered = await _installed(context, request)
    name = request.login or ordered.admin_login
    await _record(context, site, {"login": name})
    link = await _told(lambda: context.services.wordpress.login_link(wordpress_site(site), name))
    return WordPressLoginLink(
        url=f"{await _address(context, site)}{link.path}",
        login=link.login,
        expires_at=datetime.fromtimestamp(link.until, UTC),
    )


@operations.declare(
    "wordpress.reset_password",
    "Reset the password of a user of a site's WordPress; the new one is shown once",
    Route.post("/sites/{id}/wordpress/password"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    secret=True,
)
async def reset_password(context: Context[Panel], request: WordPressPasswordRequest) -> WordPressPassword:
    site, ordered = await _installed(context, request)
    name, password = request.login or ordered.admin_login, secrets.token_urlsafe(18)
    await _record(context, site, {"login": name})
    await _told(lambda: context.services.wordpress.set_password(wordpress_site(site), name, password))
    return WordPressPassword(login=name, password=password)


@operations.declare(
    "wordpress.activate_plugin",
    "Activate a plugin of a site's WordPress",
    Route.post("/sites/{id}/wordpress/plugins/activate"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "plugin"),
)
async def activate_plugin(context: Context[Panel], request: PluginActivateRequest) -> WordPressPluginState:
    return await _switch(context, request, request.plugin, active=True)


@operations.declare(
    "wordpress.deactivate_plugin",
    "Deactivate a plugin of a site's WordPress, also one that breaks it",
    Route.post("/sites/{id}/wordpress/plugins/deactivate"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "plugin"),
)
async def deactivate_plugin(context: Context[Panel], request: PluginDeactivateRequest) -> WordPressPluginState:
    return await _switch(context, request, request.plugin, active=False)


@operations.declare(
    "wordpress.maintenance",
    "Turn maintenance mode of a site's WordPress on or off",
    Route.post("/sites/{id}/wordpress/maintenance"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def maintenance(context: Context[Panel], request: WordPressMaintenanceRequest) -> WordPressMaintenance:
    site, _ = await _installed(context, request)
    wordpress = context.services.wordpress
    await _record(context, site, {"maintenance": request.maintenance})
    await _told(lambda: wordpress.set_maintenance(site.account, maintenance=request.maintenance))
    return WordPressMaintenance(maintenance=request.maintenance)


async def wordpress_order(
    wordpress: WordPressSites,
    type_: SiteType,
    domain: str,
    admin_email: Email | None,
    title: WordPressTitle | None,
    language: WordPressLanguage | None,
) -> WordPressOrder | None:
    """What to install as a site's WordPress; None if the site is of another type. Raises `invalid` for options of a
    WordPress on another type and for an unknown language; `unavailable` if this server cannot list languages."""
    if type_ is not SiteType.WORDPRESS:
        for field, value in (("title", title), ("language", language)):
            if value is not None:
                raise wrong_field(field, "only a site of the type wordpress has one")
        return None
    if admin_email is None:
        raise wrong_field("admin_email", "name the administrator of the WordPress")
    languages = await _told(wordpress.languages)
    if language is not None and language != "en_US" and language not in languages:
        raise wrong_field("language", f"must be one of {', '.join(['en_US', *sorted(languages)])}")
    return WordPressOrder(title or domain, "" if language in (None, "en_US") else language, admin_email)


async def _switch(context: Context[Panel], request: SiteChange, plugin: str, *, active: bool) -> WordPressPluginState:
    site, _ = await _installed(context, request)
    wordpress = context.services.wordpress
    await _record(context, site, {"plugin": plugin})
    await _told(lambda: wordpress.switch_plugin(wordpress_site(site), plugin, active=active))
    return WordPressPluginState(plugin=plugin, active=active)


async def _installed(context: Context[Panel], request: SiteRequest) -> tuple[SiteRow, WordPressRow]:
    """The site, if its WordPress is installed and active. Raises `not_found`, and `conflict` for any other."""
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    ordered = await read_wordpress(database, site.id)
    if ordered is None:
        raise conflict(
            f"{site.domain} is of the type {site.type.value} and has no WordPress.",
            hint="Only sites created with the type wordpress have one.",
        )
    if site.status is not SiteStatus.ACTIVE or ordered.installed_at is None:
        raise conflict(f"The site {site.domain} is {site.status.value}; its WordPress cannot be used meanwhile.")
    return site, ordered


async def _told(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return await ask()
    except WordPressRefusedError as error:
        raise invalid(f"WordPress refused: {error}.", hint="wordpress.get lists plugins and themes.") from error
    except WordPressError as error:
        raise unavailable(
            f"The site's WordPress does not answer: {error}.", hint="Its error log may say more."
        ) from error


async def _address(context: Context[Panel], site: SiteRow) -> str:
    """The URL at which visitors reach the site: by HTTPS as soon as there is a certificate."""
    config = context.services.config
    certificate = await read_site_certificate(context.services.database, site.id)
    if certificate.fingerprint is not None:
        return f"https://{site.domain}{_port(config.sites_https_port, _HTTPS_PORT)}"
    return f"http://{site.domain}{_port(config.sites_http_port, _HTTP_PORT)}"


def _port(port: int, usual: int) -> str:
    return "" if port == usual else f":{port}"


async def _record(context: Context[Panel], site: SiteRow, details: dict[str, Any]) -> None:
    async def write(tx: Transaction) -> None:
        locked = await locked_site_of(tx, context.principal, site.id)
        await audit.record(tx, context.caller, locked.target, details)

    await context.services.database.transact(write)


def _plugin(plugin: Plugin) -> WordPressPlugin:
    return WordPressPlugin(**plugin.model_dump())


def _theme(theme: Theme) -> WordPressTheme:
    return WordPressTheme(**theme.model_dump())
