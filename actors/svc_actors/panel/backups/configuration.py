"""A site's configuration in a backup: names, redirects, denied and protected paths, DNS records, PHP, the application
with its variables, schedules and an uploaded certificate.

The snapshot, which is encrypted, has the certificate's key and the values of variables; the record of the backup has
all the rest, so that the changes of a restoration can be shown without opening the repository.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from svc_actors.errors import conflict
from svc_actors.panel.apps.variables import SEALED_VARIABLES, open_variables, variable_mark
from svc_actors.panel.certificates.records import KEY_PURPOSE
from svc_actors.panel.dns.records import DATA, NewRecord
from svc_actors.panel.sites.records import SiteRow
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable

FILE: Final = "configuration.json"

_QUERIES: Final = {
    "site": "SELECT to_jsonb(sites) FROM sites WHERE id = $1",
    "domains": "SELECT to_jsonb(site_domains) FROM site_domains WHERE site_id = $1 ORDER BY name",
    "redirects": "SELECT to_jsonb(site_redirects) FROM site_redirects WHERE site_id = $1 ORDER BY path, below",
    "denied": "SELECT to_jsonb(site_denied_paths) FROM site_denied_paths WHERE site_id = $1 ORDER BY pattern",
    "protected": """SELECT jsonb_build_object('path', path, 'logins', jsonb_object_agg(login, verifier))
        FROM site_protected_paths JOIN site_path_logins ON protected_id = id
        WHERE site_id = $1 GROUP BY id, path ORDER BY path""",
    "records": """SELECT to_jsonb(dns_records)
        FROM dns_records JOIN dns_zones ON dns_zones.name = zone JOIN sites ON sites.owner_id = dns_zones.owner_id
        WHERE sites.id = $1 AND NOT managed
              AND zone IN (SELECT registrable FROM site_domains WHERE site_id = sites.id)
        ORDER BY zone, dns_records.name, dns_records.type, dns_records.created_at""",
    "app": "SELECT to_jsonb(site_apps) FROM site_apps WHERE site_id = $1",
    "schedules": "SELECT to_jsonb(schedules) FROM schedules WHERE site_id = $1 ORDER BY name",
    "schedule": "SELECT to_jsonb(backup_schedules) FROM backup_schedules WHERE site_id = $1",
}
_CERTIFICATE: Final = """SELECT chain, names, fingerprint, not_after, sealed_key FROM site_certificates
    WHERE site_id = $1 AND source = 'uploaded'"""
READS: Final = (*_QUERIES.values(), _CERTIFICATE, SEALED_VARIABLES)
"""Every statement that reads a part of the configuration."""


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredSite(_Stored):
    domain: str
    type: str
    force_https: bool = False
    php: Mapping[str, Any] = {}


class StoredName(_Stored):
    name: str
    redirect_to_primary: bool = False


class StoredRedirect(_Stored):
    path: str
    target: str
    status: int
    below: bool = False

    @property
    def name(self) -> str:
        """A site may redirect a path one way and what is below it another way. No path has a blank in it."""
        return f"{self.path} and below" if self.below else self.path


class StoredDenied(_Stored):
    pattern: str


class StoredProtected(_Stored):
    """`logins` with what their passwords are compared with."""

    path: str
    logins: Mapping[str, str]


class StoredRecord(_Stored):
    zone: str
    name: str
    ttl: int
    data: Mapping[str, Any]

    @property
    def record(self) -> NewRecord:
        return NewRecord(self.name, self.ttl, DATA.validate_python(dict(self.data)))


class StoredApp(_Stored):
    """Its fields are columns of `site_apps`."""

    runtime: str
    interface: str
    entry: str
    folder: str
    health_path: str


class StoredVariable(_Stored):
    """`value` is None in the record of a backup; `mark` tells whether a variable has the same value."""

    name: str
    mark: str
    value: str | None = None


class StoredTask(_Stored):
    """A scheduled task. Its fields are columns of `schedules`."""

    name: str
    kind: str
    path: str
    args: tuple[str, ...] = ()
    cron: str
    time_zone: str
    time_limit_seconds: int
    enabled: bool


class StoredCertificate(_Stored):
    """An uploaded one. `key` is None in the record of a backup."""

    chain: str
    names: tuple[str, ...]
    fingerprint: str
    not_after: datetime
    key: str | None = None


class Configuration(_Stored):
    """`site` is one. What there is none of in a backup, its release may not have known."""

    site: tuple[StoredSite, ...]
    domains: tuple[StoredName, ...] = ()
    redirects: tuple[StoredRedirect, ...] = ()
    denied: tuple[StoredDenied, ...] = ()
    protected: tuple[StoredProtected, ...] = ()
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


def parsed_configuration(told: object) -> Configuration:
    """Raises `conflict` for a configuration that this release cannot read."""
    try:
        found = Configuration.model_validate(told)
        if len(found.site) == 1 and all(found.zones):  # This reads the zones' records, too.
            return found
    except ValidationError as error:
        raise conflict(
            f"The configuration in this backup cannot be read: {error.errors()[0]['msg']}.",
            hint="Restore its files and databases, and add the names again.",
        ) from error
    raise conflict("There is no configuration in this backup.", hint="Restore its files and databases.")


async def site_configuration(queryable: Queryable, sealer: Sealer, site: SiteRow) -> dict[str, Any]:
    """With the secrets of the site: for the snapshot alone."""
    described: dict[str, Any] = {
        name: [row[0] for row in await queryable.fetch(query, site.id)] for name, query in _QUERIES.items()
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
    """For the record of the backup."""
    certificate = described.get("certificate")
    shown = dict(described)
    shown["variables"] = [{"name": each["name"], "mark": each["mark"]} for each in described.get("variables", ())]
    if certificate is not None:
        shown["certificate"] = {name: value for name, value in certificate.items() if name != "key"}
    return shown
