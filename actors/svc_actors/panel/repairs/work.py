"""A repair is a job of its site: it checks the part, repairs it if something is wrong, and checks it again.

A healthy part is left alone. The log lists the findings that the repair has removed. If findings are left, the job
fails and names them.
"""

from __future__ import annotations

from typing import Final

from svc_actors.panel.jobs import Job, JobClass, JobRun, NewJob, enqueue
from svc_actors.panel.repairs.diagnosis import CheckedPart, CheckState, checked, require_finished
from svc_actors.panel.repairs.parts import Parts, Repair
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.store import Database, Transaction
from svc_common.errors import conflict, not_found, unavailable

KIND: Final = "site.repair"
STEPS: Final = ("repair",)
SECONDS: Final = 900.0
_LOOK_SECONDS: Final = 60.0


async def enqueue_repair(tx: Transaction, site: SiteRow, repair: Repair) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Repair {repair.value} of {site.domain}",
            job_class=JobClass.SITES,
            steps=STEPS,
            site_id=site.id,
            owner_id=site.owner_id,
            parameters={"repair": repair.value},
        ),
    )


class RepairWork:
    """The work of the jobs."""

    def __init__(self, database: Database, parts: Parts) -> None:
        self._database = database
        self._parts = parts

    async def repair(self, run: JobRun) -> None:
        site = await read_site(self._database, run.site_id)
        if site is None:
            raise not_found("The site was deleted meanwhile.")
        require_finished(site)
        repair = Repair(run.parameters["repair"])
        part = self._parts[repair]
        before = await checked(repair, part, site, _LOOK_SECONDS)
        if before.state is CheckState.HEALTHY:
            await run.log("Nothing is wrong; nothing was changed.")
            return
        await run.log(*(f"Found: {finding.evidence}" for finding in before.findings))
        if before.state is CheckState.FAULTY and not any(finding.mendable for finding in before.findings):
            raise conflict(
                "This repair does not apply to the faults that were found; nothing was changed.", hint=_first(before)
            )
        await run.progress(20)
        await part.mend(site)
        await run.progress(80)
        # A repair may have changed the record itself.
        after = await checked(repair, part, await read_site(self._database, site.id) or site, _LOOK_SECONDS)
        if after.state is CheckState.UNKNOWN:
            raise unavailable("It was repaired, but could not be checked again.", hint=_first(after))
        mended = [finding for finding in before.findings if finding not in after.findings]
        await run.log(*(f"Mended: {finding.evidence}" for finding in mended))
        if after.state is CheckState.FAULTY:
            await run.log(*(f"Still wrong: {finding.evidence}" for finding in after.findings))
            raise conflict("Some faults remain after the repair.", hint=_first(after))


def _first(found: CheckedPart) -> str:
    return found.findings[0].evidence
