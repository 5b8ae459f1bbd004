"""Updates of the Debian packages that the panel drives. Administrators only."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from svc.panel.jobs import JobModel, job_answer
from svc.panel.services import Panel
from svc.registry.declare import Operations
from svc.registry.operation import Context, Empty, Model, Request, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.alerts import close_alert
from svc_actors.panel.updates import UpdateMode, Wanted
from svc_actors.panel.updates.records import last_run, read_look, read_mode, write_mode
from svc_actors.panel.updates.work import ALERT, enqueue_install, enqueue_look, under_way
from svc_actors.store import Target, Transaction, audit
from svc_common.errors import not_found, unavailable
from svc_webhost.packages import PackageError, PackageName, PackageUpdate

operations = Operations[Panel]()

_SERVER = Target("server", None, "updates")


class AvailableUpdate(Model):
    """`held`: no job changes it until it is released."""

    name: str
    installed: str
    available: str
    security: bool
    held: bool


class LastUpdates(Model):
    """The last job that installed something. `silent_sites` answered before it, but not after."""

    job_id: int
    packages: list[AvailableUpdate]
    silent_sites: list[str]


class Updates(Model):
    """`looked_at` null: the panel has not fetched the package lists yet. `look_error`: why the last attempt failed.
    `updates`: those that the lists offer; null if updates are off, or if dpkg or apt failed (`problem`). `held`:
    managed packages that are not updated. `job_id`: the job that is queued or running."""

    mode: UpdateMode
    looked_at: datetime | None
    look_error: str | None
    updates: list[AvailableUpdate] | None
    problem: str | None
    held: list[str]
    last: LastUpdates | None
    job_id: int | None


class UpdateInstallRequest(Request):
    which: Annotated[Wanted, Field(description="Only security updates, or all.")] = Wanted.SECURITY


class UpdateConfigureRequest(Request):
    mode: UpdateMode


class UpdateHoldRequest(Request):
    package: PackageName


class UpdateReleaseRequest(Request):
    package: PackageName


@operations.declare(
    "update.show",
    "The available updates of the server's packages, and those installed last",
    Route.get("/updates"),
    access=Access.ADMINISTRATOR,
    scope=Scope.READ,
    command=("update", "show"),
)
async def show(context: Context[Panel], request: Empty) -> Updates:
    return await _updates(context)


@operations.declare(
    "update.look",
    "Fetch Debian's package lists now; nothing is installed",
    Route.post("/updates/look"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "look"),
    target="server",
)
async def look(context: Context[Panel], request: Empty) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        job = await enqueue_look(tx)
        await audit.record(tx, context.caller, _SERVER, {"job": job.id})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "update.install",
    "Install updates of the server's packages; sites are visited before and after",
    Route.post("/updates/install"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "install"),
    target="server",
)
async def install(context: Context[Panel], request: UpdateInstallRequest) -> JobModel:

    async def work(tx: Transaction) -> JobModel:
        job = await enqueue_install(tx, request.which)
        await audit.record(tx, context.caller, _SERVER, {"job": job.id, "which": request.which})
        return await job_answer(tx, job)

    return await context.services.database.transact(work)


@operations.declare(
    "update.configure",
    "Set whether updates are looked for and installed: off, manual or automatic",
    Route.patch("/updates"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "configure"),
    target="server",
)
async def configure(context: Context[Panel], request: UpdateConfigureRequest) -> Updates:

    async def work(tx: Transaction) -> None:
        await write_mode(tx, request.mode)
        if request.mode is UpdateMode.OFF:
            await close_alert(tx, ALERT)
        await audit.record(tx, context.caller, _SERVER, {"mode": request.mode})

    await context.services.database.transact(work)
    return await _updates(context)


@operations.declare(
    "update.hold",
    "Hold a package: neither jobs nor apt change it",
    Route.post("/updates/hold"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "hold"),
    positional=("package",),
    target="package",
)
async def hold(context: Context[Panel], request: UpdateHoldRequest) -> Updates:
    return await _held(context, request.package, held=True)


@operations.declare(
    "update.release",
    "Remove the hold of a package",
    Route.post("/updates/release"),
    access=Access.ADMINISTRATOR,
    scope=Scope.ADMIN,
    command=("update", "release"),
    positional=("package",),
    target="package",
)
async def release(context: Context[Panel], request: UpdateReleaseRequest) -> Updates:
    return await _held(context, request.package, held=False)


async def _held(context: Context[Panel], package: str, *, held: bool) -> Updates:
    services = context.services
    try:
        if package not in await services.packages.versions():
            raise not_found(
                f"The panel manages no installed package {package}; nothing was changed.",
                hint="`svc update show` lists those with updates.",
            )
        await services.packages.hold(package, held)
    except PackageError as error:
        raise unavailable(f"{package} stays as it was: {error}.") from error
    target = Target("package", package, package)
    await services.database.transact(lambda tx: audit.record(tx, context.caller, target))
    return await _updates(context)


async def _updates(context: Context[Panel]) -> Updates:
    services = context.services
    mode, seen = await read_mode(services.database), await read_look(services.database)
    last = await last_run(services.database)
    found: list[PackageUpdate] | None = None
    held: frozenset[str] = frozenset()
    problem = None
    if mode is not UpdateMode.OFF:
        try:
            found, held = await services.packages.updates(), await services.packages.held()
        except PackageError as error:
            problem = str(error)
    return Updates(
        mode=mode,
        looked_at=seen and seen.looked_at,
        look_error=seen and seen.error,
        updates=[_view(each) for each in found] if found is not None else None,
        problem=problem,
        held=sorted(held),
        last=last
        and LastUpdates(
            job_id=last.job_id, packages=[_view(each) for each in last.installed], silent_sites=list(last.silent)
        ),
        job_id=await under_way(services.database),
    )


def _view(update: PackageUpdate) -> AvailableUpdate:
    return AvailableUpdate(
        name=update.name,
        installed=update.installed,
        available=update.available,
        security=update.security,
        held=update.held,
    )
