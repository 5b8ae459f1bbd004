"""The handover of a site to another person: afterwards nothing that the previous owner knows gives access to it.

Recorded in the transaction that changes the owner: access accounts are removed, and every user of the site's databases
gets a password that nobody knows. A job makes the servers follow. It also renews the site's own WordPress:
wp-config.php needs the new database password, and WordPress administrators have passwords of their own.

Invariants:
- a handover is pending in `site_handovers`, from the transaction that changes the owner until a job of it has
  succeeded;
- each part is tried, even if another part has failed, and may be repeated; a WordPress that was renewed is left alone
  when another part is retried, since its new owner may have set passwords by then;
- the database user of a WordPress gets one new password per handover, however often it is tried: a password that its
  new owner has set meanwhile stays, and so do their changes to wp-config.php;
- after a failed job another one follows, after a longer pause each time, and an alert stays open meanwhile; after a job
  that a restart has interrupted, the next follows at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, close_alerts, raise_alert
from svc_actors.panel import sftp
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.databases.records import write_user_wanted
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, JobStatus, NewJob, enqueue, hand_over_jobs
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.states import SiteStatus
from svc_actors.panel.wordpress.database import LABEL, WordPressDatabases
from svc_actors.panel.wordpress.records import read_wordpress, wordpress_site, write_administrator
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Transaction, service_itself
from svc_common.errors import ServiceError, unavailable
from svc_webhost.databases import EngineKind, new_password, user_name
from svc_webhost.wordpress import Handover, WordPressError, WordPressSites

KIND: Final = "site.hand_over"
STEPS: Final = ("end_access",)
ROUND_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 30
_MOST_DOUBLINGS: Final = 7
"""How often the pause between attempts doubles; the longest pause is about an hour."""
_ALERTS: Final = "site-handover:"
_SEALED_FOR: Final = "site_handovers.wordpress_password"
IRREVOCABLE: Final = "The change of owner is complete; it cannot be cancelled."
_CALLER: Final = service_itself("site.update")


@dataclass(frozen=True)
class RevokedAccess:
    """The names of the accounts and users whose access was ended. `job_id` is the job that ends it on the server."""

    sftp_logins: list[str]
    database_users: list[str]
    job_id: int


async def end_credentials(tx: Transaction, site: SiteRow, owner_id: UUID, databases: SiteDatabases) -> RevokedAccess:
    """End the credentials of the previous owner of `site`, which now belongs to `owner_id`. The caller has locked its
    row."""
    logins = await sftp.read_all(tx, site.id)
    for login in logins:
        await sftp.remove(tx, login)
    await hand_over_jobs(tx, site.id, owner_id)
    users = await tx.fetch(
        "SELECT id, engine, name FROM database_users WHERE site_id = $1 AND status = 'active' ORDER BY engine, name",
        site.id,
    )
    renewed: list[str] = []
    for user in users:
        if not await _is_wordpress(tx, site, user["engine"], user["name"]):
            await write_user_wanted(tx, user["id"], databases.server(user["engine"]).verifier(new_password()))
            renewed.append(user["name"])
    # If an earlier handover is still pending, the new one replaces it: everything must be done again, for this owner.
    await tx.execute(
        """INSERT INTO site_handovers (site_id) VALUES ($1)
           ON CONFLICT (site_id) DO UPDATE
           SET generation = site_handovers.generation + 1, wordpress_renewed = false,
               sealed_wordpress_password = NULL, failures = 0, next_attempt_at = now()""",
        site.id,
    )
    job = await _enqueue(tx, site, owner_id)
    return RevokedAccess([login.login for login in logins], renewed, job.id)


async def _is_wordpress(tx: Transaction, site: SiteRow, engine: str, name: str) -> bool:
    """Whether this is the user of the site's own WordPress. The job sets its password: until then the site keeps
    working."""
    of_wordpress = engine == EngineKind.MARIADB and name == user_name(site.number, LABEL)
    return of_wordpress and await read_wordpress(tx, site.id) is not None


async def _enqueue(tx: Transaction, site: SiteRow, owner_id: UUID | None) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Revoke the previous owner's access to {site.domain}",
            job_class=JobClass.SITES,
            site_id=site.id,
            owner_id=owner_id,
            steps=STEPS,
        ),
    )


class SiteHandover:
    """The work of the jobs."""

    def __init__(
        self,
        database: Database,
        wordpress: WordPressSites,
        wordpress_databases: WordPressDatabases,
        databases: SiteDatabases,
        agree_access: Callable[[], Awaitable[None]],
        sealer: Sealer,
    ) -> None:
        self._database = database
        self._wordpress = wordpress
        self._wordpress_databases = wordpress_databases
        self._databases = databases
        self._agree_access = agree_access
        self._sealer = sealer

    async def end_access(self, run: JobRun) -> None:
        """Tries all parts, then raises the first failure."""
        failed: list[ServiceError] = []
        for part in (self._end_sessions, self._replace_passwords, self._renew_wordpress):
            try:
                await part(run)
            except ServiceError as error:
                failed.append(error)
                await run.log(f"Failed: {error.message}")
        if failed:
            raise failed[0]

    async def _end_sessions(self, run: JobRun) -> None:
        await self._agree_access()
        await run.log("The access accounts of the previous owner are deleted, and their sessions have ended.")

    async def _replace_passwords(self, run: JobRun) -> None:
        await self._databases.agree(run.site_id)
        await run.log(
            "Each database user but WordPress's own has a new, random password. "
            "Reset the password of those that a program needs."
        )

    async def _renew_wordpress(self, run: JobRun) -> None:
        site, installed = (
            await read_site(self._database, run.site_id),
            await read_wordpress(self._database, run.site_id),
        )
        if site is None or installed is None or installed.installed_at is None:
            return
        pending = await self._database.fetchrow(
            "SELECT generation, wordpress_renewed FROM site_handovers WHERE site_id = $1", site.id
        )
        if pending is not None and pending["wordpress_renewed"]:
            return
        email = await self._database.fetchval("SELECT email FROM users WHERE id = $1", site.owner_id)
        generation = None if pending is None else pending["generation"]
        password = await self._database.transact(partial(self._database_password, site=site, generation=generation))
        await self._databases.agree(site.id)
        wanted = Handover(installed.admin_login, email, password)
        try:
            administrators = await self._wordpress.hand_over(wordpress_site(site), wanted)
        except WordPressError as error:
            left = "Its database has a new password; wp-config.php may still have the old one."
            raise unavailable(
                f"WordPress: {error}. {left if password else 'The password of its database was left as it is.'}",
                hint="It is tried again automatically. Repair wp-config.php, or reset the password of its database "
                "user and write that there yourself: both are left alone then.",
            ) from error

        async def renewed(tx: Transaction) -> None:
            await write_administrator(tx, site.id, email)
            # Recorded only if no newer handover was ordered since: a newer one is for another owner, and its work is
            # not done yet.
            await tx.execute(
                "UPDATE site_handovers SET wordpress_renewed = true WHERE site_id = $1 AND generation = $2",
                site.id,
                generation,
            )

        await run.transact(renewed)
        await run.log(
            f"WordPress: replaced {'the database password and ' if password else ''}the salts in wp-config.php, and "
            f"the passwords of {administrators} administrators."
        )

    async def _database_password(self, tx: Transaction, site: SiteRow, generation: int | None) -> str | None:
        """The new password for WordPress's database user. At a later attempt, None if the user has got another password
        since."""
        sealed = await tx.fetchval(
            "SELECT sealed_wordpress_password FROM site_handovers WHERE site_id = $1 AND generation = $2 FOR UPDATE",
            site.id,
            generation,
        )
        if sealed is not None:
            password = self._sealer.unseal(sealed, _SEALED_FOR).decode()
            return password if await self._wordpress_databases.has_password(tx, site, password) else None
        password = new_password()
        await self._wordpress_databases.record(tx, site, password, _CALLER)
        # Written only if no newer handover was ordered since: a newer one must get its own password, because the owner
        # of this handover can read this password in wp-config.php.
        await tx.execute(
            "UPDATE site_handovers SET sealed_wordpress_password = $3 WHERE site_id = $1 AND generation = $2",
            site.id,
            generation,
            self._sealer.seal(password.encode(), _SEALED_FOR),
        )
        return password

    async def ended(self, tx: Transaction, job: Job) -> None:
        """Record the end of the job: either the handover is complete, or it is retried."""
        if job.site_id is None:
            return
        site = await read_site(tx, job.site_id)
        if site is None or site.status is SiteStatus.DELETING or job.status is JobStatus.SUCCEEDED:
            await tx.execute("DELETE FROM site_handovers WHERE site_id = $1", job.site_id)
            await close_alert(tx, f"{_ALERTS}{job.site_id}")
            return
        if job.error == INTERRUPTED:
            await _enqueue(tx, site, site.owner_id)
            return
        await tx.execute(
            """INSERT INTO site_handovers (site_id, failures, next_attempt_at)
               VALUES ($1, 1, now() + make_interval(secs => $2))
               ON CONFLICT (site_id) DO UPDATE
               SET failures = site_handovers.failures + 1,
                   next_attempt_at = now() + make_interval(secs => $2 * 2 ^ least(site_handovers.failures, $3))""",
            site.id,
            _FIRST_PAUSE_SECONDS,
            _MOST_DOUBLINGS,
        )
        why = job.error.message if job.error is not None else "it was stopped"
        await raise_alert(
            tx,
            f"{_ALERTS}{site.id}",
            f"The previous owner of {site.domain} may still have access; revoking it is tried again automatically. "
            f"The last attempt failed: {why}",
            resource_kind="site",
            resource_id=site.id,
        )


async def retry_handovers(database: Database) -> None:
    """One round: queue a job for each pending handover that is due and has no job, because its last one failed or the
    core ended."""

    async def work(tx: Transaction) -> None:
        # If a handover's row is locked, it is being written right now and has its own job, so it is left to the next
        # round.
        rows = await tx.fetch(
            """SELECT site_id FROM site_handovers JOIN sites ON sites.id = site_handovers.site_id
               WHERE next_attempt_at <= now() AND sites.status <> 'deleting' AND NOT EXISTS (
                   SELECT FROM jobs
                   WHERE jobs.site_id = site_handovers.site_id AND kind = $1 AND jobs.status IN ('queued', 'running'))
               ORDER BY next_attempt_at FOR UPDATE OF site_handovers SKIP LOCKED""",
            KIND,
        )
        for row in rows:
            site = await read_site(tx, row["site_id"])
            if site is not None:
                await _enqueue(tx, site, site.owner_id)
        # Also closes the alerts of deleted sites.
        pending = await tx.fetch("SELECT site_id FROM site_handovers")
        await close_alerts(tx, _ALERTS, keep=[f"{_ALERTS}{row['site_id']}" for row in pending])

    await database.transact(work)
