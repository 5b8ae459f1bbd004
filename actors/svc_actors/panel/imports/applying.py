"""The job that creates the sites of an import, and its steps.

Every step may be repeated: sites that an earlier attempt created are used again (`import_sites`), their files and
databases are replaced, and existing tasks and records stay. Files are written by the account of their site, and SQL
runs as the owner of its database, each in a confined process.

Visitors reach no file before the web server refuses what the .htaccess files deny: a site's files are unpacked aside
and judged there, their settings are served or the site is suspended, and then the files are moved into place. If the
job ends at any point before that, the site still has its old files.

A record, a certificate or a task that cannot be imported does not fail the job: the outcome names it. A site whose
.htaccess files contain something that nginx does not do is suspended until its owner has looked at it, unless the owner
has accepted these files beforehand.

Rejected:

- Refusing an import because of a line in an .htaccess file. Files, databases and all other sites of the account would
  wait for one line; while it is suspended, the site serves nothing that the old host denied.
- Comparing files and databases after a failure and adding what is missing. A database with half a dump looks like one
  with a complete dump that was changed since.
- Reading the archive once for all sites. Instead each site's files are unpacked by the site's own account, so that no
  process has the files of two sites.
- Closing each site until its files were judged in place. A site that is imported again would be down while its files
  are unpacked, and a site whose import was given up would stay closed.
- Creating sites of the type static. A site that seems to consist of files only may contain a script somewhere, whose
  source would be served.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import trio

from svc_actors.panel.databases.looking import check_dump as look_at_dump
from svc_actors.panel.files import site_folder
from svc_actors.panel.host_work import finished
from svc_actors.panel.htaccess import PasswordsAt, apply_wishes, blocking_lines, judged_files
from svc_actors.panel.imports.applied import (
    Applied,
    Parts,
    choices_of,
    imported_password_files,
    outside_password_files,
    site_password_files,
)
from svc_actors.panel.imports.contents import NOT_LOADED, Counted, TableFacts, imported_state, lost_rows
from svc_actors.panel.imports.extras import CALLER, ExtrasImporter
from svc_actors.panel.imports.plan import (
    Choices,
    ServerFacts,
    aliases_of,
    is_wordpress_database,
    labels_of,
    readers_of,
    site_php,
    uploads_of,
)
from svc_actors.panel.imports.records import (
    ImportRow,
    lock_import,
    read_import,
    sites_of,
    write_choices,
    write_move,
    write_site,
    write_tables,
)
from svc_actors.panel.imports.staged import STAGED, remove_staged, try_remove_all_staged
from svc_actors.panel.imports.states import ImportMove, ImportStatus
from svc_actors.panel.jobs import Job, JobClass, JobRun, JobStatus, NewJob, ProgramFailed, enqueue
from svc_actors.panel.sites.creation import NewSite, create_site
from svc_actors.panel.sites.names import site_name
from svc_actors.panel.sites.php import SitePhp
from svc_actors.panel.sites.records import SiteRow, read_site
from svc_actors.panel.sites.site import ChangedTo, Site
from svc_actors.panel.sites.states import SiteStatus, SiteType, SuspendedBy
from svc_actors.panel.webhooks import Subject, WebhookEvent, emit
from svc_actors.panel.wordpress.records import WordPressOrder, write_installed, write_order
from svc_actors.runtime import DeliveryError
from svc_actors.store import Transaction
from svc_actors.undelivered import why_undelivered
from svc_common.errors import ErrorCode, ServiceError, conflict, not_found, unavailable
from svc_webhost import confined
from svc_webhost.accepted import no_programs_in
from svc_webhost.archives.model import FoundDatabase, FoundSite, Kind
from svc_webhost.archives.placing import ASIDE, below, placed_at
from svc_webhost.confined.protocol import PlaceImported, RewriteConfiguration
from svc_webhost.database_clients import HOST
from svc_webhost.databases import DatabaseError, EngineKind, SiteFile, database_name
from svc_webhost.htaccess.verdicts import Denied
from svc_webhost.launcher import Limits
from svc_webhost.wordpress import SiteDatabase

KIND: Final = "import.apply"
STEPS: Final = ("make_sites", "place_files", "load_databases", "set_up", "tidy")
# For the whole job; the files of one site may take a third of it.
SECONDS: Final = 12 * 3600.0
_TAKE: Final = Path(confined.__file__).with_name("take.py")
_TAKE_SECONDS: Final = 4 * 3600.0
_TOOK: Final = "took "
_AGAIN: Final = "Apply the import again: it continues from there."
_FILES_SECONDS: Final = 600.0
# The time for all sites of a failed import together. It is short, because a stop of the core waits for this work.
# Helpers finish work that they have started.
_CLEAN_SECONDS: Final = 30.0
# The most lines of a site that the outcome names. The analysis of the site's .htaccess files lists the others.
_NAMED: Final = 20


async def start_apply(
    tx: Transaction, locked: ImportRow, owner_id: UUID, choices: Choices, *, accept_htaccess: bool
) -> Job:
    """Raises `conflict` if the import cannot be applied now."""
    chosen = {
        "domains": dict(choices.domains),
        "without": sorted(choices.without),
        "accept_htaccess": accept_htaccess,
    }
    await write_choices(tx, locked.id, owner_id, chosen)
    job = await enqueue(
        tx,
        NewJob(
            kind=KIND,
            title=f"Import {locked.name}"[:200],
            job_class=JobClass.MIGRATIONS,
            steps=STEPS,
            owner_id=owner_id,
            parameters={"import": str(locked.id)},
        ),
    )
    await write_move(tx, locked, ImportMove.APPLY, job_id=job.id)
    return job


class ImportApplication:
    """The work of the job."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rest = ExtrasImporter(parts)
        self._database = parts.database

    async def make_sites(self, run: JobRun) -> None:
        applied = await self._applied(run)
        made = await sites_of(self._database, applied.row.id)
        for number, found in enumerate(applied.sites):
            site = await self._make(applied, found, made.get(found.domain))
            try:
                await finished(self._parts.actors.ref(Site, str(site.id)).ask(Site.build))
            except DeliveryError as error:
                raise unavailable(why_undelivered(error), hint=_AGAIN) from error
            await run.log(f"The site {site.domain} is created.")
            await run.progress(100 * (number + 1) / len(applied.sites))

    async def place_files(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            for number, (found, site) in enumerate(await self._made(applied)):
                entries = await self._unpack(run, applied, found, site)
                closed = await self._judge(run, applied, found, site)
                await self._place(site, closed=closed)
                await run.log(f"{entries:,} entries were put into {site.domain}.")
                await run.progress(100 * (number + 1) / len(applied.sites))

    async def load_databases(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            labels = labels_of(applied.account)
            for found, site in await self._made(applied):
                for database in applied.databases(found):
                    login = await self._parts.wordpress.make(site, labels[database.name], CALLER)
                    await self._load(run, applied, site, database, labels[database.name])
                    if database.readers:
                        await self._add_reader(run, applied, site, database)
                    if is_wordpress_database(found, database):
                        await self._configure(run, applied, found, site, login)

    async def _add_reader(self, run: JobRun, applied: Applied, site: SiteRow, database: FoundDatabase) -> None:
        """Without this user the import is complete as well: nothing else here has its password."""
        label, reader = labels_of(applied.account)[database.name], readers_of(applied.account)[database.name]
        try:
            await self._parts.wordpress.make_reader(site, label, reader, CALLER)
        except ServiceError as error:
            await self._rest.note(run, applied, Kind.DATABASE_USER, reader, f"it was not created: {error.message}")

    async def set_up(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            made = await self._made(applied)
            for found, site in made:
                if applied.wordpress_database(found) is not None:
                    await run.transact(partial(_installed, site.id))
                await self._rest.add_tasks(run, applied, found, site)
                certificate = applied.certificate(found)
                if certificate is not None:
                    await self._rest.upload(run, applied, certificate, site)
            for zone in applied.account.zones:
                if applied.choices.wants(Kind.DNS, zone.name):
                    await self._rest.serve_zone(run, applied, zone.name, [site for _, site in made])

    async def tidy(self, run: JobRun) -> None:
        applied = await self._applied(run)
        for _, site in await self._made(applied):
            await remove_staged(self._parts.files, self._parts.folders, site)

    async def ended(self, tx: Transaction, job: Job) -> None:
        import_id = await tx.fetchval("SELECT id FROM imports WHERE id = $1", UUID(job.parameters["import"]))
        if import_id is None:
            return
        locked = await lock_import(tx, import_id)
        if locked.status is not ImportStatus.APPLYING:
            return
        if job.status is JobStatus.SUCCEEDED:
            made = await sites_of(tx, import_id)
            await write_move(tx, locked, ImportMove.DONE)
            data = {"sites": len(made), "format": locked.account.format.value}
            subject = Subject("import", str(import_id), locked.name)
            await emit(tx, WebhookEvent.MIGRATION_COMPLETED, subject=subject, data=data)
            return
        problem = job.error.message if job.error is not None else "It was cancelled."
        await write_move(tx, locked, ImportMove.BROKEN, problem=problem)

    async def _make(self, applied: Applied, found: FoundSite, made: UUID | None) -> SiteRow:
        """The record of the site. The owner's plan, and the names of other sites, count as they are now and not as they
        were when the import was planned."""
        # `there` is the site that an earlier attempt has created. If its creation failed, `create_site` below tries
        # again with the same number and row.
        there = None if made is None else await read_site(self._database, made)
        if there is not None and there.status is not SiteStatus.FAILED:
            return there
        version = site_php(found, applied.server)
        if version is None:
            raise unavailable("This server has no PHP.", hint="An administrator installs php-fpm.")
        wordpress = applied.wordpress_database(found) is not None
        new = NewSite(
            applied.row.owner_id,
            site_name(applied.choices.domain(found)),
            [site_name(name) for name in aliases_of(found, applied.choices)],
            SiteType.WORDPRESS if wordpress else SiteType.PHP,
            php=SitePhp(version=version),
            limits=Limits(),
        )

        async def write(tx: Transaction) -> SiteRow:
            site = await create_site(tx, CALLER, new)
            # Written in the transaction that creates the site: if the core is killed here, either both exist or
            # neither.
            if there is None:
                await write_site(tx, applied.row.id, found.domain, site.id)
            if wordpress:
                email = await tx.fetchval("SELECT email FROM users WHERE id = $1", site.owner_id)
                await write_order(tx, site.id, WordPressOrder(site.domain, "", email))
            return site

        return await self._database.transact(write)

    async def _unpack(self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow) -> int:
        """Unpacks the site's part of the archive where no visitor gets, and returns how many entries it had."""
        # First remove what an earlier attempt has left.
        await remove_staged(self._parts.files, self._parts.folders, site)
        # Dumps, keys and passwords go into a folder that no web server reads, until `tidy` removes it.
        aside = {database.dump: f"{ASIDE}/{label}.sql" for database, label in self._dumps(applied, found)}
        certificate = applied.certificate(found)
        if certificate is not None:
            aside |= {file: f"{ASIDE}/{number}.pem" for number, file in enumerate(certificate.files)}
        order = {
            "uid": site.account.uid,
            "gid": site.account.uid,
            "root": str(self._parts.folders.sites / site.account.name),
            "into": STAGED,
            "site": asdict(found),
            "files": outside_password_files(applied, found) | aside,
            "private": sorted(site_password_files(applied, found)),
        }
        took: dict[str, Any] = {}

        async def read(lines: list[str]) -> None:
            for line in lines:
                if line.startswith(_TOOK):
                    took.update(json.loads(line[len(_TOOK) :]))
                else:
                    await run.log(line)

        command = (sys.executable, "-I", "-S", "-X", "utf8", str(_TAKE), json.dumps(order))
        archive = applied.row.folder(self._parts.folders).path / "archive"
        try:
            await run.program(command, seconds=_TAKE_SECONDS, stdin=archive, read=read)
        except ProgramFailed as failed:
            raise unavailable(
                f"The files of {site.domain} were not placed: {failed.last or failed.message}",
                hint="The site has the files that it had. Fix the cause, then apply the import again.",
            ) from failed
        if took.get("links_left"):
            await self._rest.note(run, applied, Kind.FILES, site.domain, f"{took['links_left']} links were left out")
        return int(took.get("entries", 0))

    async def _place(self, site: SiteRow, *, closed: bool) -> None:
        """Replaces the site's files by the unpacked ones. `closed`: only while the site is suspended."""
        there = await read_site(self._database, site.id)
        # It is not enough that the denials are recorded: until the web server has taken them, it would serve the files
        # without them.
        if there is None or there.served < there.wanted:
            raise unavailable(
                f"The files of {site.domain} were not placed: the web server has not applied the site's settings.",
                hint="The site has the files that it had. Apply the import again once nginx runs: svc health says why.",
            )
        if closed:
            _require_closed(there)
        folder = site_folder(self._parts.folders, there)
        await self._parts.files.ask(folder, PlaceImported(STAGED), seconds=_FILES_SECONDS)
        # This also removes the previous document root, which is now there.
        await remove_staged(self._parts.files, self._parts.folders, there, STAGED)

    def _dumps(self, applied: Applied, found: FoundSite) -> list[tuple[FoundDatabase, str]]:
        labels = labels_of(applied.account)
        return [(database, labels[database.name]) for database in applied.databases(found)]

    async def _judge(self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow) -> bool:
        """Translates the site's .htaccess files into settings of the panel. If lines are left that block, and nobody
        has accepted them, the site is suspended; returns whether it must be."""
        # The files are judged twice, here and after the settings were changed: lines that were translated into settings
        # no longer block.
        passwords = imported_password_files(applied, found)
        site = await self._close_uploads(run, applied, found, site)
        site = await self._tell(run, applied, site, passwords)
        parts = self._parts
        blocking = await blocking_lines(parts.files, parts.folders, self._database, site, passwords, STAGED)
        if not blocking:
            return False
        for line in blocking[:_NAMED]:
            await self._rest.note(run, applied, Kind.CONFIGURATION, site.domain, line)
        if (applied.row.choices or {}).get("accept_htaccess"):
            return False
        # Read again: unpacking takes hours, and others may have suspended or opened the site meanwhile.
        there = await read_site(self._database, site.id)
        if there is None or there.status is SiteStatus.SUSPENDED:
            return True
        reason = (
            f"{len(blocking)} lines of its .htaccess files have no equivalent here: svc htaccess analyse lists them"
        )
        asking = self._parts.actors.ref(Site, str(site.id)).ask(Site.suspend, CALLER, SuspendedBy.OWNER, reason)
        await finished(asking)
        await self._rest.note(run, applied, Kind.SITE, site.domain, f"suspended: {reason}")
        return True

    async def _close_uploads(self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow) -> SiteRow:
        """Returns the site, in which no PHP is run in the folders where its product keeps uploads."""
        wishes = [Denied(no_programs_in(path)) for path in uploads_of(applied.account, found, applied.choices)]
        if not wishes:
            return site

        async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[list[str]]:
            lines = await apply_wishes(tx, locked, wishes)
            return ChangedTo(locked.target, {"uploads": lines}, result=lines)

        try:
            changed = await finished(self._parts.actors.ref(Site, str(site.id)).ask(Site.change, CALLER, change))
        except DeliveryError as error:
            raise unavailable(why_undelivered(error), hint=_AGAIN) from error
        for line in changed.result:
            await run.log(f"Where uploads of {site.domain} are kept, no PHP is run: {line}.")
        return await read_site(self._database, site.id) or site

    async def _tell(
        self, run: JobRun, applied: Applied, site: SiteRow, passwords: Mapping[str, PasswordsAt | str]
    ) -> SiteRow:
        """Returns the site with its new settings. If the panel refuses them, the lines still block."""
        parts = self._parts
        judged = await judged_files(parts.files, parts.folders, self._database, site, passwords, STAGED)
        wishes = [wish for _, line in judged.blocking for wish in line.wishes]

        async def change(tx: Transaction, locked: SiteRow) -> ChangedTo[list[str]]:
            lines = await apply_wishes(tx, locked, wishes)
            return ChangedTo(locked.target, {"htaccess": lines}, result=lines)

        if not wishes:
            return site
        # One change for all wishes: if the panel refuses one of them, none is applied.
        try:
            changed = await finished(self._parts.actors.ref(Site, str(site.id)).ask(Site.change, CALLER, change))
        except DeliveryError as error:
            raise unavailable(why_undelivered(error), hint=_AGAIN) from error
        except ServiceError as error:
            # With this code the settings are recorded but not served yet: the panel has not refused them.
            if error.code is ErrorCode.UNAVAILABLE:
                raise
            await run.log(f"The .htaccess files of {site.domain} were not translated: {error.message}")
        else:
            for line in changed.result[:_NAMED]:
                await self._rest.note(run, applied, Kind.CONFIGURATION, site.domain, f"from .htaccess: {line}"[:300])
        return await read_site(self._database, site.id) or site

    async def _load(self, run: JobRun, applied: Applied, site: SiteRow, database: FoundDatabase, label: str) -> None:
        name = database_name(site.number, label)
        database_id = await self._database.fetchval(
            "SELECT id FROM databases WHERE engine = 'mariadb' AND name = $1", name
        )
        source = SiteFile(self._parts.folders.sites / site.account.name, f"{ASIDE}/{label}.sql")
        server = self._parts.databases.server(EngineKind.MARIADB)
        try:
            await look_at_dump(run, server, source, site)
        except ServiceError as error:
            if error.code is not ErrorCode.INVALID:
                raise
            # A dump that the old host did not complete fails alone: if it were loaded up to the point where it breaks
            # off, it would look imported. Its database stays empty, which blocks the verification of the migration.
            await self._rest.note(run, applied, Kind.DATABASE, database.name, f"{NOT_LOADED}{error.message}")
            return
        # Emptied after the dump was checked and before it is loaded: a second attempt must not load into what the first
        # attempt has left.
        await self._parts.databases.empty(database_id)
        told = Counted(run)
        try:
            await server.load(name, source, site.account, told.program, rows=True)
        except ProgramFailed as failed:
            raise conflict(
                f"The dump of {database.name} was not loaded: {failed.last or failed.message}",
                hint="Leave the database out (without), or fix the dump, then apply the import again.",
            ) from failed
        except DatabaseError as error:
            raise unavailable(str(error)) from error
        await run.log(f"The database {database.name} is now {name}.")
        came = await imported_state(self._parts.tables, name, told.rows)
        await run.transact(partial(_came, site.id, database.name, came))
        for line in lost_rows(came):
            await self._rest.note(run, applied, Kind.DATABASE, database.name, line)

    async def _configure(
        self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow, login: SiteDatabase
    ) -> None:
        assert found.wordpress is not None
        # wp-config.php is the customer's text, so the site's confined helper rewrites it, not the core.
        path = placed_at(found, found.wordpress)
        assert path is not None
        folder = site_folder(self._parts.folders, site)
        values = {
            "DB_NAME": login.name,
            "DB_USER": login.user,
            "DB_PASSWORD": login.password,
            "DB_HOST": HOST,
        }
        rest = below(found.home_in_archive, found.root)
        # Paths in wp-config.php that lead into the old home, such as that of a cache, are changed to the folder on this
        # server.
        paths = {}
        if found.old_home is not None and rest is not None:
            paths[f"{found.old_home.rstrip('/')}/{rest}"] = str(folder.path / "public")
        order = json.dumps({"values": values, "paths": paths}).encode()
        answer = await self._parts.files.ask(folder, RewriteConfiguration(path), order, seconds=_FILES_SECONDS)
        problem = answer.result["problem"]
        if problem is not None:
            await self._rest.note(
                run, applied, Kind.CONFIGURATION, path, f"{problem}: write the new database into it yourself"
            )
            return
        if applied.choices.domain(found) != found.domain:
            reason = f"its URLs still name {found.domain}: change them in its settings"
            await self._rest.note(run, applied, Kind.CONFIGURATION, site.domain, reason)

    @asynccontextmanager
    async def _nothing_staged_on_failure(self, run: JobRun) -> AsyncIterator[None]:
        """Remove what was staged if the work fails: another attempt unpacks everything anew, and would not use it."""
        try:
            yield
        except BaseException:
            parts, import_id = self._parts, UUID(run.parameters["import"])
            with trio.CancelScope(shield=True, relative_deadline=_CLEAN_SECONDS):
                # Whatever cannot be removed now is removed when the import is applied again or deleted.
                await try_remove_all_staged(self._database, parts.files, parts.folders, import_id)
            raise

    async def _applied(self, run: JobRun) -> Applied:
        row = await read_import(self._database, UUID(run.parameters["import"]))
        server = ServerFacts(await self._parts.php_versions(), self._parts.addresses)
        return Applied(row, row.account, choices_of(row), server)

    async def _made(self, applied: Applied) -> list[tuple[FoundSite, SiteRow]]:
        """The sites of the import as they are now. Raises not_found if one was deleted meanwhile."""
        made = await sites_of(self._database, applied.row.id)
        found = []
        for each in applied.sites:
            site = await read_site(self._database, made[each.domain]) if each.domain in made else None
            if site is None:
                raise not_found(f"The site of {each.domain} was deleted meanwhile.", hint="Apply the import again.")
            found.append((each, site))
        return found


def _require_closed(site: SiteRow) -> None:
    """Raises `conflict` unless the site is suspended until its owner opens it. A site that an administrator has
    suspended, or that is suspended with its account, is opened by others, who do not look at its .htaccess files."""
    why = f"The files of {site.domain} were not placed: lines of its .htaccess files have no equivalent here"
    left = "The site has the files that it had."
    if site.status is not SiteStatus.SUSPENDED:
        raise conflict(
            f"{why}, and the site is no longer suspended.",
            hint=f"{left} Check these lines, then apply the import again with --accept-htaccess.",
        )
    if site.suspended_by is not SuspendedBy.OWNER:
        by = "with its account" if site.suspended_by is SuspendedBy.ACCOUNT else "by an administrator"
        raise conflict(
            f"{why}, and the site is suspended {by}.", hint=f"{left} Apply the import again after this suspension."
        )


async def _came(site_id: UUID, database: str, came: Mapping[str, TableFacts], tx: Transaction) -> None:
    await write_tables(tx, site_id, database, {table: astuple(facts) for table, facts in came.items()})


async def _installed(site_id: UUID, tx: Transaction) -> None:
    await write_installed(tx, site_id)
