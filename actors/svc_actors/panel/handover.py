"""The handover of a site to another person: what the one before may know of it opens nothing any more.

Recorded with the change of owner, in its transaction: access accounts are removed, and every user of the site's
databases has a password that nobody knows. A job has the servers follow; and it renews the site's own WordPress, whose
password for its database has to be written into wp-config.php, and whose administrators have passwords themselves.
Every step may be done again, and a job that a restart has interrupted goes on as a new one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.errors import conflict, unavailable
from svc_actors.host.databases import EngineKind, new_password, user_name
from svc_actors.host.wordpress import Handover, WordPressError, WordPressSites
from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.databases.records import write_user_wanted
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, NewJob, enqueue
from svc_actors.panel.sftp import records as access
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.wordpress.database import LABEL, WordPressDatabases
from svc_actors.panel.wordpress.records import read_wordpress, write_administrator
from svc_actors.store import Database, Transaction, service_itself

KIND: Final = "site.hand_over"
STEPS: Final = ("end_sessions", "replace_passwords", "renew_wordpress")
IRREVOCABLE: Final = "The site has its new owner already."
_CALLER: Final = service_itself("site.update")


@dataclass(frozen=True)
class Ended:
    """By their names. `job_id` is the job that makes it so on the server."""

    sftp_logins: list[str]
    database_users: list[str]
    job_id: int


async def end_credentials(tx: Transaction, site: SiteRow, owner_id: UUID, databases: SiteDatabases) -> Ended:
    """Of a site whose row is locked, and whose owner is this one from now on."""
    logins = await access.read_all(tx, site.id)
    for login in logins:
        await access.remove(tx, login)
    users = await tx.fetch(
        "SELECT id, engine, name FROM database_users WHERE site_id = $1 AND status = 'active' ORDER BY engine, name",
        site.id,
    )
    for user in users:
        if not await _is_wordpress(tx, site, user["engine"], user["name"]):
            await write_user_wanted(tx, user["id"], databases.server(user["engine"]).verifier(new_password()))
    job = await _enqueue(tx, site, owner_id)
    return Ended([login.login for login in logins], [user["name"] for user in users], job.id)


async def _is_wordpress(tx: Transaction, site: SiteRow, engine: str, name: str) -> bool:
    """The user of the site's own WordPress, which gets its password from the job: until then the site goes on."""
    of_wordpress = engine == EngineKind.MARIADB and name == user_name(site.number, LABEL)
    return of_wordpress and await read_wordpress(tx, site.id) is not None


async def _enqueue(tx: Transaction, site: SiteRow, owner_id: UUID | None) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"End what opened {site.domain} to its owner before",
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
    ) -> None:
        self._database = database
        self._wordpress = wordpress
        self._wordpress_databases = wordpress_databases
        self._databases = databases
        self._agree_access = agree_access

    async def end_sessions(self, run: JobRun) -> None:
        await self._agree_access()
        await run.log("Nobody is signed in to the site's files by an access account of before.")

    async def replace_passwords(self, run: JobRun) -> None:
        await self._databases.agree(run.site_id)
        await run.log("Users of its databases have passwords that nobody knows; set new ones where they are needed.")

    async def renew_wordpress(self, run: JobRun) -> None:
        site, installed = (
            await read_site(self._database, run.site_id),
            await read_wordpress(self._database, run.site_id),
        )
        if site is None:
            raise conflict("There is no such site any more.")
        if installed is None or installed.installed_at is None:
            return
        email = await self._database.fetchval("SELECT email FROM users WHERE id = $1", site.owner_id)
        database = await self._wordpress_databases.make(site, _CALLER)
        wanted = Handover(site.domain, installed.admin_login, email, database)
        try:
            administrators = await self._wordpress.hand_over(site.account, site.limits, wanted)
        except WordPressError as error:
            raise unavailable(
                f"WordPress: {error}. Its database has another password, which wp-config.php may not have.",
                hint="Mend its wp-config.php, and set the password of its database user anew.",
            ) from error
        await run.transact(lambda tx: write_administrator(tx, site.id, email))
        await run.log(f"wp-config.php has another password and other salts; so have {administrators} administrators.")

    async def ended(self, tx: Transaction, job: Job) -> None:
        """One that was interrupted goes on."""
        if job.error == INTERRUPTED and job.site_id is not None:
            site = await read_site(tx, job.site_id)
            if site is not None:
                await _enqueue(tx, site, site.owner_id)
