"""An import that is being applied, and the parts of the panel that apply it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from svc_actors.panel.certificates import SiteCertificates
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.htaccess import PasswordsAt
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
from svc_webhost.archives.placing import ASIDE, placed_at
from svc_webhost.confined_client import ConfinedFiles
from svc_webhost.folders import HostFolders
from svc_webhost.mariadb.tables import StagedTables

_LEFT_OUT: Final = "its passwords were left out of the import"


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


# Password files that are imported with a site, for its protected paths. A password file among the site's own files
# stays there, readable only for the site: the web server cannot read it, whatever its name. A password file elsewhere
# in the archive (cPanel's .htpasswds) is staged in the folder of the dumps, and removed with them.
def site_password_files(applied: Applied, source: FoundSite) -> dict[str, str]:
    """Password files among the site's own files, as a map from the path in the archive to the place in the site.
    Includes files that protected paths of other sites use."""
    files = {each.file for each in applied.account.passwords if each.file is not None}
    return {file: placed for file in files if (placed := placed_at(source, file)) is not None}


def outside_password_files(applied: Applied, source: FoundSite) -> dict[str, str]:
    """A map like that of `site_password_files`, for needed password files that lie elsewhere in the archive."""
    kept = site_password_files(applied, source)
    needed = {
        each.file: number
        for number, (each, wanted) in enumerate(applied.passwords(source))
        if each.file is not None and each.file not in kept and wanted and each.problem is None
    }
    return {file: f"{ASIDE}/{number}.htpasswd" for file, number in needed.items()}


def imported_password_files(applied: Applied, source: FoundSite) -> dict[str, PasswordsAt | str]:
    """For each protected path on the old host: where in the site its password file is, or why there is none."""
    places = outside_password_files(applied, source) | site_password_files(applied, source)
    brought: dict[str, PasswordsAt | str] = {}
    for each, wanted in applied.passwords(source):
        if each.problem is not None or each.file is None or not wanted:
            brought[each.path] = each.problem or _LEFT_OUT
        else:
            brought[each.path] = PasswordsAt(places[each.file], each.named)
    return brought
