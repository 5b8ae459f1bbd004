"""A site's configuration in a backup: names, redirects, denied and protected paths, DNS records, PHP, the application
with its variables, schedules and an uploaded certificate.

The snapshot, which is encrypted, contains the certificate's key and the values of variables; the record of the backup
contains everything else, so that the changes of a restoration can be shown without opening the repository.

Each list of a site is declared once, as a `StoredList`: reading it into a backup, comparing it with the site and
restoring its entries all use this declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from svc_actors.panel.apps.variables import SEALED_VARIABLES, open_variables, variable_bytes, variable_mark
from svc_actors.panel.certificates.records import KEY_PURPOSE
from svc_actors.panel.dns.records import DATA, NewRecord
from svc_actors.panel.schedules.cron import BadCronError, Cron, next_time, zone_of
from svc_actors.panel.schedules.records import (
    MOST_OF_A_SITE,
    SCHEDULE_COLUMNS,
    as_schedule,
    insert_schedule,
    update_schedule,
)
from svc_actors.panel.sites.denied_paths import MOST_DENIED, add_denied_path
from svc_actors.panel.sites.front_controllers import (
    MOST_FRONT_CONTROLLERS,
    add_front_controller,
    remove_front_controller_of,
)
from svc_actors.panel.sites.protected_paths import MOST_PROTECTED, protect, protections_of, write_login
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.sites.redirects import MOST_REDIRECTS, add_redirect, remove_redirect_of
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Transaction
from svc_common.errors import conflict
from svc_webhost.nginx import FrontController

FILE: Final = "configuration.json"

_QUERIES: Final = {
    "site": "SELECT to_jsonb(sites) FROM sites WHERE id = $1",
    "domains": "SELECT to_jsonb(site_domains) FROM site_domains WHERE site_id = $1 ORDER BY name",
    "records": """SELECT to_jsonb(dns_records)
        FROM dns_records JOIN dns_zones ON dns_zones.name = zone JOIN sites ON sites.owner_id = dns_zones.owner_id
        WHERE sites.id = $1 AND NOT managed
              AND zone IN (SELECT registrable FROM site_domains WHERE site_id = sites.id)
        ORDER BY zone, dns_records.name, dns_records.type, dns_records.created_at""",
    "app": "SELECT to_jsonb(site_apps) FROM site_apps WHERE site_id = $1",
    "schedule": "SELECT to_jsonb(backup_schedules) FROM backup_schedules WHERE site_id = $1",
}
_CERTIFICATE: Final = """SELECT chain, names, fingerprint, not_after, sealed_key FROM site_certificates
    WHERE site_id = $1 AND source = 'uploaded'"""


class Part(StrEnum):
    NAME = "name"
    REDIRECT = "redirect"
    DENIED = "denied_path"
    PROTECTED = "protected_path"
    FRONT_CONTROLLER = "front_controller"
    RECORD = "record"
    HTTPS = "https"
    FALLBACK_PAGE = "fallback_page"
    CACHING = "cache_assets"
    CHARSET = "utf8_pages"
    PHP = "php"
    APP = "app"
    VARIABLE = "variable"
    TASK = "task"
    CERTIFICATE = "certificate"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredSite(_Stored):
    """The site's record. Fields that did not exist when the backup was made are missing (`model_fields_set`), and are
    left as they are on the site."""

    domain: str
    type: str
    force_https: bool = False
    fallback_page: str | None = None
    cache_assets: bool = False
    utf8_pages: bool = False
    php: Mapping[str, Any] = {}


class StoredName(_Stored):
    name: str
    redirect_to_primary: bool = False


class StoredRecord(_Stored):
    zone: str
    name: str
    ttl: int
    data: Mapping[str, Any]

    @property
    def record(self) -> NewRecord:
        return NewRecord(self.name, self.ttl, DATA.validate_python(dict(self.data)))


class StoredApp(_Stored):
    """A stored application. Its fields are columns of `site_apps`."""

    runtime: str
    interface: str
    entry: str
    folder: str
    health_path: str


class StoredVariable(_Stored):
    """`value` is None in the record of a backup. The record has the value's size in `bytes` instead, 0 if an older
    release wrote it. Equal values of a variable have equal `mark`s."""

    name: str
    mark: str
    value: str | None = None
    bytes: int = 0

    @property
    def size(self) -> int:
        """The bytes of name and value together."""
        return self.bytes if self.value is None else variable_bytes(self.name, self.value)


class StoredCertificate(_Stored):
    """An uploaded certificate. `key` is None in the record of a backup."""

    chain: str
    names: tuple[str, ...]
    fingerprint: str
    not_after: datetime
    key: str | None = None


class StoredEntry(_Stored):
    """An entry of a list, and how it is restored to a site."""

    @property
    def identity(self) -> str:
        """Distinguishes the entry from the others of the list."""
        raise NotImplementedError

    @property
    def detail(self) -> str:
        """The entry's content, for people who read what a restoration would change."""
        raise NotImplementedError

    def held_by(self, own: Self) -> bool:
        """Whether the site's own entry of this identity already has everything that this entry has."""
        return own == self

    def refusal(self) -> str | None:
        """Why this release cannot restore the entry; None if it can."""
        return None

    async def put_back(self, tx: Transaction, site: SiteRow) -> None:
        """Add the entry to the site, or change the site's own entry of this identity to match it."""
        raise NotImplementedError


