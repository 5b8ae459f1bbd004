"""Diagnosis of a site, and the six repairs."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.jobs import require_turn
from svc_actors.panel.repairs import CheckedPart, CheckState, Repair
from svc_actors.panel.repairs.diagnosis import require_finished
from svc_actors.panel.repairs.work import enqueue_repair
from svc_actors.store import Transaction, audit

operations = Operations[Panel]()


class SiteFinding(Model):
    """`repair`: the repair that fixes it; null if only a person can."""

    evidence: str
    repair: Repair | None


class SiteCheck(Model):
    """The check of one part of a site. `unknown`: the check failed or timed out; its finding says why."""

    name: Repair
    state: CheckState
    findings: list[SiteFinding]

    @classmethod
    def of(cls, checked: CheckedPart) -> SiteCheck:
        findings = [
            SiteFinding(evidence=each.evidence, repair=checked.repair if each.mendable else None)
            for each in checked.findings
        ]
        return cls(name=checked.repair, state=checked.state, findings=findings)


class SiteDiagnosis(Model):
    """`healthy`: the state of every check is healthy."""

    site_id: UUID
    healthy: bool
    checks: list[SiteCheck]


class SiteDiagnoseRequest(SiteRequest):
    """Names the site."""


class SiteRepairRequest(SiteChange):
    """Repairs one part of a site."""

    repair: Annotated[Repair, Field(description="The part to repair.")]


@operations.declare(
    "site.diagnose",
    "Diagnose a site: its faults, their evidence and the repair for each; changes nothing",
    Route.get("/sites/{id}/diagnose"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def diagnose(context: Context[Panel], request: SiteDiagnoseRequest) -> SiteDiagnosis:
    site = await site_of(context.services.database, context.principal, request.id)
    operator = context.principal.display if context.principal.is_operator else None
    checks = [SiteCheck.of(each) for each in await context.services.diagnosis.of(site, operator)]
    healthy = all(each.state is CheckState.HEALTHY for each in checks)
    return SiteDiagnosis(site_id=site.id, healthy=healthy, checks=checks)


@operations.declare(
    "site.repair",
    "Repair one part of a site from its records; does nothing if nothing is wrong",
    Route.post("/sites/{id}/repair"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("id", "repair"),
)
async def repair(context: Context[Panel], request: SiteRepairRequest) -> JobModel:
    async def work(tx: Transaction) -> JobModel:
        site = await locked_site_of(tx, context.principal, request.id)
        require_finished(site)
        await require_turn(tx, site.id, site.owner_id)
        job = await enqueue_repair(tx, site, request.repair)
        await audit.record(tx, context.caller, site.target, {"repair": request.repair.value, "job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)
