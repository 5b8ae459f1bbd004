"""The plan of an import: for every item of the archive, whether it is imported, changed or left out, and why. Pure.

The plan is applied with the same functions, so the plan and its result agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from svc_actors.panel.imports.zones import ImportedZones, ZoneHere
from svc_actors.panel.schedules.cron import BadCronError, Cron
from svc_actors.panel.sites.names import site_name
from svc_actors.panel.wordpress.database import LABEL as WORDPRESS_LABEL
from svc_common.errors import ServiceError
from svc_webhost.accepted import is_protected_place, no_programs_in
from svc_webhost.archives.crontab import NoTaskError, Task, typed
from svc_webhost.archives.htaccess import MOST_NAMED
from svc_webhost.archives.model import (
    Account,
    FoundDatabase,
    FoundPasswords,
    FoundRules,
    FoundSite,
    FoundTask,
    Kind,
)
from svc_webhost.archives.placing import name_in_site
from svc_webhost.archives.tree import NO_DOMAIN

NOT_SERVED: Final = "no imported site has this as its registered domain, so it is not served here"
_NAMED: Final = 10
"""The most left-out logins that are named."""


class PlanAction(StrEnum):
    IMPORT = "import"
    CHANGE = "change"
    LEAVE_OUT = "leave_out"


@dataclass(frozen=True)
class Item:
    """`id` is what callers use to leave the item out; an item without an id is imported or left out with its parent."""

    kind: Kind
    name: str
    action: PlanAction
    reason: str
    id: str | None = None


@dataclass(frozen=True)
class ServerFacts:
    """The facts of this server that decide a plan."""

    php_versions: Sequence[str]
    addresses: Sequence[IPv4Address | IPv6Address] = ()


@dataclass(frozen=True)
class Choices:
    """`domains`: new names instead of those in the archive. `without`: ids of items."""

    domains: Mapping[str, str]
    without: frozenset[str]

    def domain(self, site: FoundSite) -> str:
        return self.domains.get(site.domain, site.domain)

    def wants(self, kind: Kind, name: str) -> bool:
        return f"{kind.value}:{name}" not in self.without


NO_CHOICES: Final = Choices({}, frozenset())


def items_of(account: Account, server: ServerFacts, choices: Choices = NO_CHOICES) -> list[Item]:
    items: list[Item] = []
    for site in account.sites:
        rules = rules_of(account, site)
        items += _site(site, rules, server, choices)
        items += _configurations(account, site)
        items += _rules(rules, choices.domain(site))
        for path in uploads_of(account, site):
            pattern = no_programs_in(path)
            reason = f"where {site.uploads[path]} keeps uploads: no PHP is run there, the path {pattern} is denied"
            items.append(_chosen(Kind.CONFIGURATION, f"{site.domain}{path}", PlanAction.CHANGE, reason))
    for database in account.databases:
        items += _database(account, database)
    zones = ImportedZones(account.zones, names_of(account, choices), server.addresses)
    served = registered(account, choices)
    for zone in account.zones:
        if zone.name in served:
            items += _zone(zone.name, zones.here(zone.name))
        else:
            items.append(Item(Kind.DNS, zone.name, PlanAction.LEAVE_OUT, NOT_SERVED))
    for certificate in account.certificates:
        reason = "it is served if it is valid, and its key is its own"
        items.append(_chosen(Kind.CERTIFICATE, certificate.domain, PlanAction.IMPORT, reason))
    for number, passwords in enumerate(account.passwords):
        items.append(_passwords(account, number, passwords, choices))
    for number, task in enumerate(account.tasks):
        name = f"{task.cron} {task.command}"[:200]
        try:
            found = _typed(task, account)
        except NoTaskError as error:
            items.append(Item(Kind.TASK, name, PlanAction.LEAVE_OUT, f"{error}: add it as a scheduled task yourself"))
        else:
            domain = choices.domains.get(found.domain, found.domain)
            reason = f"a task of {domain}, its times in UTC: {found.kind} {found.path}"
            items.append(Item(Kind.TASK, name, PlanAction.CHANGE, reason, f"{Kind.TASK.value}:{number}"))
    items += [Item(left.kind, left.name, PlanAction.LEAVE_OUT, left.reason) for left in account.left]
    return items


def site_php(site: FoundSite, server: ServerFacts) -> str | None:
    """The PHP version that the site gets; None if the server has none that fits."""
    for version in (site.php, site.command_line_php):
        if version in server.php_versions:
            return version
    return next(iter(server.php_versions), None)


def label_of(database: FoundDatabase, account: Account) -> str:
    """The database's name here: without the prefix that the other host gave it."""
    site = next((site for site in account.sites if site.domain == database.site), None)
    if site is not None and is_wordpress_database(site, database):
        return WORDPRESS_LABEL
    bare = re.sub(r"[^a-z0-9_]+", "_", database.name.lower()).strip("_")
    if "_" in bare and len(bare.split("_", 1)[1]) > 1:
        bare = bare.split("_", 1)[1]
    return re.sub(r"^[^a-z]+", "", bare)[:32].rstrip("_") or "imported"


