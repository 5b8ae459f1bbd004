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
    """`name` is the archive's own. `owner_email`: whose the sites become, by default the caller's; administrators name
    it."""

    name: FileName
    size: Annotated[int, Field(ge=1, le=MAX_BYTES, description="Size of the whole archive in bytes.")]
    owner_email: Email | None = None


class ImportChunkRequest(ImportRequest):
    """Parts may come in any order, at once, overlap and repeat."""

    offset: Annotated[int, Field(ge=0, le=MAX_BYTES)]
    data_base64: Base64


class ImportFinishRequest(ImportRequest):
    """May be repeated when the answer was lost."""

    sha256: Sha256


class ImportApplyRequest(ImportRequest):
    """`without`: items of the plan that are left out, by their ids. `domains`: sites that get another one, as old=new.
    `accept_htaccess`: sites whose .htaccess files say what is not served so here are opened to visitors all the same;
    they are suspended otherwise, until their owner has looked at them. `owner_email`: administrators may name whose
    the sites become."""

    without: Annotated[list[ItemId], Field(default_factory=list, max_length=MOST_CHOICES)]
    domains: Annotated[list[Renamed], Field(default_factory=list, max_length=200)]
    accept_htaccess: bool = False
    owner_email: Email | None = None


class PlanItem(Model):
    """`id` is null of what goes with another item. `wanted`: it is not left out by how the import was applied last."""

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
    """What became of an item otherwise than its plan says."""

    kind: Kind
    name: str
    reason: str


class ImportedSite(Model):
    domain: str
    site_id: UUID


class Import(Model):
    """`received` are the bytes that have come, and `chunk_bytes` what a part should have. `format` is null before the
    archive was read."""

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
    """`plan`: every item of the archive, and what is done with it. `notes`: what became otherwise of it when it was
    applied. `sites` are those that it has made."""

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
    """Nothing to say."""
