"""An import that is being applied, and the parts of the panel that apply it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address

from svc_actors.panel.certificates import SiteCertificates
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.imports.plan import (
    Choices,
    ServerFacts,
    is_wordpress_database,
)
from svc_actors.panel.imports.records import (
    ImportRow,
)
from svc_actors.panel.wordpress.database import WordPressDatabases
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_webhost.archives.model import Account, FoundCertificate, FoundDatabase, FoundPasswords, FoundSite, Kind
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders
from svc_webhost.mariadb.tables import StagedTables


@dataclass(frozen=True)
class Parts:
    """The parts of the panel that create sites from an archive."""

    database: Database
    actors: ActorSystem
    files: ConfinedFiles
    folders: HostFolders
    databases: SiteDatabases
    tables: StagedTables
    wordpress: WordPressDatabases
    certificates: SiteCertificates
    php_versions: Callable[[], Awaitable[Sequence[str]]]
    addresses: Sequence[IPv4Address | IPv6Address]
    clock: Callable[[], datetime]


def choices_of(row: ImportRow) -> Choices:
    told = row.choices or {}
    return Choices(dict(told.get("domains", {})), frozenset(told.get("without", ())))


@dataclass(frozen=True)
class Applied:
    """An import with its choices; every step loads it anew."""

    row: ImportRow
    account: Account
    choices: Choices
    server: ServerFacts

    @property
    def sites(self) -> list[FoundSite]:
        wanted = [site for site in self.account.sites if self.choices.wants(Kind.SITE, site.domain)]
        # Content of a site that is left out must not be imported as part of a site that encloses it, either.
        return [replace(site) for site in wanted]

    def databases(self, site: FoundSite) -> list[FoundDatabase]:
        return [
            each
            for each in self.account.databases
            if each.site == site.domain and self.choices.wants(Kind.DATABASE, each.name)
        ]

    def wordpress_database(self, site: FoundSite) -> FoundDatabase | None:
        """The database of the site's WordPress, if it is imported."""
        return next((each for each in self.databases(site) if is_wordpress_database(site, each)), None)

    def certificate(self, site: FoundSite) -> FoundCertificate | None:
        if not self.choices.wants(Kind.CERTIFICATE, site.domain) or self.choices.domain(site) != site.domain:
            return None
        return next((each for each in self.account.certificates if each.domain == site.domain), None)

    def passwords(self, site: FoundSite) -> list[tuple[FoundPasswords, bool]]:
        """The site's password files, each with whether it is to be imported."""
        return [
            (each, self.choices.wants(Kind.PROTECTED_PATH, str(number)))
            for number, each in enumerate(self.account.passwords)
            if each.site == site.domain
        ]
