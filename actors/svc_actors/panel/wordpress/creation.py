"""The creation of a WordPress site. It is a job, since it takes seconds, and its result is a site that visitors can
open.

Every step may be repeated: a creation that a restart has interrupted continues as a new job, from the first step. The
next attempt removes what an earlier one has left in the site's database, until `installed_at` says that WordPress is
installed: from then on the database is untouched, unless a deletion removes a part of the WordPress.

The site is `creating` until the web server serves it, and `active` from then on. Its certificate is issued after that,
so a site that has no certificate yet is not a failure.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, TypeVar

import trio

from svc_actors.panel.accounts.allowances import lock_owner, require_database_room
from svc_actors.panel.certificates import SiteCertificates, read_site_certificate
from svc_actors.panel.host_work import finished
from svc_actors.panel.jobs import INTERRUPTED, Job, JobClass, JobRun, JobStatus, NewJob, enqueue
from svc_actors.panel.sites.records import SiteRow, change_record, lock_site, read_site, write_status
from svc_actors.panel.sites.site import Site
from svc_actors.panel.sites.states import SiteEnd, SiteStatus, move
from svc_actors.panel.wordpress.cron import schedule_cron
from svc_actors.panel.wordpress.records import (
    WordPressOrder,
    WordPressRow,
    read_wordpress,
    write_installed,
    write_order,
)
from svc_actors.runtime import ActorSystem, DeliveryError
from svc_actors.store import Database, Transaction
from svc_actors.undelivered import why_undelivered
from svc_common.errors import conflict, unavailable
from svc_webhost.accounts import AccountError, Accounts
from svc_webhost.wordpress import Installation, SiteDatabase, WordPressError, WordPressSites

T = TypeVar("T")

KIND: Final = "site.create"
STEPS: Final = ("make_account", "place_files", "make_database", "install", "serve", "get_certificate")
SECONDS: Final = 1800.0
CERTIFICATE_SECONDS: Final = 60.0
"""How long the job waits for the certificate. After that, the certificate is still issued, without the job."""
_LOOK: Final = 0.25
_AGAIN: Final = "Repeat the call to continue; deleting the site removes what was created."

MakeDatabase = Callable[[SiteRow], Awaitable[SiteDatabase]]
"""Creates the site's database if needed, and sets a new password for its user. Raises ServiceError."""


async def start_creation(tx: Transaction, site: SiteRow, order: WordPressOrder) -> Job:
    """Order the creation of a WordPress in a site that is being created. Raises `conflict` if the owner's plan allows
    no further database."""
    ordered = await read_wordpress(tx, site.id)
    if ordered is None:
        # Checked here, so that the caller gets the error; otherwise only the job would fail.
        await require_database_room(tx, await lock_owner(tx, site.owner_id))
    await write_order(tx, site.id, order)
    # WordPress has forms that take passwords. With HTTPS enforced, nobody sends them unencrypted once there is a
    # certificate.
    await change_record(tx, site, {"force_https": True})
    return await _enqueue(tx, site)


async def _enqueue(tx: Transaction, site: SiteRow) -> Job:
    return await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Create {site.domain} with WordPress",
            job_class=JobClass.SITES,
            site_id=site.id,
            owner_id=site.owner_id,
            steps=STEPS,
        ),
    )


class WordPressCreation:
    """The work of the jobs."""

    def __init__(
        self,
        database: Database,
        accounts: Accounts,
        wordpress: WordPressSites,
        make_database: MakeDatabase,
        actors: ActorSystem,
        certificates: SiteCertificates,
        clock: Callable[[], datetime],
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._wordpress = wordpress
        self._make_database = make_database
        self._actors = actors
        self._certificates = certificates
        self._clock = clock

    async def make_account(self, run: JobRun) -> None:
        site, _ = await self._site(run)
        try:
            await self._accounts.make(site.account, None)
        except AccountError as error:
            raise unavailable(str(error), hint=_AGAIN) from error

    async def place_files(self, run: JobRun) -> None:
        site, ordered = await self._site(run)
        if ordered.installed_at is not None:
            await run.log("WordPress is installed already; its files stay as they are.")
            return
        await _told(lambda: self._wordpress.place_files(site.account, ordered.locale))

    async def make_database(self, run: JobRun) -> None:
        """Comes before anything is written that needs the database, so this step reports a database server that is
        missing."""
        site, ordered = await self._site(run)
        if ordered.installed_at is None:
            await self._make_database(site)

    async def install(self, run: JobRun) -> None:
        site, ordered = await self._site(run)
        if ordered.installed_at is not None:
            return
        wanted = Installation(
            domain=site.domain,
            title=ordered.title,
            login=ordered.admin_login,
            email=ordered.admin_email,
            # Nobody ever gets this password: the owner signs in with a login link, and wordpress.reset_password sets
            # another one.
            password=secrets.token_urlsafe(24),
            locale=ordered.locale,
            database=await self._make_database(site),
        )
        version = await _told(lambda: self._wordpress.install(site.account, site.limits, wanted))

        async def installed(tx: Transaction) -> None:
            await write_installed(tx, site.id)
            await schedule_cron(tx, site, self._clock())

        await run.transact(installed)
        await run.log(f"WordPress {version} is installed; its administrator is {ordered.admin_login}.")

    async def serve(self, run: JobRun) -> None:
        site, _ = await self._site(run)
        try:
            await finished(self._actors.ref(Site, str(site.id)).ask(Site.build))
        except DeliveryError as error:
            raise unavailable(why_undelivered(error), hint=_AGAIN) from error
        await run.log(f"{site.domain} is served.")

    async def get_certificate(self, run: JobRun) -> None:
        if not self._certificates.by_acme:
            await run.log(
                "No certificate authority is configured: upload a certificate to have the site served by HTTPS."
            )
            return
        why = "the authority has not answered yet"
        with trio.move_on_after(CERTIFICATE_SECONDS):
            while True:
                found = await read_site_certificate(self._database, run.site_id)
                if found.served:
                    await run.log("The certificate is served.")
                    return
                why = found.last_error or why
                await trio.sleep(_LOOK)
        await run.log(f"There is no certificate yet; it is retried automatically: {why}")

    async def ended(self, tx: Transaction, job: Job) -> None:
        """An interrupted creation continues; a failed or cancelled one leaves the site as failed."""
        if job.status is JobStatus.SUCCEEDED or job.site_id is None:
            return
        site = await read_site(tx, job.site_id)
        if site is None or site.status is not SiteStatus.CREATING:
            return
        if job.error == INTERRUPTED:
            await _enqueue(tx, site)
            return
        site = await lock_site(tx, site.id)
        ordered = await read_wordpress(tx, site.id)
        if job.error is not None and ordered is not None and ordered.installed_at is not None:
            # WordPress is installed, but the web server was not reached: `resume_sites` retries every half minute.
            return
        why = job.error.message if job.error is not None else "the creation was cancelled"
        await write_status(tx, site, move(site.status, SiteEnd.BROKEN), why)

    async def _site(self, run: JobRun) -> tuple[SiteRow, WordPressRow]:
        site = await read_site(self._database, run.site_id)
        ordered = await read_wordpress(self._database, run.site_id)
        if site is None or ordered is None or site.status is not SiteStatus.CREATING:
            raise conflict("The site is no longer being created.")
        return site, ordered


async def _told(work: Callable[[], Awaitable[T]]) -> T:
    try:
        return await work()
    except WordPressError as error:
        raise unavailable(f"WordPress: {error}", hint=_AGAIN) from error
