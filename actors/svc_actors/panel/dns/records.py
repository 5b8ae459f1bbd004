"""Zones and records as the database keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from svc_actors.store import Queryable, Record, Target
from svc_webhost.knot import RecordData, RecordType, ResourceRecord

DATA: Final[TypeAdapter[RecordData]] = TypeAdapter(RecordData)


@dataclass(frozen=True)
class ZoneRow:
    """`serial`: the highest serial seen at Knot. `problem`: why Knot does not serve this revision."""

    name: str
    owner_id: UUID
    revision: int
    served_revision: int
    serial: int | None
    problem: str | None
    created_at: datetime

    @property
    def served(self) -> bool:
        """Whether Knot answers with the current records."""
        return self.revision == self.served_revision and self.problem is None

    @property
    def target(self) -> Target:
        """The target of audit rows. Its owner may read them."""
        return Target("zone", self.name, self.name, self.owner_id)


@dataclass(frozen=True)
class NewRecord:
    """`name` is a full name in A-labels; `ttl` is in seconds."""

    name: str
    ttl: int
    data: RecordData

    @property
    def type(self) -> RecordType:
        return self.data.type


@dataclass(frozen=True)
class RecordRow(NewRecord):
    """`managed`: set by the panel; nobody else may change it."""

    id: UUID
    zone: str
    managed: bool
    created_at: datetime


async def read_zone(queryable: Queryable, name: str) -> ZoneRow | None:
    row = await queryable.fetchrow("SELECT * FROM dns_zones WHERE name = $1", name)
    return None if row is None else as_zone(row)


async def read_records(queryable: Queryable, zone: str) -> list[RecordRow]:
    """The records of a zone in the order in which people read them: the apex first, then by name, type and age."""
    rows = await queryable.fetch(
        "SELECT * FROM dns_records WHERE zone = $1 ORDER BY name <> zone, name, type, created_at, id", zone
    )
    return [as_record(row) for row in rows]


def as_zone(row: Record) -> ZoneRow:
    return ZoneRow(
        name=row["name"],
        owner_id=row["owner_id"],
        revision=row["revision"],
        served_revision=row["served_revision"],
        serial=row["serial"],
        problem=row["problem"],
        created_at=row["created_at"],
    )


def as_record(row: Record) -> RecordRow:
    return RecordRow(
        id=row["id"],
        zone=row["zone"],
        name=row["name"],
        ttl=row["ttl"],
        data=DATA.validate_python(row["data"]),
        managed=row["managed"],
        created_at=row["created_at"],
    )


def rendered(records: Iterable[NewRecord]) -> frozenset[ResourceRecord]:
    return frozenset(ResourceRecord.of(record.name, record.ttl, record.data) for record in records)