def labels_of(account: Account) -> dict[str, str]:
    """Labels of all databases, by their name on the old host; unique within a site."""
    taken: set[tuple[str | None, str]] = set()
    labels: dict[str, str] = {}
    for database in account.databases:
        label, number = label_of(database, account), 2
        while (database.site, label) in taken:
            label, number = f"{label_of(database, account)[:29]}_{number}", number + 1
        taken.add((database.site, label))
        labels[database.name] = label
    return labels


def readers_of(account: Account) -> dict[str, str]:
    """Labels of the users who can only read a database, by its name on the old host; different from all labels of
    databases, which are names of users as well."""
    labels = labels_of(account)
    readers: dict[str, str] = {}
    for database in account.databases:
        if database.readers:
            label, number = f"{labels[database.name][:27]}_ro", 2
            while label in {*labels.values(), *readers.values()}:
                label, number = f"{labels[database.name][:27]}_ro{number}", number + 1
            readers[database.name] = label
    return readers


def is_wordpress_database(site: FoundSite, database: FoundDatabase) -> bool:
    return site.wordpress is not None and site.database == database.name


def is_configured(site: FoundSite, database: FoundDatabase) -> bool:
    """Whether the new database is written into a configuration of the site."""
    return (site.wordpress or site.configuration) is not None and site.database == database.name


def configuration_of(account: Account, site: FoundSite) -> str | None:
    """The configuration into which the site's database is written; None if the archive does not have the database."""
    there = any(each.site == site.domain and is_configured(site, each) for each in account.databases)
    return (site.wordpress or site.configuration) if there else None


def names_of(account: Account, choices: Choices) -> frozenset[str]:
    """The names of the sites that are imported."""
    return frozenset(
        name
        for site in account.sites
        if choices.wants(Kind.SITE, site.domain)
        for name in (choices.domain(site), *aliases_of(site, choices))
    )


def aliases_of(site: FoundSite, choices: Choices) -> list[str]:
    """The aliases to import. A site that gets another domain loses its aliases, except that it gets `www.` before the
    new domain."""
    new = choices.domain(site)
    if new == site.domain:
        return [alias for alias in site.aliases if choices.wants(Kind.ALIAS, alias)]
    return [f"www.{new}"] if f"www.{site.domain}" in site.aliases else []


def uploads_of(account: Account, site: FoundSite, choices: Choices = NO_CHOICES) -> list[str]:
    """Folders of uploads in which no PHP may run. In the upload folder of a WordPress, the web server prevents that
    anyway."""
    wordpress = any(is_wordpress_database(site, database) for database in account.databases)
    chosen = [path for path in site.uploads if choices.wants(Kind.CONFIGURATION, f"{site.domain}{path}")]
    return [path for path in chosen if not (wordpress and path == "/wp-content/uploads")]


