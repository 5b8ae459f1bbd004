"""The changes that restoring a backup's configuration makes: they are shown before, applied by `ConfigurationRestore`,
and verified afterwards.

Everything in the backup is restored; what was added since stays. No other customer loses anything: a name that leads to
another site by now, or whose domain has another customer's names, is left out, and so are the records of its zone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from svc_actors.panel.apps.records import read_app
from svc_actors.panel.apps.variables import (
    MOST_VARIABLE_BYTES,
    MOST_VARIABLES,
    open_variables,
    variable_bytes,
    variable_mark,
)
from svc_actors.panel.backups.configuration import LISTS, Configuration, Part, StoredApp, StoredList
from svc_actors.panel.dns.records import read_records
from svc_actors.panel.dns.restoring import change_of
from svc_actors.panel.sites.claims import MOST_NAMES
from svc_actors.panel.sites.names import SiteName
from svc_actors.panel.sites.php import PHP_TYPES, SitePhp
from svc_actors.panel.sites.records import SiteRow
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable
from svc_common.errors import ServiceError
from svc_webhost.accepted import is_fallback_page

APP_FIELDS: Final = tuple(StoredApp.model_fields)


class ConfigurationAction(StrEnum):
    ADD = "add"
    CHANGE = "change"
    LEAVE_OUT = "leave_out"


@dataclass(frozen=True)
class Change:
    """`detail`: the new value, or why the change is left out."""

    part: Part
    name: str
    action: ConfigurationAction
    detail: str

    def __str__(self) -> str:
        verb = {
            ConfigurationAction.ADD: "added",
            ConfigurationAction.CHANGE: "changed",
            ConfigurationAction.LEAVE_OUT: "left out",
        }[self.action]
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
    """The changes that a restore would make, in the order in which they are applied."""
    names = await _names(queryable, site, configuration, allowed)
    added = [change.name for change in names if change.action is ConfigurationAction.ADD]
    return [
        *names,
        *[change for each in LISTS for change in await _of_list(queryable, site, each, configuration)],
        *_https(site, configuration),
        *_files(site, configuration),
        *_php(site, configuration, allowed),
        *await _app(queryable, sealer, site, configuration),
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
                found.append(Change(Part.NAME, stored.name, ConfigurationAction.CHANGE, becomes))
            continue
        why = await _not_free(queryable, site, stored.name, allowed)
        if why is None and room == 0:
            why = f"a site has at most {MOST_NAMES} names"
        if why is not None:
            found.append(Change(Part.NAME, stored.name, ConfigurationAction.LEAVE_OUT, why))
            continue
        room -= 1
        found.append(Change(Part.NAME, stored.name, ConfigurationAction.ADD, becomes))
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


async def _of_list(
    queryable: Queryable, site: SiteRow, stored_list: StoredList, configuration: Configuration
) -> list[Change]:
    rows = await queryable.fetch(stored_list.query, site.id)
    own = {entry.identity: entry for entry in (stored_list.entry.model_validate(row[0]) for row in rows)}
    room = stored_list.most - len(own)
    found = []
    for stored in getattr(configuration, stored_list.key):
        there = own.get(stored.identity)
        if there is not None and stored.held_by(there):
            continue
        why = stored.refusal()
        if why is None and there is None and room == 0:
            why = f"a site has at most {stored_list.most} {stored_list.plural}"
        if why is not None:
            found.append(Change(stored_list.part, stored.identity, ConfigurationAction.LEAVE_OUT, why))
            continue
        room -= there is None
        action = ConfigurationAction.ADD if there is None else ConfigurationAction.CHANGE
        found.append(Change(stored_list.part, stored.identity, action, stored.detail))
    return found


def _https(site: SiteRow, configuration: Configuration) -> list[Change]:
    wanted = configuration.site[0].force_https
    if wanted == site.force_https:
        return []
    return [
        Change(
            Part.HTTPS,
            site.domain,
            ConfigurationAction.CHANGE,
            "visitors are sent to https" if wanted else "http is served",
        )
    ]


def _files(site: SiteRow, configuration: Configuration) -> list[Change]:
    stored, found = configuration.site[0], list[Change]()
    page, cached = stored.fallback_page, stored.cache_assets
    if "fallback_page" in stored.model_fields_set and page != site.fallback_page:
        action, detail = ConfigurationAction.CHANGE, f"{page or 'no page'} answers for paths without a file"
        if page is not None and not is_fallback_page(page):
            action, detail = ConfigurationAction.LEAVE_OUT, "this release does not accept the page"
        found.append(Change(Part.FALLBACK_PAGE, site.domain, action, detail))
    if "cache_assets" in stored.model_fields_set and cached != site.cache_assets:
        detail = "browsers keep files with a hash in their name" if cached else "browsers ask for all files again"
        found.append(Change(Part.CACHING, site.domain, ConfigurationAction.CHANGE, detail))
    if "utf8_pages" in stored.model_fields_set and stored.utf8_pages != site.utf8_pages:
        detail = "files of HTML are sent as UTF-8" if stored.utf8_pages else "files of HTML say their character set"
        found.append(Change(Part.CHARSET, site.domain, ConfigurationAction.CHANGE, detail))
    return found


def _php(site: SiteRow, configuration: Configuration, allowed: Allowed) -> list[Change]:
    if site.type not in PHP_TYPES or not configuration.site[0].php:
        return []
    try:
        wanted = SitePhp.model_validate(configuration.site[0].php)
    except ValidationError:
        return [
            Change(Part.PHP, site.domain, ConfigurationAction.LEAVE_OUT, "this release does not know these settings")
        ]
    now = SitePhp.model_validate(site.php)
    if (wanted.version, wanted.settings) == (now.version, now.settings):
        return []
    if wanted.version not in allowed.php_versions:
        return [
            Change(Part.PHP, site.domain, ConfigurationAction.LEAVE_OUT, f"PHP {wanted.version} is no longer installed")
        ]
    return [
        Change(
            Part.PHP, site.domain, ConfigurationAction.CHANGE, f"PHP {wanted.version} with the settings of the backup"
        )
    ]


async def _app(queryable: Queryable, sealer: Sealer, site: SiteRow, configuration: Configuration) -> list[Change]:
    """The application and its variables."""
    app = await read_app(queryable, site.id)
    if app is None or not configuration.app:
        return []
    stored, now = configuration.app[0], StoredApp.model_validate({name: getattr(app, name) for name in APP_FIELDS})
    if stored.runtime != now.runtime:
        return [
            Change(
                Part.APP,
                site.domain,
                ConfigurationAction.LEAVE_OUT,
                f"it is for {stored.runtime}, the site has {now.runtime}",
            )
        ]
    found = []
    if stored != now:
        where = f"{stored.entry} in {stored.folder or 'the folder of the site'}"
        found.append(Change(Part.APP, site.domain, ConfigurationAction.CHANGE, f"{where}, from its next start"))
    return found + _variables(sealer, await open_variables(queryable, sealer, site.id), configuration)


def _variables(sealer: Sealer, own: Mapping[str, str], configuration: Configuration) -> list[Change]:
    differing = [
        each
        for each in configuration.variables
        if each.name not in own or variable_mark(sealer, each.name, own[each.name]) != each.mark
    ]
    growth = {
        each.name: each.size - (variable_bytes(each.name, own[each.name]) if each.name in own else 0)
        for each in differing
    }
    room = MOST_VARIABLES - len(own)
    # Variables whose values become shorter are counted first, wherever they stand in the list. Otherwise a variable
    # could be left out for lack of room and fit after the restoration, which the verification would report as a
    # difference that it cannot see now.
    taken = sum(variable_bytes(name, value) for name, value in own.items())
    taken += sum(min(more, 0) for more in growth.values())
    found = []
    for variable in differing:
        more = max(growth[variable.name], 0)
        why = None
        if variable.name not in own and room == 0:
            why = f"an application has at most {MOST_VARIABLES} variables"
        elif more and taken + more > MOST_VARIABLE_BYTES:
            why = f"the variables of an application have at most {MOST_VARIABLE_BYTES // 1024} KiB together"
        if why is not None:
            found.append(Change(Part.VARIABLE, variable.name, ConfigurationAction.LEAVE_OUT, why))
            continue
        room -= variable.name not in own
        taken += more
        action = ConfigurationAction.CHANGE if variable.name in own else ConfigurationAction.ADD
        found.append(Change(Part.VARIABLE, variable.name, action, "the value of the backup, from the next start"))
    return found


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
            found.append(Change(Part.RECORD, zone, ConfigurationAction.LEAVE_OUT, why))
            continue
        there = await read_records(queryable, zone)
        change = change_of(zone, allowed.nameservers, there, wanted)
        found += [
            Change(Part.RECORD, name, ConfigurationAction.LEAVE_OUT, why)
            for name, why in sorted(change.refused.items())
        ]
        had = {record.name for record in change.removed}
        for name in sorted({record.name for record in change.added}):
            texts = [f"{each.type} {each.data.rdata().to_text()}" for each in change.added if each.name == name]
            found.append(
                Change(
                    Part.RECORD,
                    name,
                    ConfigurationAction.CHANGE if name in had else ConfigurationAction.ADD,
                    "; ".join(texts)[:500],
                )
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
        action = ConfigurationAction.ADD if row is None else ConfigurationAction.CHANGE
        return [Change(Part.CERTIFICATE, what, action, f"the customer's own, until {stored.not_after:%Y-%m-%d}")]
    return [Change(Part.CERTIFICATE, what, ConfigurationAction.LEAVE_OUT, why)]
