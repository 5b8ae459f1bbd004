"""Applications of sites of the type app: their configuration, and start, stop and restart."""

from __future__ import annotations

from svc.panel.apps.models import (
    AppLogRequest,
    AppRestartRequest,
    AppStartRequest,
    AppStopRequest,
    AppUpdateRequest,
    AppVariable,
    AppVariablesRequest,
    SiteAppModel,
    require_entry,
)
from svc.panel.log_lines import LogLines, log_part
from svc.panel.services import Panel
from svc.panel.sites.access import SiteChange, SiteRequest, locked_site_of, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Route
from svc.registry.principal import Access
from svc.registry.scopes import Scope
from svc_actors.panel.apps import AppOrder, SiteApp
from svc_actors.panel.apps.records import app_of, change_app
from svc_actors.panel.apps.variables import replace_variables, variables_of
from svc_actors.panel.host_work import soon
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Transaction, audit
from svc_common.errors import unavailable
from svc_webhost.apps import AppError, app_log
from svc_webhost.apps.model import LOG
from svc_webhost.launcher import ServiceStatus
from svc_webhost.site_logs import flush_logs

operations = Operations[Panel]()


@operations.declare(
    "app.get", "The application of a site", Route.get("/sites/{id}/app"), access=Access.SIGNED_IN, scope=Scope.READ
)
async def get_app(context: Context[Panel], request: SiteRequest) -> SiteAppModel:
    site = await site_of(context.services.database, context.principal, request.id)
    return await shown_app(context, site)


@operations.declare(
    "app.update",
    "Change the application of a site; takes effect at its next start",
    Route.patch("/sites/{id}/app"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
)
async def update_app(context: Context[Panel], request: AppUpdateRequest) -> SiteAppModel:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    fields = ("interface", "entry", "folder", "health_path")
    values = {name: getattr(request, name) for name in fields if getattr(request, name) is not None}

    async def work(tx: Transaction) -> None:
        locked = await locked_site_of(tx, context.principal, site.id)
        app = await app_of(tx, locked)
        require_entry(app.runtime, values.get("entry", app.entry))
        await change_app(tx, app, values)
        await audit.record(tx, context.caller, locked.target, values)

    await database.transact(work)
    return await shown_app(context, site)


@operations.declare(
    "app.env",
    "The names of the environment variables of a site's application",
    Route.get("/sites/{id}/env"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def get_variables(context: Context[Panel], request: SiteRequest) -> list[AppVariable]:
    database = context.services.database
    site = await site_of(database, context.principal, request.id)
    await app_of(database, site)
    return await _variables(context, site)


@operations.declare(
    "app.env_set",
    "Replace the environment variables of a site's application; takes effect at its next start",
    Route.put("/sites/{id}/env"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
)
async def set_variables(context: Context[Panel], request: AppVariablesRequest) -> list[AppVariable]:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)

    async def work(tx: Transaction) -> None:
        locked = await locked_site_of(tx, context.principal, site.id)
        await app_of(tx, locked)
        changed = await replace_variables(tx, services.sealer, locked.id, request.variables)
        await audit.record(tx, context.caller, locked.target, {"changed": changed})

    await services.database.transact(work)
    return await _variables(context, site)


@operations.declare(
    "app.start",
    "Start the application of a site",
    Route.post("/sites/{id}/app/start"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
)
async def start(context: Context[Panel], request: AppStartRequest) -> SiteAppModel:
    return await _ordered(context, request, AppOrder.START)


@operations.declare(
    "app.stop",
    "Stop the application of a site",
    Route.post("/sites/{id}/app/stop"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
    frees_space=True,
)
async def stop(context: Context[Panel], request: AppStopRequest) -> SiteAppModel:
    return await _ordered(context, request, AppOrder.STOP)


@operations.declare(
    "app.restart",
    "Restart the application of a site",
    Route.post("/sites/{id}/app/restart"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    target="site",
)
async def restart(context: Context[Panel], request: AppRestartRequest) -> SiteAppModel:
    return await _ordered(context, request, AppOrder.RESTART)


@operations.declare(
    "app.logs",
    "The output of a site's application, from a cursor on",
    Route.get("/sites/{id}/app/logs"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
)
async def read_log(context: Context[Panel], request: AppLogRequest) -> LogLines:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    await app_of(services.database, site)
    await flush_logs(services.config.folders, site.account, LOG)
    log = app_log(services.config.folders, site.account)
    part = await log_part(log, after=request.after, text=request.q, most=request.limit)
    return LogLines(lines=part.lines, cursor=part.cursor, more=part.more, gap=part.gap)


async def _ordered(context: Context[Panel], request: SiteChange, order: AppOrder) -> SiteAppModel:
    services = context.services
    site = await site_of(services.database, context.principal, request.id)
    await app_of(services.database, site)
    await soon(services.actors.ref(SiteApp, str(site.id)).ask(SiteApp.order, context.caller, order))
    return await shown_app(context, site)


async def _variables(context: Context[Panel], site: SiteRow) -> list[AppVariable]:
    found = await variables_of(context.services.database, site.id)
    return [AppVariable(name=one.name, set_at=one.set_at) for one in found]


async def shown_app(context: Context[Panel], site: SiteRow) -> SiteAppModel:
    app = await app_of(context.services.database, site)
    if app.live is None:
        return SiteAppModel.of(app, ServiceStatus(running=False))
    try:
        status = await context.services.apps.status(app.release(site, app.live))
    except AppError as error:
        raise unavailable(f"The state of the application is unknown: {error}") from error
    return SiteAppModel.of(app, status)
