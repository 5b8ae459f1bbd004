"""The API's models of zones: answers and requests."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, Field

from svc.panel.sites.access import SiteChangeRequest, SiteRequest
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
    """`name` is the full name. `managed`: the panel's own, which goes when what it is for has ended."""

    id: UUID
    name: str
    type: RecordType
    ttl: int
    data: RecordData
    managed: bool
    created_at: datetime


class DnsZone(Model):
    """`served`: this server answers with the records as they are; `problem` says why it does not. `exists`: the zone
    has records, or had some. `serial` is that of the zone's SOA. `warning`: the records are served, and forbid a
    certificate of the customer's."""

    name: str
    exists: bool
    served: bool
    problem: str | None
    warning: str | None
    serial: int | None
    nameservers: list[str]
    hostmaster: str


class DelegationState(StrEnum):
    """HERE: the parent names this zone's name servers and no others; PARTLY: others as well, or some of them;
    ELSEWHERE: others; NOWHERE: none, so that nobody is sent to the zone; UNKNOWN: the parent could not be asked."""

    HERE = "here"
    PARTLY = "partly"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"
    UNKNOWN = "unknown"


class Delegation(Model):
    """What the name servers of the zone's parent say. `advice` is what to do for the zone to be asked here."""

    state: DelegationState
    nameservers: list[str]
    expected: list[str]
    problem: str | None
    advice: str | None


class SiteDns(Model):
    """`zones` are those that the names of the site are in; `zone` is one of them."""

    zone: DnsZone
    records: list[DnsRecord]
    delegation: Delegation
    zones: list[str]


class DnsChange(Model):
    """The record is stored, and `zone` says whether it is served already."""

    record: DnsRecord
    zone: DnsZone


class PointedName(Model):
    """`replaced` are the records that led the name elsewhere."""

    name: str
    zone: str
    replaced: list[str]


class PointedZone(Model):
    zone: DnsZone
    delegation: Delegation


class DnsPoint(Model):
    """`effective`: every zone is served and delegated here, so that the world sees the addresses. If it is false, the
    records were written nevertheless, and `zones` says what is missing."""

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


class DkimRotateRequest(SiteChangeRequest):
    zone: ZoneName | None = None


class RecordCreateRequest(SiteChangeRequest):
    zone: ZoneName | None = None
    name: RecordName = "@"
    ttl: Ttl | None = None
    data: Data


class RecordRequest(SiteChangeRequest):
    record_id: UUID


class RecordUpdateRequest(RecordRequest):
    """What is left out stays as it is."""

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
