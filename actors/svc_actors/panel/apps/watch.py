"""Starts and stops releases of applications so that they match the records: after a boot, a kill of the core, a
suspension, and when one release has replaced another.

Each round compares the records with the running releases. A desired release that does not run is started by the actor
of its site. A release that is neither desired nor live, or whose site is not active, is stopped here, in a task of its
own.

Invariants:
- a desired release is never stopped, because the records are read after the running releases were listed;
- no release of an active site is stopped while its desired release is not live: the work on the server may still be
  starting an earlier release, and switches visitors to this release as soon as it answers.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from svc_actors.panel.apps.records import CHANNEL, AppRow, as_app
from svc_actors.panel.apps.site_app import SiteApp
from svc_actors.panel.host_work import soon
from svc_actors.panel.sites.records import SITE_COLUMNS, STATUS_CHANNEL, SiteRow, as_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.runtime import ActorSystem, DeliveryError, DomainError
from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from svc_webhost.apps import AppError, AppServing

ROUND_SECONDS: Final = 30.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.apps")


class AppWatch:
    def __init__(self, database: Database, actors: ActorSystem, apps: AppServing) -> None:
        self._database = database
        self._actors = actors
        self._apps = apps
        self._woken = trio.Event()
        self._busy: set[tuple[int, int]] = set()
        self._settling: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        self._busy.clear()
        self._settling.clear()
        announcements = self._database.announcements
        with announcements.listener(CHANNEL, self._wake), announcements.listener(STATUS_CHANNEL, self._wake):
            async with trio.open_nursery() as nursery:
                while True:
                    self._woken = woken = trio.Event()
                    await self._round(nursery)
                    with trio.move_on_after(ROUND_SECONDS):
                        await woken.wait()

    async def round(self) -> None:
        """A single round of `run`; everything it starts and stops is done when it returns."""
        async with trio.open_nursery() as nursery:
            await self._round(nursery)

    def _wake(self, _: str) -> None:
        self._woken.set()

    async def _round(self, nursery: trio.Nursery) -> None:
        running = await self._apps.running()
        sites = {
            row["number"]: as_site(row)
            for row in await self._database.fetch(f"SELECT {SITE_COLUMNS} FROM sites WHERE type = 'app'")
        }
        apps = {row["site_id"]: as_app(row) for row in await self._database.fetch("SELECT * FROM site_apps")}
        for number, site in sites.items():
            app = apps.get(site.id)
            if app is None or site.status is not SiteStatus.ACTIVE or str(site.id) in self._settling:
                continue
            if app.wanted != app.live or (app.live is not None and app.live not in running.get(number, ())):
                self._settling.add(str(site.id))
                nursery.start_soon(self._settle, str(site.id))
        for number, releases in running.items():
            of = sites.get(number)
            app = apps.get(of.id) if of is not None and of.status is SiteStatus.ACTIVE else None
            if app is not None and app.wanted is not None and app.wanted != app.live:
                continue
            needed = {app.wanted, app.live} if app is not None else set()
            for release in releases - needed:
                if (number, release) not in self._busy:
                    self._busy.add((number, release))
                    nursery.start_soon(self._stop, number, release, of, apps.get(of.id) if of else None)

    async def _stop(self, number: int, release: int, site: SiteRow | None, app: AppRow | None) -> None:
        try:
            if site is None or app is None:
                await self._apps.remove(SiteAccount(number))
            else:
                await self._apps.stop(app.release(site, release))
        except AppError as error:
            log.warning("app.not_stopped", site=number, release=release, error=str(error))
        else:
            # Look again: the release may be needed again by now.
            self._woken.set()
        finally:
            self._busy.discard((number, release))

    async def _settle(self, site_id: str) -> None:
        try:
            await soon(self._actors.ref(SiteApp, site_id).ask(SiteApp.settle))
        except DeliveryError:
            return  # The actor has crashed and raised its alert; the next round asks it again.
        except DomainError as error:
            log.warning("app.not_settled", site=site_id, error=str(error))
        finally:
            self._settling.discard(site_id)
