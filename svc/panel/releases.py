"""Releases of the panel itself: the running one, the offered one, and how the last trial ended. Administrators only."""

from __future__ import annotations

from datetime import datetime

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.releases.manifest import ReleaseError, age, verified
from svc_actors.panel.releases.own import OwnRelease
from svc_actors.panel.releases.records import ReleaseCheck, RunState, last_run, read_look
from svc_actors.panel.releases.work import acceptable, enqueue_install, enqueue_look, under_way
from svc_actors.store import Target, Transaction, audit

operations = Operations[Panel]()

_SERVER = Target("server", None, "releases")


class RunningRelease(Model):
    """`name` is its folder below /opt/svc-panel/releases, or `package` for that of the Debian package, of which
    `package_version` is the version. `kept` are the other installed releases."""

    name: str
    version: str
    package_version: str
    kept: list[str]


class OfferedRelease(Model):
    """`problem`: why it cannot be installed over the running release."""

    version: str
    made_at: datetime
    size: int
    problem: str | None


class ReleaseTrial(Model):
    """`reason`: why the release was refused, or undone. `silent_sites` answered before it but not after."""

    job_id: int
    version: str
    before: str
    state: RunState
    reason: str | None
    silent_sites: list[str]
    ended_at: datetime | None


class PanelReleases(Model):
    """`running` null: the panel was not installed by its package, and its releases cannot be switched. `source`: where
    newer releases are searched. `offered` null: the check at `looked_at` found no newer one; `look_error`: why the last
    check failed. `job_id`: the job that is queued or running, or whose release is on trial."""

    running: RunningRelease | None
    source: str | None
    looked_at: datetime | None
    look_error: str | None
    offered: OfferedRelease | None
    last: ReleaseTrial | None
    job_id: int | None


@operations.declare(
    "release.show",
    "The running release of the panel, the offered release, and the result of the last update",
    Route.get("/updates/panel"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("update", "panel", "show"),
)
async def show(context: Context[Panel], request: Empty) -> PanelReleases:
    services = context.services
    own, seen, last = services.own_release, await read_look(services.database), await last_run(services.database)
    return PanelReleases(
        running=own
        and RunningRelease(
            name=own.name,
            version=own.version,
            package_version=own.package,
            kept=[name for name in own.releases.names() if name != own.name],
        ),
        source=services.config.update_source,
        looked_at=seen and seen.looked_at,
        look_error=seen and seen.error,
        offered=_offered(seen, own),
        last=last
        and ReleaseTrial(
            job_id=last.job_id,
            version=last.version,
            before=last.before,
            state=last.state,
            reason=last.reason,
            silent_sites=list(last.silent),
            ended_at=last.ended_at,
        ),
        job_id=await under_way(services.database),
    )


@operations.declare(
    "release.look",
    "Check for a newer release of the panel; nothing is installed",
    Route.post("/updates/panel/look"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "panel", "look"),
    target="server",
)
async def look(context: Context[Panel], request: Empty) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        job = await enqueue_look(tx, context.services.own_release)
        await audit.record(tx, context.caller, _SERVER, {"job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "release.install",
    "Install the newest release of the panel and try it; if that fails, the panel goes back to the current one",
    Route.post("/updates/panel/install"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "panel", "install"),
    target="server",
)
async def install(context: Context[Panel], request: Empty) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        job = await enqueue_install(tx, context.services.own_release)
        await audit.record(tx, context.caller, _SERVER, {"job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


def _offered(seen: ReleaseCheck | None, own: OwnRelease | None) -> OfferedRelease | None:
    """The offered release, verified again: the running release may have brought other keys."""
    if own is None or seen is None or seen.line is None:
        return None
    try:
        found = verified(seen.line, own.keys)
    except ReleaseError:
        return None
    if age(found.version) <= age(own.version):
        return None
    return OfferedRelease(
        version=found.version,
        made_at=found.made_at,
        size=found.archive.size,
        problem=acceptable(found, own),
    )
