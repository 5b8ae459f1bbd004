"""The zones of a site's names: what Knot serves, compared with the records."""

from __future__ import annotations

import time
from collections.abc import Iterable

from svc_actors.panel.dns.records import read_records, rendered
from svc_actors.panel.dns.zone import DnsZone
from svc_actors.panel.host_work import finished
from svc_actors.panel.repairs.parts import Finding
from svc_actors.panel.sites.records import SiteRow
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_common.errors import unavailable
from svc_webhost.knot import Authority, KnotError, NameServer, ServedZone, Zone
from svc_webhost.knot.zone import difference


class Zones:
    """If other sites of the owner share a zone, the findings mention only this site's names."""

    def __init__(self, database: Database, actors: ActorSystem, name_server: NameServer, authority: Authority) -> None:
        self._database = database
        self._actors = actors
        self._name_server = name_server
        self._authority = authority

    async def look(self, site: SiteRow) -> list[Finding]:
        rows = await self._database.fetch("SELECT name FROM site_domains WHERE site_id = $1", site.id)
        names = frozenset(row["name"] for row in rows)
        findings: list[Finding] = []
        for name in await self._zones(site):
            wanted = Zone(name, self._authority, rendered(await read_records(self._database, name)))
            try:
                served = await self._name_server.read(name)
            except KnotError as error:
                findings.append(Finding(f"The served records of {name} cannot be determined: {error}"))
            else:
                findings += _differences(wanted, served, names)
        return findings

    async def mend(self, site: SiteRow) -> None:
        try:
            await self._name_server.ensure()
        except KnotError as error:
            raise unavailable(f"The name server does not answer: {error}") from error
        for name in await self._zones(site):
            await finished(self._actors.ref(DnsZone, name).ask(DnsZone.agree))

    async def _zones(self, site: SiteRow) -> list[str]:
        rows = await self._database.fetch(
            """SELECT DISTINCT zone.name FROM dns_zones AS zone
               JOIN site_domains ON site_domains.registrable = zone.name
               WHERE site_domains.site_id = $1 AND zone.owner_id = $2 ORDER BY zone.name""",
            site.id,
            site.owner_id,
        )
        return [row["name"] for row in rows]


def _differences(wanted: Zone, served: ServedZone | None, names: Iterable[str]) -> list[Finding]:
    if served is None:
        return [Finding(f"The zone {wanted.name} is not served.")]
    if served.soa is None:
        return [Finding(f"The zone {wanted.name} is served empty.")]
    found: list[Finding] = []
    others = 0
    for record in sorted(wanted.served ^ served.records):
        if not _of(record.owner, names):
            others += 1
            continue
        how = "is not served" if record in wanted.served else "is served, and not recorded"
        found.append(Finding(f"{record.owner} {record.ttl} {record.type} {record.data} {how}."))
    if others:
        found.append(Finding(f"{others:,} records of other names in {wanted.name} are not served as recorded."))
    if not found and difference(wanted, served, now=int(time.time())):
        found.append(Finding(f"The SOA of {wanted.name} differs from its record."))
    return found


def _of(owner: str, names: Iterable[str]) -> bool:
    return any(owner == name or owner.endswith(f".{name}") for name in names)