def task_of(account: Account, number: int) -> Task | None:
    try:
        return _typed(account.tasks[number], account)
    except NoTaskError:
        return None


def _typed(task: FoundTask, account: Account) -> Task:
    """Raises `NoTaskError`."""
    found = typed(task, account.sites)
    try:
        Cron.parse(found.cron)
    except BadCronError as error:
        raise NoTaskError(str(error)) from None
    return found


def registered(account: Account, choices: Choices) -> frozenset[str]:
    """The names that zones of imported sites can have here: those that were registered."""
    found = set()
    for name in names_of(account, choices):
        with suppress(ServiceError):
            found.add(site_name(name).registrable)
    return frozenset(found)


def _chosen(kind: Kind, name: str, action: PlanAction, reason: str) -> Item:
    return Item(kind, name, action, reason, f"{kind.value}:{name}")


def rules_of(account: Account, site: FoundSite) -> FoundRules:
    return next((each for each in account.rules if each.site == site.domain), FoundRules(site.domain))


def _site(site: FoundSite, rules: FoundRules, server: ServerFacts, choices: Choices) -> list[Item]:
    domain = choices.domain(site)
    size = f"{site.files:,} files, {site.size:,} bytes"
    if rules.blocks:
        size += (
            f"; it is suspended until its owner has checked lines of its .htaccess files that have no equivalent here "
            f"({rules.blocks}), unless it is applied with --accept-htaccess"
        )
    if domain == NO_DOMAIN:
        items = [
            _chosen(Kind.SITE, site.domain, PlanAction.CHANGE, f"{size}; the archive does not say its domain: give one")
        ]
    elif domain != site.domain:
        items = [_chosen(Kind.SITE, site.domain, PlanAction.CHANGE, f"{size}; it becomes {domain}")]
    else:
        action = PlanAction.CHANGE if rules.blocks else PlanAction.IMPORT
        items = [_chosen(Kind.SITE, site.domain, action, size)]
    kept = aliases_of(site, choices)
    for alias in site.aliases:
        if alias in kept or domain == site.domain:
            items.append(_chosen(Kind.ALIAS, alias, PlanAction.IMPORT, f"a name of {domain}"))
        else:
            items.append(Item(Kind.ALIAS, alias, PlanAction.LEAVE_OUT, "its site gets another domain"))
    php = site_php(site, server)
    if site.php is None or php != site.php:
        before = f"PHP {site.php} is not installed here" if site.php else "the archive does not say which PHP it had"
        gets = f"the site gets PHP {php}" if php else "the site gets no PHP, as the server has none"
        items.append(Item(Kind.PHP, domain, PlanAction.CHANGE, f"{before}: {gets}"))
    else:
        items.append(Item(Kind.PHP, domain, PlanAction.IMPORT, f"PHP {php}"))
    items += _around(site)
    return items


def _configurations(account: Account, site: FoundSite) -> list[Item]:
    written = configuration_of(account, site)
    listed = [*([] if site.wordpress is None else [site.wordpress]), *site.applications]
    items = []
    for path in listed:
        if written is not None and (path == written or path.startswith(f"{written} (")):
            reason = f"its database ({site.database}) is written into it, and nothing else of it is changed"
            items.append(Item(Kind.CONFIGURATION, path, PlanAction.CHANGE, reason))
        else:
            reason = "it is kept as it is: write the new names and passwords of databases into it yourself"
            items.append(Item(Kind.CONFIGURATION, path, PlanAction.LEAVE_OUT, reason))
    return items


def _rules(rules: FoundRules, domain: str) -> list[Item]:
    """What becomes of the site's .htaccess files."""
    items = [
        Item(Kind.CONFIGURATION, domain, PlanAction.CHANGE, from_rules(each)) for each in rules.settings[:MOST_NAMED]
    ]
    items += [Item(Kind.CONFIGURATION, domain, PlanAction.LEAVE_OUT, each) for each in rules.blocking]
    if (more := rules.blocks - len(rules.blocking)) > 0:
        items.append(
            Item(Kind.CONFIGURATION, domain, PlanAction.LEAVE_OUT, f"{more} more lines of its .htaccess files")
        )
    return items


