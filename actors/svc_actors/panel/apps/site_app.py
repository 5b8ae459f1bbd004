"""The SiteApp actor starts, restarts and stops the application of one site.

It decides an order and writes it in one transaction with its audit row; then it orders `host_work` to make the server
follow the record, and the caller waits for this work. Each start is a release of its own: it runs next to the previous
one, answers its probe, and only then gets the visitors. If it does not answer, the record goes back to the running
release, and the order fails with the reason.

Invariants:
- only an order to stop, or the end of its site, stops the release that visitors reach;
- everything done to the server may be repeated: after a kill at any point, the next core does it again (`settle`);
- no message waits for the server;
- the watch, not this actor, stops releases that are neither desired nor live: a stop may take as long as the longest
  request.
"""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID

from svc_actors.panel.apps.deployments import require_ready
from svc_actors.panel.apps.records import (
    AppRow,
    app_of,
    read_app,
    write_deployment,
    write_failed,
    write_live,
    write_wanted,
)
from svc_actors.panel.apps.variables import open_variables
from svc_actors.panel.host_work import HostWork, Ordered
from svc_actors.panel.sites.records import SiteRow, lock_site, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.runtime import Actor
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database, Transaction, audit
from svc_common.errors import conflict, unavailable
from svc_webhost.apps import AppError, AppServing


class AppOrder(StrEnum):
    START = "start"
    STOP = "stop"
    RESTART = "restart"


class SiteApp(Actor):
    def __init__(self, database: Database, sealer: Sealer, apps: AppServing, host_work: HostWork) -> None:
        self._database = database
        self._sealer = sealer
        self._apps = apps
        self._host_work = host_work

    @property
    def site_id(self) -> UUID:
        return UUID(self.key)

    async def order(self, caller: Caller, order: AppOrder) -> Ordered[None]:
        """The ordered work fails with `unavailable` if the application does not start; the previous release then keeps
        running."""

        async def work(tx: Transaction) -> None:
            site, app = await self._locked(tx)
            # START does nothing to an application that runs, but retries one that failed to start.
            if order is not AppOrder.START or app.wanted is None:
                await write_wanted(tx, app, running=order is not AppOrder.STOP)
            await audit.record(tx, caller, site.target, {"runtime": app.runtime.value, "entry": app.entry})

        await self._database.transact(work)
        return self._follow()

    async def run_deployment(self, number: int) -> Ordered[None]:
        """Start the code of this deployment instead of the running one. The ordered work fails as in `order`."""

        async def work(tx: Transaction) -> None:
            _, app = await self._locked(tx)
            await self._want(tx, app, number)

        await self._database.transact(work)
        return self._follow()

    async def roll_back(self, caller: Caller, number: int | None) -> Ordered[None]:
        """Run the deployment `number`, by default the one before the running one. Raises `conflict` if its code is not
        on the server; the ordered work fails as in `order`."""

        async def work(tx: Transaction) -> None:
            site, app = await self._locked(tx)
            chosen = await require_ready(tx, app, number)
            await self._want(tx, app, chosen)
            await audit.record(tx, caller, site.target, {"from": app.live_deployment, "to": chosen})

        await self._database.transact(work)
        return self._follow()

    async def settle(self) -> Ordered[None]:
        """Finish what an ended core, a boot or a suspension has left undone. May be repeated."""
        return self._follow()

    async def _locked(self, tx: Transaction) -> tuple[SiteRow, AppRow]:
        site = await lock_site(tx, self.site_id)
        if site.status is not SiteStatus.ACTIVE:
            raise conflict(f"The site {site.domain} is {site.status.value}; its application was left as it is.")
        return site, await app_of(tx, site)

    async def _want(self, tx: Transaction, app: AppRow, deployment: int) -> None:
        await write_deployment(tx, app, deployment)
        await write_wanted(tx, app, running=True)

    def _follow(self) -> Ordered[None]:
        what = "The change is recorded, but the application does not use it yet"
        return self._host_work.order(f"SiteApp:{self.key}", "change", self._follow_now, what=what)

    async def _follow_now(self) -> None:
        site, app = await read_site(self._database, self.site_id), await read_app(self._database, self.site_id)
        if site is None or app is None or site.status is not SiteStatus.ACTIVE:
            return
        try:
            if app.wanted is None:
                await self._stop(site, app)
            elif app.wanted == app.live:
                await self._hold(site, app, app.live)
            else:
                await self._replace(site, app, app.wanted)
        except AppError as error:
            raise unavailable(
                f"The application of {site.domain} could not be brought into the requested state: {error}",
                hint="It is retried automatically.",
            ) from error

    async def _hold(self, site: SiteRow, app: AppRow, live: int) -> None:
        running = await self._apps.running()
        if live not in running.get(site.number, frozenset()):
            await self._apps.hold(app.release(site, live), await self._variables())

    async def _replace(self, site: SiteRow, app: AppRow, wanted: int) -> None:
        release = app.release(site, wanted)
        try:
            await self._apps.start(release, await self._variables())
            await self._apps.go_over(release)
        except AppError as error:
            problem = str(error)
            await self._database.transact(lambda tx: write_failed(tx, app, problem))
            before = "The running release was left as it is." if app.live is not None else "Nothing runs."
            raise unavailable(
                f"The application of {site.domain} was not started: {problem}", hint=f"{before} Its log has more."
            ) from error
        await self._database.transact(lambda tx: write_live(tx, app, wanted))

    async def _variables(self) -> dict[str, str]:
        return await open_variables(self._database, self._sealer, self.site_id)

    async def _stop(self, site: SiteRow, app: AppRow) -> None:
        """Take the release away from visitors; the watch ends it once it has answered the open requests."""
        await self._apps.hide(site.account)
        if app.live is not None:
            await self._database.transact(lambda tx: write_live(tx, app, None))
