"""Verification of a site that was imported from another host: compares its answers on both hosts (the panel's
specification, Migration)."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc.registry.shapes import Shape
from svc_actors.panel.files import site_folder
from svc_actors.panel.imports import verifying
from svc_actors.panel.jobs import JobClass, NewJob, enqueue, require_turn
from svc_actors.store import Transaction, audit

operations = Operations[Panel]()

OldHost = Annotated[
    str,
    Field(min_length=3, max_length=253, description="Address of the old host, or a name that still resolves to it."),
    Shape(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|[0-9A-Fa-f:]+", "an address such as 198.51.100.7, or a name"),
]


class VerificationVerdict(StrEnum):
    READY = "ready"
    BLOCKED = "blocked"


class MigrationVerifyRequest(SiteChange):
    """The old host at `address` is asked for the site by its domain, as visitors would. `port`: by default that of
    HTTPS, or of HTTP if `https` is false."""

    address: OldHost
    https: bool = True
    port: Annotated[int | None, Field(ge=1, le=65_535)] = None


class PageDifference(Model):
    path: str
    difference: str


class MigrationCheck(Model):
    """`reason` says what differs; if `ok`, the difference does not prevent the move."""

    name: str
    ok: bool
    reason: str | None


class MigrationTable(Model):
    """A table of a `database`, by its name on the old host: the number of rows in the dump, after the import, and now;
    null if unknown. `changed`: written since the import."""

    database: str
    table: str
    rows_before: int | None
    rows_imported: int | None
    rows: int | None
    changed: bool | None


class MigrationPhp(Model):
    """`before`: the version on the old host, if known. PHP here lacks the extensions `missing`, which the site's own
    files need, and `others_missing`, which the old host's command line had."""

    before: str | None
    now: str
    missing: list[str]
    others_missing: list[str]


class MigrationReport(Model):
    """The verdict is `blocked` while a check is not `ok`. `urls`: how many were requested from both hosts;
    `differences`: the first 100 with different answers. `tables`: the first 300, those that differ first."""

    verdict: VerificationVerdict
    address: str
    urls: int
    differences: list[PageDifference]
    checks: list[MigrationCheck]
    tables: list[MigrationTable]
    php: MigrationPhp | None
    job_id: int
    created_at: datetime


@operations.declare(
    "migration.report",
    "How a site answers here, compared with its old host: the last report",
    Route.get("/sites/{id}/migration/verify"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    command=("site", "migration", "report"),
)
async def show_report(context: Context[Panel], request: SiteRequest) -> MigrationReport:
    site = await site_of(context.services.database, context.principal, request.id)
    report = await verifying.read_report(context.services.database, site.id)
    # A report by an earlier release lacks `tables` and `php`.
    found = {"tables": [], "php": None, **report.found}
    return MigrationReport(**found, address=report.address, job_id=report.job_id, created_at=report.created_at)


@operations.declare(
    "migration.verify",
    "Compare a site with its old host: a job",
    Route.post("/sites/{id}/migration/verify"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    command=("site", "migration", "verify"),
    positional=("id", "address"),
    target="site",
)
async def verify(context: Context[Panel], request: MigrationVerifyRequest) -> JobModel:
    port = request.port or (443 if request.https else 80)
    asked = {"address": request.address, "https": request.https, "port": port}

    async def write(tx: Transaction) -> JobModel:
        site = await locked_site_of(tx, context.principal, request.id)
        site_folder(context.services.config.folders, site)
        await require_turn(tx, site.id, site.owner_id)
        job = await enqueue(
            tx,
            NewJob(
                kind=verifying.KIND,
                title=f"Compare {site.domain} with its old host"[:200],
                job_class=JobClass.MIGRATIONS,
                steps=verifying.STEPS,
                site_id=site.id,
                owner_id=site.owner_id,
                parameters=asked,
            ),
        )
        await audit.record(tx, context.caller, site.target, {**asked, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(write)