class StoredRedirect(StoredEntry):
    path: str
    target: str
    status: int
    below: bool = False

    @property
    def identity(self) -> str:
        """The path and whether paths below it are included: a site may redirect a path to one URL and the paths below
        it to another. No path contains a blank."""
        return f"{self.path} and below" if self.below else self.path

    @property
    def detail(self) -> str:
        return f"to {self.target} with {self.status}"

    async def put_back(self, tx: Transaction, site: SiteRow) -> None:
        await remove_redirect_of(tx, site, self.path, below=self.below)
        await add_redirect(tx, site, self.path, self.target, self.status, below=self.below)


class StoredDenied(StoredEntry):
    pattern: str

    @property
    def identity(self) -> str:
        return self.pattern

    @property
    def detail(self) -> str:
        return "visitors are refused it"

    async def put_back(self, tx: Transaction, site: SiteRow) -> None:
        await add_denied_path(tx, site, self.pattern)


class StoredProtected(StoredEntry):
    """A protected path: `logins` with their password verifiers. A restoration keeps logins that were added since the
    backup."""

    path: str
    logins: Mapping[str, str]

    @property
    def identity(self) -> str:
        return self.path

    @property
    def detail(self) -> str:
        return f"opened by {', '.join(sorted(self.logins))}"

    def held_by(self, own: Self) -> bool:
        return self.logins.items() <= own.logins.items()

    async def put_back(self, tx: Transaction, site: SiteRow) -> None:
        own = {protection.path: protection.id for protection in await protections_of(tx, site.id)}
        if self.path not in own:
            await protect(tx, site, self.path, self.logins)
            return
        for login, verifier in self.logins.items():
            await write_login(tx, own[self.path], login, verifier)


class StoredFrontController(StoredEntry):
    """Its fields are columns of `site_front_controllers`."""

    path: str
    php_file: str
    path_info: bool
    parameter: str | None
    serves_files: bool

    @property
    def identity(self) -> str:
        return self.path

    @property
    def detail(self) -> str:
        return f"{self.php_file} answers for paths without a file"

    def refusal(self) -> str | None:
        try:
            self._controller()
        except ValidationError as error:
            return error.errors()[0]["msg"]
        return None

    async def put_back(self, tx: Transaction, site: SiteRow) -> None:
        await remove_front_controller_of(tx, site, self.path)
        await add_front_controller(tx, site, self._controller())

    def _controller(self) -> FrontController:
        return FrontController.model_validate(self.model_dump())


class StoredTask(StoredEntry):
    """A scheduled task. Its fields are columns of `schedules`."""

    name: str
    kind: str
    path: str
    args: tuple[str, ...] = ()
    cron: str
    time_zone: str
    time_limit_seconds: int
    enabled: bool

    @property
    def identity(self) -> str:
        return self.name

    @property
    def detail(self) -> str:
        # The query may contain a key, and members with read-only access can see this text.
        path = self.path.partition("?")[0]
        return f"{self.kind} {path} at {self.cron}"

    def refusal(self) -> str | None:
        try:
            Cron.parse(self.cron)
            zone_of(self.time_zone)
        except BadCronError as error:
            return str(error)
        return None

    async def put_back(self, tx: Transaction, site: SiteRow) -> None:
        values = self.model_dump(exclude={"name"}) | {"args": list(self.args)}
        following = next_time(Cron.parse(self.cron), zone_of(self.time_zone), datetime.now(UTC))
        values["next_run_at"] = following if self.enabled else None
        values["enabled"] = values["next_run_at"] is not None
        row = await tx.fetchrow(
            f"SELECT {SCHEDULE_COLUMNS} FROM schedules WHERE site_id = $1 AND name = $2 FOR NO KEY UPDATE",
            site.id,
            self.name,
        )
        if row is None:
            await insert_schedule(tx, site, {"name": self.name, **values})
        else:
            await update_schedule(tx, site, as_schedule(row), values)


@dataclass(frozen=True)
class StoredList:
    """`query` reads the entries of a site as JSON objects; `most` is how many of them a site may have. `key` is the
    field of `Configuration`, `plural` the word in messages. `closes`: the entries keep visitors out, so they are served
    before the files of the backup are restored."""

    key: str
    part: Part
    plural: str
    most: int
    query: str
    entry: type[StoredEntry]
    closes: bool = False


