"""The API's models of zones: answers and requests."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, Field

from svc.panel.dns.pointing import SitePointing
from svc.panel.sites.access import SiteChange, SiteRequest
from svc.registry.operation import Model
from svc.registry.shapes import Shape
from svc_actors.panel.dns.records import RecordRow, ZoneRow
from svc_webhost.knot import Authority, RecordData, RecordType
from svc_webhost.knot.meaning import as_meant

_NAME = Shape(r"[^\s\u0000-\u001f\u007f/\\\"'();$]*", "a name of the DNS such as www.example.com")

RecordName = Annotated[
    str,
    Field(
        max_length=254, description="`@` is the zone itself; `www` is in the zone, `www.example.com` the same in full."
    ),
    _NAME,
]
ZoneName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=254,
        description="Zone, if the site has names in several; that of its domain by default.",
    ),
    _NAME,
]
Ttl = Annotated[
    int, Field(ge=60, le=604_800, description="TTL in seconds; it applies to all records of the name and type.")
]
Data = Annotated[
    RecordData,
    AfterValidator(as_meant),
    Field(description='By type: {"type": "MX", "preference": 10, "exchange": "mail.example.com"}.'),
]


class DnsRecord(Model):
    """`name` is the full name. `managed`: the panel created the record and removes it when it is no longer needed."""

    id: UUID
    name: str
    type: RecordType
    ttl: int
    data: RecordData
    managed: bool
    created_at: datetime


class DnsZone(Model):
    """`served`: this server answers with the current records; otherwise `problem` says why. `exists`: the zone has had
    records. `serial` is that of the zone's SOA. `warning`: the records are served, but a CAA record among them forbids
    the customer's certificate."""

    name: str
    exists: bool
    served: bool
    problem: str | None
    warning: str | None
    serial: int | None
    nameservers: list[str]
    hostmaster: str


class DelegationState(StrEnum):
    """Which name servers the parent zone names. HERE: exactly this server's; PARTLY: only some of them, or others too;
    ELSEWHERE: only others; NOWHERE: none, so no resolver finds the zone; UNKNOWN: the parent could not be asked."""

    HERE = "here"
    PARTLY = "partly"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"
    UNKNOWN = "unknown"


class Delegation(Model):
    """What the name servers of the parent zone answer. `advice`: what to do so that resolvers ask this server."""

    state: DelegationState
    nameservers: list[str]
    expected: list[str]
    problem: str | None
    advice: str | None


class SiteDns(Model):
    """`zones`: all zones that contain names of the site; `zone` is one of them. `pointing`: where the names of the site
    in this zone lead today."""

    zone: DnsZone
    records: list[DnsRecord]
    delegation: Delegation
    zones: list[str]
    pointing: SitePointing


class DnsChange(Model):
    """The record is stored; `zone` says whether it is served yet. `hint`: its name looks like one of another domain,
    and was taken as a short one."""

    record: DnsRecord
    zone: DnsZone
    hint: str | None


class PointedName(Model):
    """`replaced`: the records that pointed the name elsewhere."""

    name: str
    zone: str
    replaced: list[str]


class PointedZone(Model):
    zone: DnsZone
    delegation: Delegation


class DnsPoint(Model):
    """`effective`: every zone is served here and delegated to this server, so resolvers find the addresses. The records
    were written even if it is false; `zones` says what is missing."""

    addresses: list[str]
    names: list[PointedName]
    zones: list[PointedZone]
    effective: bool


class DkimRotated(Model):
    """`record` is the full name of the TXT record with `text`, which the zone has from now on."""

    zone: str
    selector: str
    record: str
    text: str


class DnsListRequest(SiteRequest):
    zone: ZoneName | None = None


class DkimRotateRequest(SiteChange):
    zone: ZoneName | None = None


class RecordCreateRequest(SiteChange):
    zone: ZoneName | None = None
    name: RecordName = "@"
    ttl: Ttl | None = None
    data: Data


class RecordRequest(SiteChange):
    record_id: UUID


class RecordUpdateRequest(RecordRequest):
    """Fields left out stay as they are."""

    name: RecordName | None = None
    ttl: Ttl | None = None
    data: Data | None = None


def record_model(row: RecordRow) -> DnsRecord:
    return DnsRecord(
        id=row.id,
        name=row.name,
        type=row.type,
        ttl=row.ttl,
        data=row.data,
        managed=row.managed,
        created_at=row.created_at,
    )


def zone_model(name: str, row: ZoneRow | None, authority: Authority, warning: str | None) -> DnsZone:
    """`row` is None for a zone that has no records yet."""
    return DnsZone(
        name=name,
        exists=row is not None,
        served=row is not None and row.served,
        problem=row.problem if row is not None else None,
        warning=warning,
        serial=row.serial if row is not None else None,
        nameservers=list(authority.nameservers),
        hostmaster=authority.hostmaster,
    )