def from_rules(setting: str) -> str:
    return f"from .htaccess: {setting}"[:300]


def _around(site: FoundSite) -> list[Item]:
    """The folders and files that come along with the document root."""
    items = []
    if site.application is not None:
        root = f"{site.root.rpartition('/')[2]}/"
        reason = f"the folder of its application: all of it is placed next to public/, which was {root} there"
        items.append(Item(Kind.FILES, site.application or "/", PlanAction.IMPORT, reason))
        for name in site.renamed:
            reason = f"it becomes private/{name}, as {name}/ has another meaning here"
            items.append(Item(Kind.FILES, f"{site.application}/{name}".lstrip("/"), PlanAction.CHANGE, reason))
    for path in site.home:
        reason = f"outside of its document root, as {name_in_site(site, path)}"
        items.append(Item(Kind.FILES, path, PlanAction.IMPORT, reason))
    return items


def _database(account: Account, database: FoundDatabase) -> list[Item]:
    if database.site is None:
        return [Item(Kind.DATABASE, database.name, PlanAction.LEAVE_OUT, "it belongs to no imported site")]
    label = labels_of(account)[database.name]
    reason = f"of {database.site}, called {label} behind the site's prefix"
    items = [_chosen(Kind.DATABASE, database.name, PlanAction.CHANGE, reason)]
    reader = readers_of(account).get(database.name)
    return [*items, *(_database_user(database, user, label, reader) for user in database.users)]


def _database_user(database: FoundDatabase, user: str, label: str, reader: str | None) -> Item:
    if user in database.readers:
        said = [f"called {reader} here, as all who could only read this database, and can only read it"]
    else:
        said = [f"called {label} here, as all users of this database who could do more than read"]
        if user in database.rights:
            said.append(f"it had {database.rights[user]}, and has all rights in it now")
    said.append("with a new password (svc database-user reset-password)")
    if user in database.hosts:
        said.append(
            f"its access from {', '.join(database.hosts[user])} ends: only programs of the site reach databases"
        )
    return Item(Kind.DATABASE_USER, user, PlanAction.CHANGE, "; ".join(said))


def _passwords(account: Account, number: int, found: FoundPasswords, choices: Choices) -> Item:
    site = next(site for site in account.sites if site.domain == found.site)
    name = f"{choices.domain(site)}{found.path}"
    problem = found.problem or (None if is_protected_place(found.path) else "its path cannot be a protected path")
    if problem is not None:
        reason = f"{problem}: the password is not imported and visitors are refused, protect the path yourself"
        return Item(Kind.PROTECTED_PATH, name, PlanAction.LEAVE_OUT, reason)
    reason = f"asks for a password; logins brought from {found.named}: {found.logins}"
    if found.left:
        listed = "; ".join(f"{who} ({why})" for who, why in found.left[:_NAMED])
        more = f"; and {len(found.left) - _NAMED} more" if len(found.left) > _NAMED else ""
        reason += f"; left out: {listed}{more}"
    action = PlanAction.CHANGE if found.left else PlanAction.IMPORT
    return Item(Kind.PROTECTED_PATH, name, action, reason, f"{Kind.PROTECTED_PATH.value}:{number}")


def _zone(name: str, zone: ZoneHere) -> list[Item]:
    what = "; ".join([f"{len(zone.records)} records", *zone.changed])
    items = [_chosen(Kind.DNS, name, PlanAction.CHANGE if zone.changed else PlanAction.IMPORT, what)]
    return [*items, *(Item(Kind.DNS, record, PlanAction.LEAVE_OUT, reason) for record, reason in zone.left)]
