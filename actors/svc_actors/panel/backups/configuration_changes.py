"""The changes that restoring a backup's configuration makes: shown before, applied by `ConfigurationRestore`, checked
after.

What the backup has comes back; what was added since stays. Nobody loses anything: a name that leads to another site by
now, or whose domain has another customer's names, is left out, and so are the records of its zone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from svc_actors.errors import ServiceError
from svc_actors.panel.apps.records import read_app
from svc_actors.panel.apps.variables import MOST_VARIABLES, open_variables, variable_mark
from svc_actors.panel.backups.configuration import Configuration, StoredApp, StoredRedirect, StoredTask
from svc_actors.panel.dns.records import read_records
from svc_actors.panel.dns.restoring import change_of
from svc_actors.panel.schedules.cron import BadCronError, Cron, zone_of
from svc_actors.panel.schedules.records import MOST_OF_A_SITE
from svc_actors.panel.sites.claims import MOST_NAMES
from svc_actors.panel.sites.denied_paths import MOST_DENIED
from svc_actors.panel.sites.names import SiteName
from svc_actors.panel.sites.php import PHP_TYPES, SitePhp
from svc_actors.panel.sites.protected_paths import MOST_PROTECTED, logins_of_paths
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.redirects import MOST_REDIRECTS
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable

APP_FIELDS: Final = tuple(StoredApp.model_fields)
TASK_FIELDS: Final = ("kind", "path", "args", "cron", "time_zone", "time_limit_seconds", "enabled")


class Part(StrEnum):
    NAME = "name"
    REDIRECT = "redirect"
    DENIED = "denied_path"
    PROTECTED = "protected_path"
    RECORD = "record"
    HTTPS = "https"
    PHP = "php"
    APP = "app"
    VARIABLE = "variable"
    TASK = "task"
    CERTIFICATE = "certificate"


class Action(StrEnum):
    ADD = "add"
    CHANGE = "change"
    LEAVE_OUT = "leave_out"


@dataclass(frozen=True)
class Change:
    """`detail`: the new value, or why the change is left out."""

    part: Part
    name: str
    action: Action
    detail: str

    def __str__(self) -> str:
        verb = {Action.ADD: "added", Action.CHANGE: "changed", Action.LEAVE_OUT: "left out"}[self.action]
        return f"{self.part} {self.name}: {verb}, {self.detail}"


@dataclass(frozen=True)
class Allowed:
    """What this server accepts. `name` raises ServiceError for a name that no site may have."""

    name: Callable[[str], SiteName]
    php_versions: Collection[str]
    nameservers: Collection[str]


async def changes_of(
    queryable: Queryable, sealer: Sealer, site: SiteRow, configuration: Configuration, allowed: Allowed
) -> list[Change]:
    """In the order in which they are applied."""
    names = await _names(queryable, site, configuration, allowed)
    added = [change.name for change in names if change.action is Action.ADD]
    return [
        *names,
        *await _redirects(queryable, site, configuration),
        *await _denied(queryable, site, configuration),
        *await _protected(queryable, site, configuration),
        *_https(site, configuration),
        *_php(site, configuration, allowed),
        *await _app(queryable, sealer, site, configuration),
        *await _tasks(queryable, site, configuration),
        *await _records(queryable, site, configuration, allowed, added),
        *await _certificate(queryable, site, configuration),
    ]


async def _names(queryable: Queryable, site: SiteRow, configuration: Configuration, allowed: Allowed) -> list[Change]:
    rows = await queryable.fetch("SELECT name, redirect_to_primary FROM site_domains WHERE site_id = $1", site.id)
    own = {row["name"]: row["redirect_to_primary"] for row in rows}
    room = MOST_NAMES - len(own)
    found = []
    for stored in configuration.domains:
        to_primary = stored.redirect_to_primary and stored.name != site.domain
        becomes = "redirected to the primary" if to_primary else "served as the site"
        if stored.name in own:
            if own[stored.name] != to_primary:
                found.append(Change(Part.NAME, stored.name, Action.CHANGE, becomes))
            continue
        why = await _not_free(queryable, site, stored.name, allowed)
        if why is None and room == 0:
            why = f"a site has at most {MOST_NAMES} names"
        if why is not None:
            found.append(Change(Part.NAME, stored.name, Action.LEAVE_OUT, why))
            continue
        room -= 1
        found.append(Change(Part.NAME, stored.name, Action.ADD, becomes))
    return found


async def _not_free(queryable: Queryable, site: SiteRow, name: str, allowed: Allowed) -> str | None:
    try:
        registrable = allowed.name(name).registrable
    except ServiceError as error:
        return error.message
    if await queryable.fetchval("SELECT true FROM site_domains WHERE name = $1", name):
        return "it is now a name of another site"
    foreign = await queryable.fetchval(
        """SELECT true FROM site_domains JOIN sites ON sites.id = site_id
           WHERE registrable = $1 AND sites.owner_id <> $2 LIMIT 1""",
        registrable,
        site.owner_id,
    )
    return f"another customer now has a name of {registrable}" if foreign else None


async def _redirects(queryable: Queryable, site: SiteRow, configuration: Configuration) -> list[Change]:
    rows = await queryable.fetch("SELECT path, below, target, status FROM site_redirects WHERE site_id = $1", site.id)
    own = {redirect.name: redirect for redirect in (StoredRedirect.model_validate(dict(row)) for row in rows)}
    room = MOST_REDIRECTS - len(own)
    found = []
    for stored in configuration.redirects:
        there = own.get(stored.name)
        if there == stored:
            continue
        if there is None and room == 0:
            why = f"a site has at most {MOST_REDIRECTS} redirects"
            found.append(Change(Part.REDIRECT, stored.name, Action.LEAVE_OUT, why))
            continue
        room -= there is None
        action = Action.ADD if there is None else Action.CHANGE
        found.append(Change(Part.REDIRECT, stored.name, action, f"to {stored.target} with {stored.status}"))
    return found


async def _denied(queryable: Queryable, site: SiteRow, configuration: Configuration) -> list[Change]:
    rows = await queryable.fetch("SELECT pattern FROM site_denied_paths WHERE site_id = $1", site.id)
    own = {row["pattern"] for row in rows}
    missing = [stored.pattern for stored in configuration.denied if stored.pattern not in own]
    room = MOST_DENIED - len(own)
    why = f"a site has at most {MOST_DENIED} denied paths"
    return [
        *(Change(Part.DENIED, pattern, Action.ADD, "visitors are refused it") for pattern in missing[:room]),
        *(Change(Part.DENIED, pattern, Action.LEAVE_OUT, why) for pattern in missing[room:]),
    ]


async def _protected(queryable: Queryable, site: SiteRow, configuration: Configuration) -> list[Change]:
    own = (await logins_of_paths(queryable, [site.id])).get(site.id, {})
    room = MOST_PROTECTED - len(own)
    found = []
    for stored in configuration.protected:
        there = own.get(stored.path)
        if there is not None and stored.logins.items() <= there.items():
            continue
        if there is None and room == 0:
            why = f"a site has at most {MOST_PROTECTED} protected paths"
            found.append(Change(Part.PROTECTED, stored.path, Action.LEAVE_OUT, why))
            continue
        room -= there is None
        action = Action.ADD if there is None else Action.CHANGE
        found.append(Change(Part.PROTECTED, stored.path, action, f"opened by {', '.join(sorted(stored.logins))}"))
    return found


def _https(site: SiteRow, configuration: Configuration) -> list[Change]:
    wanted = configuration.site[0].force_https
    if wanted == site.force_https:
        return []
    return [
        Change(Part.HTTPS, site.domain, Action.CHANGE, "visitors are sent to https" if wanted else "http is served")
    ]


def _php(site: SiteRow, configuration: Configuration, allowed: Allowed) -> list[Change]:
    if site.type not in PHP_TYPES or not configuration.site[0].php:
        return []
    try:
        wanted = SitePhp.model_validate(configuration.site[0].php)
    except ValidationError:
        return [Change(Part.PHP, site.domain, Action.LEAVE_OUT, "this release does not know these settings")]
    now = SitePhp.model_validate(site.php)
    if (wanted.version, wanted.settings) == (now.version, now.settings):
        return []
    if wanted.version not in allowed.php_versions:
        return [Change(Part.PHP, site.domain, Action.LEAVE_OUT, f"PHP {wanted.version} is no longer installed")]
    return [Change(Part.PHP, site.domain, Action.CHANGE, f"PHP {wanted.version} with the settings of the backup")]


async def _app(queryable: Queryable, sealer: Sealer, site: SiteRow, configuration: Configuration) -> list[Change]:
    """The application and its variables."""
    app = await read_app(queryable, site.id)
    if app is None or not configuration.app:
        return []
    stored, now = configuration.app[0], StoredApp.model_validate({name: getattr(app, name) for name in APP_FIELDS})
    if stored.runtime != now.runtime:
        return [
            Change(Part.APP, site.domain, Action.LEAVE_OUT, f"it is for {stored.runtime}, the site has {now.runtime}")
        ]
    found = []
    if stored != now:
        where = f"{stored.entry} in {stored.folder or 'the folder of the site'}"
        found.append(Change(Part.APP, site.domain, Action.CHANGE, f"{where}, from its next start"))
    own = {
        name: variable_mark(sealer, name, value)
        for name, value in (await open_variables(queryable, sealer, site.id)).items()
    }
    room = MOST_VARIABLES - len(own)
    for variable in configuration.variables:
        if own.get(variable.name) == variable.mark:
            continue
        if variable.name not in own and room == 0:
            why = f"an application has at most {MOST_VARIABLES} variables"
            found.append(Change(Part.VARIABLE, variable.name, Action.LEAVE_OUT, why))
            continue
        room -= variable.name not in own
        action = Action.CHANGE if variable.name in own else Action.ADD
        found.append(Change(Part.VARIABLE, variable.name, action, "the value of the backup, from the next start"))
    return found


async def _tasks(queryable: Queryable, site: SiteRow, configuration: Configuration) -> list[Change]:
    rows = await queryable.fetch(f"SELECT name, {', '.join(TASK_FIELDS)} FROM schedules WHERE site_id = $1", site.id)
    own = {row["name"]: StoredTask.model_validate(dict(row)) for row in rows}
    room = MOST_OF_A_SITE - len(own)
    found = []
    for stored in configuration.schedules:
        there = own.get(stored.name)
        if there == stored:
            continue
        why = _bad_times(stored)
        if why is None and there is None and room == 0:
            why = f"a site has at most {MOST_OF_A_SITE} scheduled tasks"
        if why is not None:
            found.append(Change(Part.TASK, stored.name, Action.LEAVE_OUT, why))
            continue
        room -= there is None
        action = Action.ADD if there is None else Action.CHANGE
        path = stored.path.partition("?")[0]  # A query may hold a key, and members who may only look read this.
        found.append(Change(Part.TASK, stored.name, action, f"{stored.kind} {path} at {stored.cron}"))
    return found


def _bad_times(stored: StoredTask) -> str | None:
    try:
        Cron.parse(stored.cron)
        zone_of(stored.time_zone)
    except BadCronError as error:
        return str(error)
    return None


async def _records(
    queryable: Queryable, site: SiteRow, configuration: Configuration, allowed: Allowed, added: Sequence[str]
) -> list[Change]:
    held = await queryable.fetch("SELECT DISTINCT registrable FROM site_domains WHERE site_id = $1", site.id)
    ours = {row["registrable"] for row in held} | {allowed.name(name).registrable for name in added}
    found = []
    for zone, wanted in sorted(configuration.zones.items()):
        owner_id = await queryable.fetchval("SELECT owner_id FROM dns_zones WHERE name = $1", zone)
        if zone not in ours or owner_id not in (None, site.owner_id):
            why = "the site has no name of this domain" if zone not in ours else "the zone is in use by somebody else"
            found.append(Change(Part.RECORD, zone, Action.LEAVE_OUT, why))
            continue
        there = await read_records(queryable, zone)
        change = change_of(zone, allowed.nameservers, there, wanted)
        found += [Change(Part.RECORD, name, Action.LEAVE_OUT, why) for name, why in sorted(change.refused.items())]
        had = {record.name for record in change.removed}
        for name in sorted({record.name for record in change.added}):
            texts = [f"{each.type} {each.data.rdata().to_text()}" for each in change.added if each.name == name]
            found.append(
                Change(Part.RECORD, name, Action.CHANGE if name in had else Action.ADD, "; ".join(texts)[:500])
            )
    return found


async def _certificate(queryable: Queryable, site: SiteRow, configuration: Configuration) -> list[Change]:
    stored = configuration.certificate
    if stored is None:
        return []
    row = await queryable.fetchrow(
        "SELECT source, fingerprint, not_after FROM site_certificates WHERE site_id = $1", site.id
    )
    uploaded = row is not None and row["source"] == "uploaded"
    if row is not None and uploaded and row["fingerprint"] == stored.fingerprint:
        return []
    what = ", ".join(stored.names[:5])
    if stored.not_after <= datetime.now(UTC):
        why = f"it ended on {stored.not_after:%Y-%m-%d}"
    elif not {site.domain, f"*.{site.domain.partition('.')[2]}"} & set(stored.names):
        why = f"it is not for {site.domain}"
    elif row is not None and uploaded and row["not_after"] > stored.not_after:
        why = "the site has one of its own that ends later"
    else:
        action = Action.ADD if row is None else Action.CHANGE
        return [Change(Part.CERTIFICATE, what, action, f"the customer's own, until {stored.not_after:%Y-%m-%d}")]
    return [Change(Part.CERTIFICATE, what, Action.LEAVE_OUT, why)]
