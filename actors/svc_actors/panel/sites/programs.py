"""The programs that serve sites: started before the web server uses them, and stopped after it has switched to others.

The record says which PHP pool should run (`pool_of`), and a pool with another definition has another name. So a change
starts the new pool next to the old one, the web server switches to it, and the old pool is stopped a while later, after
it has received all requests that the web server had accepted before. If the new pool does not answer, the old one is
not touched.

A round, at the start of the core and regularly, compares the records with the running pools. It starts pools that a
boot or a killed core has left out, and stops pools that are no longer needed, or whose site is suspended. It rewrites
lost or changed configuration files of running pools, since the launcher restarts pools with these files.

Invariants:
- while a site is being created, or the web server has not taken its last change, none of its pools is stopped;
- a pool that should run is never stopped: records are read after the pools were listed, and once more before a pool is
  stopped, under the lock that also prevents its start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import structlog
import trio
from pydantic import ValidationError

from svc_actors.alerts import Severity, close_alerts, raise_alert
from svc_actors.panel.sites.php import PHP_TYPES, pool_of
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.store import Database, Transaction
from svc_common.errors import unavailable
from svc_webhost.accounts import SiteAccount
from svc_webhost.launcher import ServiceName
from svc_webhost.php import PhpError, PhpServing, Pool, number_of

ROUND_SECONDS: Final = 30.0
IDLE_SECONDS: Final = 600.0
"""The php-fpm master of a site without visitors ends after this time."""
GRACE_SECONDS: Final = 60.0
"""How long an old program stays: an upload that the web server is still receiving will go to the program that ran when
the upload started."""
_AT_ONCE: Final = 4
_ALERTS: Final = "php:site:"

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.php")


class SitePrograms:
    def __init__(self, database: Database, php: PhpServing) -> None:
        self._database = database
        self._php = php
        self._woken = trio.Event()
        self._unneeded: dict[ServiceName, float] = {}
        """Programs that are not needed, each with the time since when, on Trio's clock."""
        self._stopping: set[ServiceName] = set()
        self._changing: defaultdict[ServiceName, trio.Lock] = defaultdict(trio.Lock)
        """One lock per service, so that it is never started and stopped at the same time."""

    async def start(self, site: SiteRow) -> None:
        """Start the pool that the site should have, and wait until it answers. May be repeated. Raises
        `unavailable`."""
        if site.type not in PHP_TYPES or site.status not in (SiteStatus.CREATING, SiteStatus.ACTIVE):
            return
        try:
            pool = pool_of(site)
            async with self._changing[pool.service_name]:
                await self._php.start(pool)
        except (PhpError, ValidationError) as error:
            raise unavailable(
                f"PHP of {site.domain} was not started: {error}", hint="The current PHP was left as it is. Try again."
            ) from error

    def settle(self) -> None:
        """Call this after the web server has switched: a round then soon looks for pools that are no longer needed."""
        self._woken.set()

    async def remove(self, account: SiteAccount) -> None:
        """Stop all programs of the site for good. Raises `unavailable`."""
        try:
            await self._php.remove(account)
        except (PhpError, OSError) as error:
            raise unavailable(str(error), hint="Delete the site again once the cause is fixed.") from error

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._woken = trio.Event()
                await self._round(nursery)
                with trio.move_on_after(ROUND_SECONDS):
                    await self._woken.wait()

    async def round(self) -> None:
        """A single round of `run`: everything that it stops has ended when this returns."""
        async with trio.open_nursery() as nursery:
            await self._round(nursery)

    async def _round(self, nursery: trio.Nursery) -> None:
        # Copied before the listing, which may still contain services that stop in the meantime.
        stopping = frozenset(self._stopping)
        try:
            running = await self._php.running()
        except PhpError as error:
            log.error("php.not_looked_at", reason=str(error))
            return
        rows = await self._database.fetch(
            f"SELECT {SITE_COLUMNS} FROM sites WHERE type = ANY($1) ORDER BY number", [*PHP_TYPES]
        )
        sites = {row["number"]: as_site(row) for row in rows}
        wanted, unknown = _wanted(sites)
        try:
            await self._php.reconcile([wanted[name] for name in wanted.keys() & running])
        except PhpError as error:
            log.error("php.not_held", reason=str(error))
        problems = await self._start({name: wanted[name] for name in wanted.keys() - running})
        await self._database.transact(lambda tx: _write_alerts(tx, unknown | problems))
        now = trio.current_time()
        unneeded = {name for name in running - wanted.keys() if _may_stop(name, sites, unknown)}
        self._unneeded = {name: self._unneeded.get(name, now) for name in unneeded}
        for name, since in self._unneeded.items():
            at_once = _owner(name, sites) is None
            if name not in stopping and (at_once or now - since >= GRACE_SECONDS):
                self._stopping.add(name)
                nursery.start_soon(self._stop, name)
        try:
            await self._php.rest_idle(IDLE_SECONDS)
        except PhpError as error:
            log.warning("php.not_rested", reason=str(error))

    async def _start(self, pools: Mapping[ServiceName, Pool]) -> dict[int, str]:
        """Start pools; returns the problems, by the numbers of their sites."""
        problems: dict[int, str] = {}
        limit = trio.CapacityLimiter(_AT_ONCE)

        async def start(pool: Pool) -> None:
            async with limit:
                try:
                    async with self._changing[pool.service_name]:
                        await self._php.start(pool)
                except PhpError as error:
                    problems[pool.account.number] = str(error)

        async with trio.open_nursery() as nursery:
            for pool in pools.values():
                nursery.start_soon(start, pool)
        return problems

    async def _stop(self, name: ServiceName) -> None:
        number = number_of(name)
        try:
            async with self._changing[name]:
                # Read again: the program may be needed again by now, for example if its site was suspended only for a
                # moment.
                row = await self._database.fetchrow(f"SELECT {SITE_COLUMNS} FROM sites WHERE number = $1", number)
                sites = {} if row is None else {row["number"]: as_site(row)}
                wanted, unknown = _wanted(sites)
                if name in wanted or not _may_stop(name, sites, unknown):
                    return
                if row is None and number is not None:
                    # The site is gone. The program was started by a caller that had read the site's record before its
                    # removal, so the program's files were created again.
                    await self._php.remove(SiteAccount(number))
                else:
                    await self._php.stop(name)
        except PhpError as error:
            # The next round tries again.
            log.warning("php.not_stopped", service=name, reason=str(error))
        finally:
            self._stopping.discard(name)


