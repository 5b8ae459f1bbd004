"""The API's models of imports: answers and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from svc.identity.fields import Email
from svc.panel.files.models import CHUNK_BYTES, Base64, ByteRange, FileName, Sha256
from svc.panel.files.uploads import MAX_BYTES
from svc.registry.operation import Model, Request
from svc.registry.paging import PageRequest
from svc.registry.shapes import Shape
from svc_actors.panel.imports.plan import Item, PlanAction
from svc_actors.panel.imports.records import ImportRow
from svc_actors.panel.imports.states import ImportStatus
from svc_webhost.archives.model import Format, Kind

MOST_CHOICES = 2000
ItemId = Annotated[
    str,
    Field(min_length=3, max_length=300, description="The id of an item of the plan."),
    Shape(r"[a-z_]+:[^\u0000-\u001f\u007f]+", "the id of an item as the plan has it, such as database:shop"),
]


Renamed = Annotated[
    str,
    Field(min_length=7, max_length=520, description="A site of the archive, and the domain that it gets."),
    Shape(
        r"[^\u0000-,/:-@\[-`{-\u00a0]+=[^\u0000-,/:-@\[-`{-\u00a0]+", "two domains, as old.example.org=new.example.org"
    ),
]


class ImportListRequest(PageRequest):
    status: ImportStatus | None = None


class ImportRequest(Request):
    id: UUID


class ImportBeginRequest(Request):
    """`name` is the archive's file name. `owner_email`: the owner of the sites, by default the caller; required from
    administrators."""

    name: FileName
    size: Annotated[int, Field(ge=1, le=MAX_BYTES, description="Size of the whole archive in bytes.")]
    owner_email: Email | None = None


class ImportChunkRequest(ImportRequest):
    """Parts may arrive in any order and at the same time, overlap and repeat."""

    offset: Annotated[int, Field(ge=0, le=MAX_BYTES)]
    data_base64: Base64


class ImportFinishRequest(ImportRequest):
    """May be repeated if the answer was lost."""

    sha256: Sha256


class ImportApplyRequest(ImportRequest):
    """`without`: ids of items of the plan that are not imported. `domains`: sites that get another domain, as old=new.
    `accept_htaccess`: open sites to visitors even if the panel cannot reproduce what their .htaccess files do;
    otherwise these are suspended until their owner has reviewed them. `owner_email`: the owner of the sites, for
    administrators."""

    without: Annotated[list[ItemId], Field(default_factory=list, max_length=MOST_CHOICES)]
    domains: Annotated[list[Renamed], Field(default_factory=list, max_length=200)]
    accept_htaccess: bool = False
    owner_email: Email | None = None


class PlanItem(Model):
    """`id` is null for an item that is imported with another one. `wanted`: the last application of the import did not
    leave it out."""

    id: str | None
    kind: Kind
    name: str
    action: PlanAction
    reason: str
    wanted: bool

    @classmethod
    def of(cls, item: Item, without: frozenset[str]) -> PlanItem:
        return cls(
            id=item.id,
            kind=item.kind,
            name=item.name,
            action=item.action,
            reason=item.reason,
            wanted=item.action is not PlanAction.LEAVE_OUT and item.id not in without,
        )


class ImportNote(Model):
    """An item that was imported otherwise than its plan says, and why."""

    kind: Kind
    name: str
    reason: str


class ImportedSite(Model):
    domain: str
    site_id: UUID


class Import(Model):
    """`received`: the bytes that have arrived; `chunk_bytes`: the recommended size of a part. `format` is null until
    the archive was read."""

    id: UUID
    name: str
    source: str
    status: ImportStatus
    problem: str | None
    format: Format | None
    owner_id: UUID
    size: int
    received: list[ByteRange]
    chunk_bytes: int
    job_id: int | None
    created_at: datetime

    @classmethod
    def fields_of(cls, row: ImportRow) -> dict[str, Any]:
        return {
            "id": row.id,
            "name": row.name,
            "source": row.source,
            "status": row.status,
            "problem": row.problem,
            "format": None if row.found is None else Format(row.found["format"]),
            "owner_id": row.owner_id,
            "size": row.size,
            "received": [ByteRange(start=start, end=end) for start, end in row.received],
            "chunk_bytes": CHUNK_BYTES,
            "job_id": row.job_id,
            "created_at": row.created_at,
        }

    @classmethod
    def of(cls, row: ImportRow) -> Import:
        return cls(**cls.fields_of(row))


class ImportPlan(Import):
    """`plan`: every item of the archive, and what is done with it. `notes`: the items that were imported otherwise.
    `sites`: the created ones."""

    plan: list[PlanItem]
    notes: list[ImportNote]
    sites: list[ImportedSite]

    @classmethod
    def planned(cls, row: ImportRow, items: Sequence[Item], sites: Mapping[str, UUID]) -> ImportPlan:
        without = frozenset((row.choices or {}).get("without", ()))
        return cls(
            **cls.fields_of(row),
            plan=[PlanItem.of(item, without) for item in items],
            notes=[ImportNote(**{name: note[name] for name in ImportNote.model_fields}) for note in row.outcome or []],
            sites=[ImportedSite(domain=domain, site_id=site) for domain, site in sorted(sites.items())],
        )


class ImportDeleted(Model):
    """The import was deleted."""
