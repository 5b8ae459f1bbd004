"""Verifies the audit against its seals (svc_actors/store/audit_seals.py), a few seconds' worth at a time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import Field

from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route, Services
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.store.audit_check import check_audit
from svc_actors.store.audit_seals import newest_seal


class AuditServices(Services, Protocol):
    @property
    def audit_folder(self) -> Path:
        """The folder with the files of archived rows."""


operations = Operations[AuditServices]()


class AuditCheckRequest(Request):
    after: Annotated[
        int, Field(ge=0, le=2**53, description="Number of the last seal that was already compared: `next_after`.")
    ] = 0
    digest: (
        Annotated[
            str,
            Field(max_length=64, description="Digest that was logged earlier; it must be that of a seal."),
            Shape("[0-9a-f]{64}", "the 64 digits of a digest"),
        ]
        | None
    ) = None


class AuditCheck(Model):
    """`problem`: the first seal, row or file that does not match; null if all that was read matches. `next_after`: the
    audit was not read to its end; continue after this seal. No seal protects the `unsealed_rows` yet."""

    problem: str | None
    seals: int
    rows: int
    archived_rows: int
    next_after: int | None
    newest_seal: int | None
    newest_row: int | None
    newest_digest: str | None
    sealed_at: datetime | None
    unsealed_rows: int
    unsealed_since: datetime | None


@operations.declare(
    "audit.verify",
    "Compare the audit with its seals, archived rows included",
    Route.get("/audit/verify"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
)
async def verify(context: Context[AuditServices], request: AuditCheckRequest) -> AuditCheck:
    database = context.services.database
    checked = await check_audit(database, context.services.audit_folder, request.after)
    problem = checked.problem
    if problem is None and request.digest is not None and request.after == 0:
        known = await database.fetchval("SELECT number FROM audit_seals WHERE digest = $1", request.digest)
        if known is None:
            problem = f"no seal has the digest {request.digest}: the chain of seals was cut off before it, or rebuilt"
    newest = await newest_seal(database)
    unsealed = await database.fetchone(
        "SELECT count(*) AS rows, min(at) AS since FROM audit WHERE id > $1", newest.last_id if newest else 0
    )
    return AuditCheck(
        problem=problem,
        seals=checked.seals,
        rows=checked.rows,
        archived_rows=checked.archived_rows,
        next_after=None if problem else checked.next_after,
        newest_seal=newest.number if newest else None,
        newest_row=newest.last_id if newest else None,
        newest_digest=newest.digest if newest else None,
        sealed_at=newest.sealed_at if newest else None,
        unsealed_rows=unsealed["rows"],
        unsealed_since=unsealed["since"],
    )
