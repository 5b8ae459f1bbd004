"""DNS of sites: the records of their zones, and whether their names point to this server.

A zone is the registrable domain of a site's name: all sites of the customer in that domain share the zone, and no other
customer has a name in it (`site_domains.registrable`). A zone is created with its first record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from svc.panel.dns.models import (
    Delegation,
    DelegationState,
    DkimRotated,
    DkimRotateRequest,
    DnsChange,
    DnsListRequest,
    DnsPoint,
    DnsZone,
    PointedName,
    PointedZone,
    RecordCreateRequest,
    RecordRequest,
    RecordUpdateRequest,
    SiteDns,
    record_model,
    zone_model,
)
from svc.panel.dns.pointing import site_pointing
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.dns.caa import forbidding
from svc_actors.panel.dns.records import ZoneRow, read_records, read_zone
from svc_actors.panel.dns.rules import full_name, short_name_hint
from svc_actors.panel.dns.settings import UNNAMED
from svc_actors.panel.dns.zone import DnsZone as ZoneActor
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable
from svc_common.errors import conflict, not_found, wrong_field
from svc_webhost.delegation import DelegationError
from svc_webhost.knot import Authority
from svc_webhost.knot.names import to_ascii

operations = Operations[Panel]()


@dataclass(frozen=True)
class SiteName:
    """One name of a site, and its zone."""

    name: str
    zone: str


@operations.declare(
    "dns.list",
    "The zone of a site: its records, and whether it is delegated to this server",
    Route.get("/sites/{id}/dns"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def show_dns(context: Context[Panel], request: DnsListRequest) -> SiteDns:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    names = await _names(services.database, site)
    zone = _zone(names, site, request.zone)
    row = await read_zone(services.database, zone)
    own = row is not None and row.owner_id == site.owner_id
    return SiteDns(
        zone=await _shown(services, zone, row if own else None),
        records=[record_model(record) for record in await read_records(services.database, zone)] if own else [],
        delegation=await _delegation(zone, services.authority, services.delegations.nameservers),
        zones=sorted({name.zone for name in names}),
        pointing=await site_pointing(services, site.id, site.owner_id, zone),
    )


@operations.declare(
    "dns.create",
    "Add a record to the zone of a site",
    Route.post("/sites/{id}/dns/records", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "name"),
    target="zone",
)
async def create_record(context: Context[Panel], request: RecordCreateRequest) -> DnsChange:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    zone = _zone(await _names(services.database, site), site, request.zone)
    added = await services.actors.ref(ZoneActor, zone).ask(
        ZoneActor.add, context.caller, site.owner_id, full_name(request.name, zone), request.ttl, request.data
    )
    return DnsChange(
        record=record_model(added.result),
        zone=await _shown(services, zone, await added.soon()),
        hint=short_name_hint(request.name, zone),
    )


@operations.declare(
    "dns.update",
    "Change a record of the zone of a site",
    Route.patch("/sites/{id}/dns/records/{record_id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="zone",
)
async def update_record(context: Context[Panel], request: RecordUpdateRequest) -> DnsChange:
    services = context.services
    site, zone = await _zone_of_record(context, request)
    name = None if request.name is None else full_name(request.name, zone)
    updated = await services.actors.ref(ZoneActor, zone).ask(
        ZoneActor.update, context.caller, site.owner_id, request.record_id, name, request.ttl, request.data
    )
    return DnsChange(
        record=record_model(updated.result),
        zone=await _shown(services, zone, await updated.soon()),
        hint=None if request.name is None else short_name_hint(request.name, zone),
    )


@operations.declare(
    "dns.delete",
    "Remove a record from the zone of a site",
    Route.delete("/sites/{id}/dns/records/{record_id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="zone",
)
async def delete_record(context: Context[Panel], request: RecordRequest) -> DnsZone:
    services = context.services
    site, zone = await _zone_of_record(context, request)
    removed = await services.actors.ref(ZoneActor, zone).ask(
        ZoneActor.remove, context.caller, site.owner_id, request.record_id
    )
    return await _shown(services, zone, await removed.soon())


@operations.declare(
    "dns.point",
    "Point the names of a site to this server, and show whether their zones are delegated here",
    Route.post("/sites/{id}/dns/point"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="zone",
)
async def point(context: Context[Panel], request: SiteChange) -> DnsPoint:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    addresses = services.config.dns.site_addresses()
    if not addresses:
        raise conflict(
            "The public addresses of this server are not known; no records were changed.",
            hint="An administrator has to configure them (docs/dns.md).",
        )
    names = await _names(services.database, site)
    pointed: list[PointedName] = []
    zones: list[PointedZone] = []
    for zone in sorted({name.zone for name in names}):
        own = [name.name for name in names if name.zone == zone]
        done = await services.actors.ref(ZoneActor, zone).ask(
            ZoneActor.point, context.caller, site.owner_id, own, addresses
        )
        pointed += [PointedName(name=name, zone=zone, replaced=done.result[name]) for name in own]
        shown = await _shown(services, zone, await done.soon())
        zones.append(
            PointedZone(zone=shown, delegation=await _delegation(zone, services.authority, services.delegations.now))
        )
    return DnsPoint(
        addresses=[str(address) for address in addresses],
        names=pointed,
        zones=zones,
        effective=all(each.zone.served and each.delegation.state is DelegationState.HERE for each in zones),
    )


@operations.declare(
    "dns.rotate_dkim",
    "Make a new key for the signatures of mail of a zone; that of mail on its way stays published for a week",
    Route.post("/sites/{id}/dns/dkim"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="zone",
)
async def rotate_dkim(context: Context[Panel], request: DkimRotateRequest) -> DkimRotated:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    zone = _zone(await _names(services.database, site), site, request.zone)
    key = await services.dkim_keys.make(context.caller, site.owner_id, zone)
    return DkimRotated(zone=zone, selector=key.selector, record=key.record, text=key.text)


async def _shown(services: Panel, name: str, row: ZoneRow | None) -> DnsZone:
    warning = None if row is None else await forbidding(services.database, row)
    return zone_model(name, row, services.authority, warning)


async def _names(queryable: Queryable, site: SiteRow) -> list[SiteName]:
    """The names of a site, its domain first."""
    rows = await queryable.fetch(
        "SELECT name, registrable FROM site_domains WHERE site_id = $1 ORDER BY name <> $2, name", site.id, site.domain
    )
    return [SiteName(row["name"], row["registrable"]) for row in rows]


def _zone(names: Sequence[SiteName], site: SiteRow, asked: str | None) -> str:
    """The requested zone, or by default the zone of the site's domain. Raises invalid for a zone that contains no name
    of the site."""
    zones = [name.zone for name in names]
    if asked is None:
        return next(name.zone for name in names if name.name == site.domain)
    try:
        zone = to_ascii(asked)
    except ValueError as error:
        raise wrong_field("zone", str(error)) from error
    if zone not in zones:
        raise wrong_field("zone", f"contains no name of this site; its names are in {', '.join(sorted(set(zones)))}")
    return zone


async def _zone_of_record(context: Context[Panel], request: RecordRequest) -> tuple[SiteRow, str]:
    """The site, and the zone of a record, if the record is in one of the site's zones. Raises not_found."""
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    zone: str | None = await database.fetchval(
        """SELECT zone FROM dns_records JOIN dns_zones ON dns_zones.name = dns_records.zone
           WHERE dns_records.id = $1 AND owner_id = $2
             AND zone IN (SELECT registrable FROM site_domains WHERE site_id = $3)""",
        request.record_id,
        site.owner_id,
        site.id,
    )
    if zone is None:
        raise not_found("There is no such record.")
    return site, zone


async def _delegation(
    zone: str, authority: Authority, nameservers: Callable[[str], Awaitable[frozenset[str]]]
) -> Delegation:
    """The delegation of the zone, as the name servers of its parent zone answer."""
    expected = authority.nameservers
    try:
        found = await nameservers(zone)
    except DelegationError as error:
        return Delegation(
            state=DelegationState.UNKNOWN, nameservers=[], expected=list(expected), problem=str(error), advice=None
        )
    state = _state(found, authority)
    advice = None
    if UNNAMED in expected:
        advice = "The name servers of this server have no names yet: its operator has to configure them (docs/dns.md)."
    elif state is not DelegationState.HERE:
        advice = f"At the registrar of {zone}, name {' and '.join(expected)} as its name servers, and no others."
    return Delegation(state=state, nameservers=sorted(found), expected=list(expected), problem=None, advice=advice)


def _state(found: frozenset[str], authority: Authority) -> DelegationState:
    expected = set(authority.nameservers)
    if found == expected:
        return DelegationState.HERE
    if found & expected:
        return DelegationState.PARTLY
    return DelegationState.ELSEWHERE if found else DelegationState.NOWHERE
