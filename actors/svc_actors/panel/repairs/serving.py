"""What serves a site: the configuration that the web server and PHP have, and the programs that answer."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from svc_actors.panel.apps import AppOrder, SiteApp
from svc_actors.panel.apps.records import AppRow, read_app
from svc_actors.panel.host_work import finished
from svc_actors.panel.repairs.parts import Finding
from svc_actors.panel.sites.php import PHP_TYPES, php_of, pool_of
from svc_actors.panel.sites.records import SiteRow, change_record
from svc_actors.panel.sites.serving import server_of
from svc_actors.panel.sites.site import Changed, Site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database, Transaction, service_itself
from svc_common.errors import ServiceError, invalid, unavailable
from svc_webhost.apps import AppError, AppServing
from svc_webhost.folders import HostFolders
from svc_webhost.nginx import NginxError, WebServing
from svc_webhost.php import PhpError, PhpServing, Pool

_CALLER: Final = "site.repair"


class Configuration:
    """The configuration of nginx and PHP, compared with what the records result in."""

    def __init__(
        self, database: Database, actors: ActorSystem, folders: HostFolders, web: WebServing, php: PhpServing
    ) -> None:
        self._database = database
        self._actors = actors
        self._folders = folders
        self._web = web
        self._php = php

    async def look(self, site: SiteRow) -> list[Finding]:
        try:
            server = await server_of(self._database, site, self._folders)
        except ServiceError as error:
            return [Finding(error.message, mendable=False)]
        assert server is not None, "a site that is finished is served"
        findings = []
        try:
            if (differs := await self._web.difference(server)) is not None:
                findings.append(Finding(differs))
        except NginxError as error:
            findings.append(Finding(str(error), mendable=False))
        pool = _pool(site)
        if pool is not None and not await self._php.is_current(pool):
            findings.append(Finding(f"The configuration of PHP {pool.version} is missing or differs from its record."))
        return findings

    async def mend(self, site: SiteRow) -> None:
        pool = _pool(site)
        if pool is not None and not await self._php.is_current(pool):
            # The running PHP master may have read the wrong configuration, so it is restarted.
            await _restart_php(self._actors, site)
        else:
            await finished(self._actors.ref(Site, str(site.id)).ask(Site.serve_again))


class Runtime:
    """Whether PHP, or the site's application, answers."""

    def __init__(self, database: Database, actors: ActorSystem, php: PhpServing, apps: AppServing) -> None:
        self._database = database
        self._actors = actors
        self._php = php
        self._apps = apps

    async def look(self, site: SiteRow) -> list[Finding]:
        problem = None
        try:
            if (pool := _pool(site)) is not None:
                problem = await self._php.problem(pool)
            elif (app := await self._running_app(site)) is not None:
                problem = await self._problem_of_app(site, app)
        except (PhpError, AppError) as error:
            raise unavailable(f"What runs for {site.domain} could not be checked: {error}") from error
        return [] if problem is None else [Finding(problem)]

    async def mend(self, site: SiteRow) -> None:
        """Restart the program. Visitors do not notice the restart: the new program takes over once it answers."""
        if _pool(site) is not None:
            await _restart_php(self._actors, site)
        elif await self._running_app(site) is not None:
            restart = (service_itself(_CALLER), AppOrder.RESTART)
            await finished(self._actors.ref(SiteApp, str(site.id)).ask(SiteApp.order, *restart))

    async def _running_app(self, site: SiteRow) -> AppRow | None:
        """The application of an active site, if it should run."""
        app = await read_app(self._database, site.id) if site.status is SiteStatus.ACTIVE else None
        return app if app is not None and app.wanted is not None else None

    async def _problem_of_app(self, site: SiteRow, app: AppRow) -> str | None:
        if app.live is None:
            return f"The application does not run: {app.problem or 'it was not started yet'}"
        return await self._apps.problem(app.release(site, app.live))


async def _restart_php(actors: ActorSystem, site: SiteRow) -> None:
    async def change(tx: Transaction, locked: SiteRow) -> Changed:
        php = php_of(locked)
        await change_record(tx, locked, {"php": php.model_copy(update={"restarts": php.restarts + 1}).record})
        return Changed(locked.target)

    await finished(actors.ref(Site, str(site.id)).ask(Site.change, service_itself(_CALLER), change))


def _pool(site: SiteRow) -> Pool | None:
    """The PHP pool that should run."""
    if site.type not in PHP_TYPES or site.status is not SiteStatus.ACTIVE:
        return None
    try:
        return pool_of(site)
    except ValidationError as error:
        raise invalid(f"The record of {site.domain}'s PHP cannot be read: {error.errors()[0]['msg']}") from error
