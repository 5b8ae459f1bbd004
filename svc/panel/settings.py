"""GET and PATCH /settings of the panel."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from pydantic import Field

from svc.identity.settings import Settings, SettingsUpdate, change_settings, read_as
from svc.panel.services import Panel
from svc.panel.sites.sites import name_of_a_site
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.backups.schedules import DEFAULT_BACKUPS, DefaultBackups
from svc_actors.panel.mail.limits import PER_DAY, PER_HOUR
from svc_actors.panel.sites.claims import require_free_for_previews
from svc_actors.panel.sites.names import SiteName, is_below
from svc_actors.panel.sites.previews import LONGEST_DOMAIN
from svc_common.errors import wrong_field

operations = Operations[Panel]()

MOST_MAILS: Final = 1_000_000
MailsPerHour = Annotated[int, Field(ge=0, le=MOST_MAILS, description="Mails of a site in an hour, by recipient.")]
MailsPerDay = Annotated[int, Field(ge=0, le=MOST_MAILS, description="Mails of a site in a day, by recipient.")]

SpfMechanisms = Annotated[
    str,
    Field(max_length=200, description="What lets the relay send in SPF, such as include:spf.relay.example; or empty."),
    Shape(r"(?:[A-Za-z0-9+?~:/._%{}-]+(?: [A-Za-z0-9+?~:/._%{}-]+)*)?", "mechanisms such as include:spf.relay.example"),
]


PreviewDomain = Annotated[
    str,
    Field(max_length=LONGEST_DOMAIN, description="Sites have their previews below this name; empty: none."),
    Shape(r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)?", "a name such as preview.example.net, or nothing"),
]


class PanelSettings(Settings):
    """In addition to the settings of every service: `default_backups` is how often a new site is backed up, unless its
    owner's plan says otherwise. A site's owner may change its schedule. `site_mails_...` is how many mails the programs
    of a site may send, unless the site or its owner's plan has a limit of its own; `site_mail_spf` is what SPF records
    of their domains need for the relay (docs/mail.md). `preview_domain`: the name below which every site has a preview
    address (docs/sites.md)."""

    default_backups: DefaultBackups = DEFAULT_BACKUPS
    site_mails_per_hour: int = PER_HOUR
    site_mails_per_day: int = PER_DAY
    site_mail_spf: str = ""
    preview_domain: str = ""


class PanelSettingsUpdate(SettingsUpdate):
    default_backups: DefaultBackups | None = None
    site_mails_per_hour: MailsPerHour | None = None
    site_mails_per_day: MailsPerDay | None = None
    site_mail_spf: SpfMechanisms | None = None
    preview_domain: PreviewDomain | None = None


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
    if not request.preview_domain:
        return await change_settings(PanelSettings, context, request)
    domain = _preview_domain(context, request.preview_domain)
    request = request.model_copy(update={"preview_domain": domain.name})
    return await change_settings(PanelSettings, context, request, partial(require_free_for_previews, domain=domain))


def _preview_domain(context: Context[Panel], text: str) -> SiteName:
    """The name in its canonical form. Raises `invalid` for names whose cookies browsers would send to the panel, since
    programs of all customers run at names below it."""
    config = context.services.config
    name = name_of_a_site(config, text, provider=True)
    if any(is_below(own, name.registrable) for own in config.browser_names):
        raise wrong_field(
            "preview_domain",
            f"{name.name} is in the panel's own domain {name.registrable}, where programs of sites could set cookies"
            " that browsers send to the panel",
            hint="Give a name in another domain of yours.",
        )
    return name