LISTS: Final = (
    StoredList(
        key="redirects",
        part=Part.REDIRECT,
        plural="redirects",
        most=MOST_REDIRECTS,
        query="SELECT to_jsonb(site_redirects) FROM site_redirects WHERE site_id = $1 ORDER BY path, below",
        entry=StoredRedirect,
    ),
    StoredList(
        key="denied",
        part=Part.DENIED,
        plural="denied paths",
        most=MOST_DENIED,
        query="SELECT to_jsonb(site_denied_paths) FROM site_denied_paths WHERE site_id = $1 ORDER BY pattern",
        entry=StoredDenied,
        closes=True,
    ),
    StoredList(
        key="protected",
        part=Part.PROTECTED,
        plural="protected paths",
        most=MOST_PROTECTED,
        query="""SELECT jsonb_build_object('path', path, 'logins', jsonb_object_agg(login, verifier))
            FROM site_protected_paths JOIN site_path_logins ON protected_id = id
            WHERE site_id = $1 GROUP BY id, path ORDER BY path""",
        entry=StoredProtected,
        closes=True,
    ),
    StoredList(
        key="front_controllers",
        part=Part.FRONT_CONTROLLER,
        plural="front controllers",
        most=MOST_FRONT_CONTROLLERS,
        query="SELECT to_jsonb(site_front_controllers) FROM site_front_controllers WHERE site_id = $1 ORDER BY path",
        entry=StoredFrontController,
    ),
    StoredList(
        key="schedules",
        part=Part.TASK,
        plural="scheduled tasks",
        most=MOST_OF_A_SITE,
        query="SELECT to_jsonb(schedules) FROM schedules WHERE site_id = $1 ORDER BY name",
        entry=StoredTask,
    ),
)
_READ_AS_JSON: Final = _QUERIES | {each.key: each.query for each in LISTS}
READS: Final = (*_READ_AS_JSON.values(), _CERTIFICATE, SEALED_VARIABLES)
"""Every statement that reads a part of the configuration."""


class Configuration(_Stored):
    """`site` has one entry. If another list is empty, the release that made the backup may not have known this list."""

    site: tuple[StoredSite, ...]
    domains: tuple[StoredName, ...] = ()
    redirects: tuple[StoredRedirect, ...] = ()
    denied: tuple[StoredDenied, ...] = ()
    protected: tuple[StoredProtected, ...] = ()
    front_controllers: tuple[StoredFrontController, ...] = ()
    records: tuple[StoredRecord, ...] = ()
    app: tuple[StoredApp, ...] = ()
    variables: tuple[StoredVariable, ...] = ()
    schedules: tuple[StoredTask, ...] = ()
    certificate: StoredCertificate | None = None

    @property
    def zones(self) -> Mapping[str, Mapping[str, list[NewRecord]]]:
        """The records by zone and name."""
        found: dict[str, dict[str, list[NewRecord]]] = {}
        for stored in self.records:
            found.setdefault(stored.zone, {}).setdefault(stored.name, []).append(stored.record)
        return found


def parsed_configuration(data: object) -> Configuration:
    """The configuration in the stored JSON `data`. Raises `conflict` if this release cannot read it."""
    try:
        found = Configuration.model_validate(data)
        if len(found.site) == 1 and all(found.zones):  # Also checks that the zones' records can be read.
            return found
    except ValidationError as error:
        raise conflict(
            f"The configuration in this backup cannot be read: {error.errors()[0]['msg']}.",
            hint="Restore its files and databases, and add the names again.",
        ) from error
    raise conflict("There is no configuration in this backup.", hint="Restore its files and databases.")


async def site_configuration(queryable: Queryable, sealer: Sealer, site: SiteRow) -> dict[str, Any]:
    """The configuration with the secrets of the site. It may only go into the snapshot."""
    described: dict[str, Any] = {
        name: [row[0] for row in await queryable.fetch(query, site.id)] for name, query in _READ_AS_JSON.items()
    }
    described["variables"] = [
        {"name": name, "mark": variable_mark(sealer, name, value), "value": value}
        for name, value in (await open_variables(queryable, sealer, site.id)).items()
    ]
    row = await queryable.fetchrow(_CERTIFICATE, site.id)
    if row is not None:
        key = sealer.unseal(row["sealed_key"], KEY_PURPOSE).decode()
        described["certificate"] = {name: row[name] for name in ("chain", "names", "fingerprint", "not_after")}
        described["certificate"]["key"] = key
    return described


def without_secrets(described: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration for the record of the backup."""
    certificate = described.get("certificate")
    shown = dict(described)
    shown["variables"] = [
        {"name": each["name"], "mark": each["mark"], "bytes": variable_bytes(each["name"], each["value"])}
        for each in described.get("variables", ())
    ]
    if certificate is not None:
        shown["certificate"] = {name: value for name, value in certificate.items() if name != "key"}
    return shown
