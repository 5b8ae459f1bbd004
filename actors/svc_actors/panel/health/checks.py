"""The checks of health. Each measures and judges; none changes anything.

A value has a level for warnings, one for critical, and a margin: it has to fall below a level by the margin before the
status improves. So a value that moves up and down around a level is one incident.

Rejected: asking a time server over the network whether the clock is right. The kernel says whether a time service keeps
it, and the audit shows a clock that was set back, also without a network.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import trio

from svc_actors.mail.alert import SITE_MAIL
from svc_actors.panel.backups.schedules import DEFAULT_OF
from svc_actors.panel.health.busiest import TopConsumers
from svc_actors.panel.health.records import CheckName, Finding, HealthStatus
from svc_actors.store import Database
from svc_common.errors import ServiceError
from svc_webhost.databases import DatabaseError, DatabaseServer, DatabaseServers
from svc_webhost.knot import KnotError, NameServer
from svc_webhost.launcher import Launcher
from svc_webhost.site_runtime import is_of_a_site
from svc_webhost.vitals import Vitals

Check = Callable[[HealthStatus], Awaitable[Finding]]
"""A check gets the status that is in force, and returns what it has found."""


@dataclass(frozen=True)
class Levels:
    warning: float
    critical: float
    margin: float = 0.0

    def judged(self, value: float, before: HealthStatus) -> HealthStatus:
        for level, status in ((self.critical, HealthStatus.CRITICAL), (self.warning, HealthStatus.WARNING)):
            # The margin applies only on the way down: when the status in force is this level or a worse one.
            if value >= level - (self.margin if before.rank >= status.rank else 0):
                return status
        return HealthStatus.OK


# Percent of the disk that others than root may use: at 100 % the sites fail, while root can still repair.
FILLED: Final = Levels(85, 95, 2)
MEMORY: Final = Levels(90, 97, 2)
LOAD: Final = Levels(4, 10, 1)
"""The load average over five minutes, per processor."""
QUEUED_SECONDS: Final = Levels(3600, 6 * 3600)
ANSWER_SECONDS: Final = Levels(1, 5, 0.25)
CERTIFICATE_LEFT: Final = timedelta(days=7)
"""Certificates are renewed much earlier: if one has only this long left, its renewal has failed for a while."""
OVERDUE: Final = {
    "hourly": (timedelta(hours=6), timedelta(hours=24)),
    "daily": (timedelta(hours=50), timedelta(days=5)),
    "weekly": (timedelta(days=15), timedelta(days=30)),
}
"""The age of the newest backup from which it is a warning, and from which it is critical. One missed daily or weekly
backup causes no warning: 48 hours plus 2, and 14 days plus 1."""
REMOTE_FAILED: Final = timedelta(hours=24)
MAIL_WAITS: Final = timedelta(hours=1)
# How far the clock may be behind the last audited operation. Steps of a time service are much smaller.
CLOCK_BEHIND: Final = timedelta(minutes=2)
_NAMED: Final = 5


def _several(of: str, items: list[str]) -> str:
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    return f"{of}: {', '.join(items[:_NAMED])}{more}."


@dataclass
class Checks:
    """`data` is the folder of the sites and of the panel's database. `relay`: whether the service has one for mail."""

    database: Database
    launcher: Launcher
    name_server: NameServer
    vitals: Vitals
    databases: DatabaseServers
    data: Path
    busiest: TopConsumers
    relay: bool

    def all(self) -> Mapping[CheckName, Check]:
        return {
            CheckName.DISK: self.disk,
            CheckName.INODES: self.inodes,
            CheckName.MEMORY: self.memory,
            CheckName.LOAD: self.load,
            CheckName.SERVICES: self.services,
            CheckName.CERTIFICATES: self.certificates,
            CheckName.BACKUPS: self.backups,
            CheckName.REMOTES: self.remotes,
            CheckName.QUEUE: self.queue,
            CheckName.DATABASE: self.answering,
            CheckName.DNS: self.dns,
            CheckName.CLOCK: self.clock,
            CheckName.MAIL: self.mail,
        }

    async def disk(self, before: HealthStatus) -> Finding:
        value = (await trio.to_thread.run_sync(self.vitals.filled, self.data)).bytes
        busiest = await self.busiest.of_disk()
        message = f"The disk of {self.data} is {value:.0f} % full.{busiest}"
        return Finding(FILLED.judged(value, before), message, value)

    async def inodes(self, before: HealthStatus) -> Finding:
        value = (await trio.to_thread.run_sync(self.vitals.filled, self.data)).inodes
        if value is None:
            return Finding(HealthStatus.OK, f"The file system of {self.data} has no limit of inodes.")
        return Finding(FILLED.judged(value, before), f"{value:.0f} % of the inodes of {self.data} are used.", value)

    async def memory(self, before: HealthStatus) -> Finding:
        value = await trio.to_thread.run_sync(self.vitals.memory)
        busiest = await self.busiest.of_memory()
        return Finding(MEMORY.judged(value, before), f"{value:.0f} % of the memory is in use.{busiest}", value)

    async def load(self, before: HealthStatus) -> Finding:
        value = await trio.to_thread.run_sync(self.vitals.load)
        busiest = await self.busiest.of_processor()
        return Finding(LOAD.judged(value, before), f"The load is {value:.1f} of each processor.{busiest}", value)

    async def services(self, before: HealthStatus) -> Finding:
        """Services that all sites share. A database server that runs has to answer as well."""
        # The launcher restarts a process that has ended, but not one that hangs. Once, every site waited for a MariaDB
        # process that ran and did not answer, and no check reported it.
        names = sorted(name for name in await self.launcher.names() if not is_of_a_site(name))
        down = [name for name in names if not (await self.launcher.status(name)).running]
        if down:
            return Finding(HealthStatus.CRITICAL, _several("Services do not run", list(down)), len(down))
        if silent := await self._silent(names):
            return Finding(HealthStatus.CRITICAL, _several("Database servers do not answer", silent), len(silent))
        busiest = await self.busiest.of_connections()
        return Finding(HealthStatus.OK, f"{len(names)} services run.{busiest}", 0)

    async def _silent(self, started: Collection[str]) -> list[str]:
        found: list[str] = []

        async def ask(name: str, server: DatabaseServer) -> None:
            try:
                with trio.fail_after(ANSWER_SECONDS.critical):
                    await server.probe()
            except (DatabaseError, trio.TooSlowError):
                found.append(name)

        # Asked concurrently: two servers that hang would take 10 s of the 15 s that a check has if asked one after the
        # other.
        async with trio.open_nursery() as asking:
            for kind, server in self.databases.items():
                if kind.value in started:
                    asking.start_soon(ask, kind.value, server)
        return sorted(found)

    async def certificates(self, before: HealthStatus) -> Finding:
        rows = await self.database.fetch(
            """SELECT sites.domain, not_after < now() AS expired FROM site_certificates JOIN sites ON sites.id = site_id
               WHERE sites.status = 'active' AND not_after < now() + $1::interval ORDER BY not_after""",
            CERTIFICATE_LEFT,
        )
        if expired := [row["domain"] for row in rows if row["expired"]]:
            return Finding(HealthStatus.CRITICAL, _several("Certificates have expired", expired), len(rows))
        if rows:
            message = _several("Certificates expire within a week", [row["domain"] for row in rows])
            return Finding(HealthStatus.WARNING, message, len(rows))
        return Finding(HealthStatus.OK, "No site's certificate expires within a week.", 0)

    async def backups(self, before: HealthStatus) -> Finding:
        rows = await self.database.fetch(
            """SELECT sites.domain, frequency, now() - coalesce(max(completed_at), sites.created_at) AS age
               FROM backup_schedules JOIN sites ON sites.id = backup_schedules.site_id
               LEFT JOIN backup_repositories ON backup_repositories.site_id = sites.id
               LEFT JOIN site_backups ON repository_id = backup_repositories.id AND site_backups.status = 'completed'
               WHERE sites.status = 'active' GROUP BY sites.id, sites.domain, frequency ORDER BY age DESC"""
        )
        late = [row for row in rows if row["age"] > OVERDUE[row["frequency"]][0]]
        if not late:
            return await self._without_schedule()
        worst = any(row["age"] > OVERDUE[row["frequency"]][1] for row in late)
        message = _several("Backups are overdue", [row["domain"] for row in late])
        return Finding(HealthStatus.CRITICAL if worst else HealthStatus.WARNING, message, len(late))

    async def _without_schedule(self) -> Finding:
        """Name the sites that nobody backs up although the default for them is not off. This is no warning: their
        owners may have switched backups off, and a warning that stays would hide those to come."""
        rows = await self.database.fetch(
            f"""SELECT domain FROM sites
                WHERE status = 'active' AND staging_of IS NULL
                  AND NOT EXISTS (SELECT FROM backup_schedules WHERE backup_schedules.site_id = sites.id)
                  AND {DEFAULT_OF.format(owner="sites.owner_id")} <> 'off'
                ORDER BY domain"""
        )
        if rows:
            unscheduled = _several("Sites without a backup schedule", [row["domain"] for row in rows])
            return Finding(HealthStatus.OK, f"No backup is overdue. {unscheduled}", 0)
        return Finding(HealthStatus.OK, "No backup is overdue.", 0)

    async def remotes(self, before: HealthStatus) -> Finding:
        """Targets whose last copies failed."""
        rows = await self.database.fetch(
            """SELECT name, now() - min(failed.at) AS since FROM backup_targets
               JOIN backup_copies AS failed ON failed.target_id = backup_targets.id AND failed.error IS NOT NULL
               WHERE NOT EXISTS (SELECT FROM backup_copies AS good WHERE good.target_id = backup_targets.id
                                 AND good.error IS NULL AND good.at > failed.at)
               GROUP BY name ORDER BY since DESC"""
        )
        if not rows:
            return Finding(HealthStatus.OK, "Every backup is copied to its targets.", 0)
        status = HealthStatus.CRITICAL if rows[0]["since"] > REMOTE_FAILED else HealthStatus.WARNING
        return Finding(status, _several("Backups are not copied to", [row["name"] for row in rows]), len(rows))

    async def queue(self, before: HealthStatus) -> Finding:
        age = await self.database.fetchval("SELECT now() - min(created_at) FROM jobs WHERE status = 'queued'")
        value = 0.0 if age is None else age.total_seconds()
        busiest = await self.busiest.of_jobs()
        status = QUEUED_SECONDS.judged(value, before)
        if status is HealthStatus.OK:
            return Finding(status, f"No job has waited long.{busiest}", value)
        return Finding(status, f"A job has waited for {value / 3600:.1f} hours.{busiest}", value)

    async def answering(self, before: HealthStatus) -> Finding:
        """The panel's own database."""
        began = trio.current_time()
        try:
            with trio.fail_after(ANSWER_SECONDS.critical):
                await self.database.fetchval("SELECT 1")
        except (ServiceError, trio.TooSlowError):
            return Finding(HealthStatus.CRITICAL, "The panel's database does not answer.")
        value = trio.current_time() - began
        return Finding(ANSWER_SECONDS.judged(value, before), f"The panel's database answers in {value:.3f} s.", value)

    async def dns(self, before: HealthStatus) -> Finding:
        try:
            serials = await self.name_server.serials()
        except KnotError as error:
            return Finding(HealthStatus.CRITICAL, f"The name server does not answer: {error}")
        if empty := sorted(name for name, serial in serials.items() if serial is None):
            return Finding(HealthStatus.WARNING, _several("Zones are not served", empty), len(empty))
        return Finding(HealthStatus.OK, f"The name server answers, with {len(serials)} zones.", 0)

    async def clock(self, before: HealthStatus) -> Finding:
        # If the clock was set back, the newest audit row is later than now. A clock that was set forward cannot be
        # detected this way.
        behind = await self.database.fetchval("SELECT at - now() FROM audit ORDER BY id DESC LIMIT 1")
        if behind is not None and behind > CLOCK_BEHIND:
            seconds = behind.total_seconds()
            message = f"The clock is {seconds / 60:.0f} minutes behind the last recorded time."
            return Finding(HealthStatus.CRITICAL, message, seconds)
        if not await trio.to_thread.run_sync(self.vitals.synchronised):
            return Finding(HealthStatus.WARNING, "The clock is not synchronized: no time service runs.", 0)
        return Finding(HealthStatus.OK, "The clock is synchronized by a time service.", 0)

    async def mail(self, before: HealthStatus) -> Finding:
        """Mail of sites. The panel's own mail has a separate alert."""
        if not self.relay:
            message = "This server sends no mail of sites: set host and sender of [mail] (docs/mail.md)."
            return Finding(HealthStatus.WARNING, message)
        # The relay is judged, by the alert of the delivery and by mail whose turn does not come. What a recipient's
        # server defers waits for days, and is attempted meanwhile.
        row = await self.database.fetchone(
            """SELECT count(*) AS number, now() - min(attempt_at) AS overdue,
                      EXISTS (SELECT FROM site_mails WHERE state = 'sent' AND ended_at > now() - $1::interval) AS sent,
                      (SELECT message FROM alerts WHERE key = $2 AND closed_at IS NULL) AS alert
               FROM site_mails JOIN sites ON sites.id = site_id
               LEFT JOIN site_mail_settings AS own ON own.site_id = sites.id
               WHERE site_mails.state = 'queued' AND sites.status = 'active' AND enabled IS NOT FALSE""",
            MAIL_WAITS,
            SITE_MAIL,
        )
        if row["number"] and row["alert"]:
            return Finding(HealthStatus.WARNING, f"{row['alert']}. {row['number']} wait.", row["number"])
        if row["number"] and row["overdue"] > MAIL_WAITS and not row["sent"]:
            hours = row["overdue"].total_seconds() / 3600
            message = (
                f"No mail of sites was delivered in the last hour; {row['number']} wait, the first of them should have "
                f"been sent {hours:.1f} hours ago. `svc site mails SITE` lists them."
            )
            return Finding(HealthStatus.WARNING, message, row["number"])
        held = await self.database.fetch(
            """SELECT domain, held_reason FROM site_mail_settings JOIN sites ON sites.id = site_id
               WHERE held_at IS NOT NULL ORDER BY held_at DESC"""
        )
        if held:
            # Behind a semicolon are the programs that sent most.
            sites = [f"{each['domain']} ({each['held_reason'].partition(';')[0]})" for each in held]
            message = _several("The mail of sites is held", sites)
            return Finding(HealthStatus.WARNING, message, len(held))
        return Finding(HealthStatus.OK, f"Mails of sites that wait for delivery: {row['number']}.", row["number"])