def _wanted(sites: Mapping[int, SiteRow]) -> tuple[dict[ServiceName, Pool], dict[int, str]]:
    """The pools that should run, and, by site number, why this release cannot read a record."""
    wanted: dict[ServiceName, Pool] = {}
    unknown: dict[int, str] = {}
    for number, site in sites.items():
        if site.status is not SiteStatus.ACTIVE:
            continue
        try:
            pool = pool_of(site)
        except ValidationError as error:
            unknown[number] = f"its record cannot be read: {error.errors()[0]['msg']}"
        else:
            wanted[pool.service_name] = pool
    return wanted, unknown


def _owner(name: ServiceName, sites: Mapping[int, SiteRow]) -> SiteRow | None:
    """The site that owns the program, if visitors may still reach it."""
    site = sites.get(number_of(name) or 0)
    return site if site is not None and site.status in (SiteStatus.CREATING, SiteStatus.ACTIVE) else None


def _may_stop(name: ServiceName, sites: Mapping[int, SiteRow], unknown: Mapping[int, str]) -> bool:
    site = sites.get(number_of(name) or 0)
    if site is None:
        return True
    # The site's actor is about to have the site served.
    under_way = site.status is SiteStatus.CREATING or site.served < site.wanted
    return not under_way and site.number not in unknown


async def _write_alerts(tx: Transaction, problems: Mapping[int, str]) -> None:
    for number, words in problems.items():
        message = f"PHP of site {number} does not run: {words}"
        await raise_alert(tx, f"{_ALERTS}{number}", message, severity=Severity.CRITICAL)
    await close_alerts(tx, _ALERTS, keep=[f"{_ALERTS}{number}" for number in problems])
