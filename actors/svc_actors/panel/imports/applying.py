"""The job that creates the sites of an import, and its steps.

Every step may be repeated: sites that an earlier attempt created are used again (`import_sites`). What was imported
completely is recorded (`parts`: files of a site, one database, its tasks and certificate) and not imported again, since
the site may have changed since; the other parts are replaced. Files are written by the account of their site, and SQL
runs as the owner of its database, each in a confined process.

A site whose files cannot be placed, and a database that cannot be loaded, fail alone: the job goes on with the others,
and fails at its end with the names of these.

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
- Importing everything again after a failure. Of thirty sites, twenty-nine may be in use by then.
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
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, astuple, replace
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
from svc_actors.panel.imports.extras import CALLER, ExtrasImporter, Note
from svc_actors.panel.imports.plan import (
    Choices,
    ServerFacts,
    aliases_of,
    from_rules,
    is_configured,
    labels_of,
    readers_of,
    rules_of,
    site_php,
    uploads_of,
)
from svc_actors.panel.imports.records import (
    FILES,
    SETTINGS,
    ImportRow,
    lock_import,
    part_of,
    parts_of,
    read_import,
    sites_of,
    write_choices,
    write_move,
    write_part,
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
from svc_webhost.archives.htaccess import MOST_NAMED
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
_NAMED: Final = 10


async def start_apply(
    tx: Transaction, locked: ImportRow, owner_id: UUID, choices: Choices, *, accept_htaccess: bool
) -> Job:
    """Raises `conflict` if the import cannot be applied now."""
    chosen = {
        "domains": dict(choices.domains),
        "without": sorted(choices.without),
        "accept_htaccess": accept_htaccess,
    }
    done = await parts_of(tx, locked.id)
    # What was said about a part that is imported stays true.
    said = [note for note in locked.outcome or () if note.get("part") in done.get(note.get("site") or "", ())]
    await write_choices(tx, locked.id, owner_id, chosen, said)
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
        for number, (found, site) in enumerate(await self._make(applied)):
            about = Note(Kind.SITE, site.domain, found.domain, FILES)
            async with self._alone(run, applied, about, "it was not created"):
                try:
                    await finished(self._parts.actors.ref(Site, str(site.id)).ask(Site.build))
                except DeliveryError as error:
                    raise unavailable(why_undelivered(error), hint=_AGAIN) from error
                await run.log(f"The site {site.domain} is created.")
            await run.progress(100 * (number + 1) / len(applied.sites))

    async def place_files(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            done = await parts_of(self._database, applied.row.id)
            for number, (found, site) in enumerate(await self._made(applied)):
                if site.status is SiteStatus.FAILED:
                    continue
                about = Note(Kind.FILES, site.domain, found.domain, FILES)
                async with self._alone(run, applied, about, "its files were not placed"):
                    if FILES in done[found.domain]:
                        await self._unpack_rest(run, applied, found, site, done[found.domain])
                    else:
                        await self._place_site(run, applied, found, site)
                await run.progress(100 * (number + 1) / len(applied.sites))

    async def load_databases(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            labels = labels_of(applied.account)
            done = await parts_of(self._database, applied.row.id)
            for found, site in await self._made(applied):
                # The dumps come with the files, so that without these there is nothing to load.
                for database in applied.databases(found) if FILES in done[found.domain] else ():
                    if part_of(database.name) in done[found.domain]:
                        continue
                    about = Note(Kind.DATABASE, database.name, found.domain, part_of(database.name))
                    async with self._alone(run, applied, about, NOT_LOADED.removesuffix(": ")):
                        login = await self._parts.wordpress.make(site, labels[database.name], CALLER)
                        loaded = await self._load(run, applied, about, site, database, labels[database.name])
                        if database.readers:
                            await self._add_reader(run, applied, about, site, database)
                        # Also if the dump was not loaded: another dump may be imported into the database.
                        if is_configured(found, database):
                            await self._configure(run, applied, found, site, login)
                        if loaded:
                            await run.transact(partial(write_part, applied.row.id, site.id, part_of(database.name)))

    async def _add_reader(
        self, run: JobRun, applied: Applied, about: Note, site: SiteRow, database: FoundDatabase
    ) -> None:
        """Without this user the import is complete as well: nothing else here has its password."""
        label, reader = labels_of(applied.account)[database.name], readers_of(applied.account)[database.name]
        try:
            await self._parts.wordpress.make_reader(site, label, reader, CALLER)
        except ServiceError as error:
            about = replace(about, kind=Kind.DATABASE_USER, name=reader)
            await self._rest.note(run, applied, about, f"it was not created: {error.message}")

    async def set_up(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            done = await parts_of(self._database, applied.row.id)
            for found, site in await self._made(applied):
                if FILES not in done[found.domain] or SETTINGS in done[found.domain]:
                    continue
                if applied.wordpress_database(found) is not None:
                    await run.transact(partial(_installed, site.id))
                await self._rest.add_tasks(run, applied, found, site)
                certificate = applied.certificate(found)
                if certificate is not None:
                    await self._rest.upload(run, applied, certificate, site)
                await run.transact(partial(write_part, applied.row.id, site.id, SETTINGS))
            for zone in applied.account.zones:
                if applied.choices.wants(Kind.DNS, zone.name):
                    await self._rest.serve_zone(run, applied, zone.name)

    async def tidy(self, run: JobRun) -> None:
        async with self._nothing_staged_on_failure(run):
            applied = await self._applied(run)
            done = await parts_of(self._database, applied.row.id)
            made = await self._made(applied)
            left = _left(applied, made, done)
            if left:
                more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
                raise conflict(
                    f"Not imported: {'; '.join(left[:_NAMED])}{more}. Everything else was.",
                    hint="Apply the import again: it imports these alone. Or leave them out (--without).",
                )
        for _, site in made:
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

    async def _make(self, applied: Applied) -> list[tuple[FoundSite, SiteRow]]:
        """The records of all sites. The owner's plan, and the names of other sites, count as they are now and not as
        they were when the import was planned: if they do not allow one of the sites, none is created."""

        async def write(tx: Transaction) -> list[tuple[FoundSite, SiteRow]]:
            made = await sites_of(tx, applied.row.id)
            return [
                (found, await self._make_site(tx, applied, found, made.get(found.domain))) for found in applied.sites
            ]

        return await self._database.transact(write)

    async def _make_site(self, tx: Transaction, applied: Applied, found: FoundSite, made: UUID | None) -> SiteRow:
        # `there` is the site that an earlier attempt has created. If its creation failed, `create_site` below tries
        # again with the same number and row.
        there = None if made is None else await read_site(tx, made)
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
        site = await create_site(tx, CALLER, new)
        # Written in the transaction that creates the site: if the core is killed here, either both exist or neither.
        if there is None:
            await write_site(tx, applied.row.id, found.domain, site.id)
        if wordpress:
            email = await tx.fetchval("SELECT email FROM users WHERE id = $1", site.owner_id)
            await write_order(tx, site.id, WordPressOrder(site.domain, "", email))
        return site

    @asynccontextmanager
    async def _alone(self, run: JobRun, applied: Applied, about: Note, what: str) -> AsyncIterator[None]:
        """If the work in it fails, the outcome says why, and the job goes on. `tidy` finds that the part is missing."""
        try:
            yield
        except ServiceError as error:
            await self._rest.note(run, applied, about, f"{what}: {error.message}")

    async def _place_site(self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow) -> None:
        entries = await self._unpack(run, applied, found, site)
        closed = await self._judge(run, applied, found, site)
        await self._place(site, closed=closed)
        await run.transact(partial(write_part, applied.row.id, site.id, FILES))
        await run.log(f"{entries:,} entries were put into {site.domain}.")

    async def _unpack(self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow) -> int:
        """Unpacks the site's part of the archive where no visitor gets, and returns how many entries it had."""
        # Dumps, keys and passwords go into a folder that no web server reads, until `tidy` removes it.
        aside = {file: f"{ASIDE}/{name}" for file, name in self._aside(applied, found, frozenset()).items()}
        took = await self._take(
            run,
            applied,
            site,
            into=STAGED,
            site_found=asdict(found),
            files=outside_password_files(applied, found) | aside,
            private=sorted(site_password_files(applied, found)),
        )
        if took.get("links_left"):
            about = Note(Kind.FILES, site.domain, found.domain, FILES)
            named = any(each.kind is Kind.FILES and placed_at(found, each.name) for each in applied.account.left)
            await self._rest.say(run, applied, about, f"{took['links_left']} links were left out", planned=named)
        return int(took.get("entries", 0))

    async def _unpack_rest(
        self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow, done: Collection[str]
    ) -> None:
        """Unpacks what the other parts of a site need whose files an earlier attempt has placed."""
        files = self._aside(applied, found, done)
        if files:
            await self._take(run, applied, site, into=ASIDE, site_found=None, files=files, private=[])

    def _aside(self, applied: Applied, found: FoundSite, done: Collection[str]) -> dict[str, str]:
        """Dumps and certificate files of the parts that are not imported yet, with their names in `ASIDE`."""
        labels = labels_of(applied.account)
        dumps = [each for each in applied.databases(found) if part_of(each.name) not in done]
        aside = {each.dump: f"{labels[each.name]}.sql" for each in dumps}
        certificate = applied.certificate(found)
        if certificate is not None and SETTINGS not in done:
            aside |= {file: f"{number}.pem" for number, file in enumerate(certificate.files)}
        return aside

    async def _take(
        self,
        run: JobRun,
        applied: Applied,
        site: SiteRow,
        *,
        into: str,
        site_found: Mapping[str, Any] | None,
        files: Mapping[str, str],
        private: Sequence[str],
    ) -> dict[str, Any]:
        """Runs `svc_webhost.confined.take` for the site, and returns what it answers."""
        # First remove what an earlier attempt has left.
        await remove_staged(self._parts.files, self._parts.folders, site)
        order = {
            "uid": site.account.uid,
            "gid": site.account.uid,
            "root": str(self._parts.folders.sites / site.account.name),
            "into": into,
            "site": site_found,
            "files": files,
            "private": private,
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
        return took

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

    async def _judge(self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow) -> bool:
        """Translates the site's .htaccess files into settings of the panel. If lines are left that block, and nobody
        has accepted them, the site is suspended; returns whether it must be."""
        # The files are judged twice, here and after the settings were changed: lines that were translated into settings
        # no longer block.
        passwords = imported_password_files(applied, found)
        site = await self._close_uploads(run, applied, found, site)
        site = await self._tell(run, applied, found, site, passwords)
        parts = self._parts
        blocking = await blocking_lines(parts.files, parts.folders, self._database, site, passwords, STAGED)
        if not blocking:
            return False
        about = Note(Kind.CONFIGURATION, site.domain, found.domain, FILES)
        planned = rules_of(applied.account, found)
        for line in blocking[:MOST_NAMED]:
            await self._rest.say(run, applied, about, line, planned=line in planned.blocking)
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
        about = replace(about, kind=Kind.SITE)
        await self._rest.say(run, applied, about, f"suspended: {reason}", planned=planned.blocks > 0)
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
        self,
        run: JobRun,
        applied: Applied,
        found: FoundSite,
        site: SiteRow,
        passwords: Mapping[str, PasswordsAt | str],
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
            about = Note(Kind.CONFIGURATION, site.domain, found.domain, FILES)
            planned = rules_of(applied.account, found).settings
            for line in changed.result[:MOST_NAMED]:
                await self._rest.say(run, applied, about, from_rules(line), planned=line in planned)
        return await read_site(self._database, site.id) or site

    async def _load(
        self, run: JobRun, applied: Applied, about: Note, site: SiteRow, database: FoundDatabase, label: str
    ) -> bool:
        """Returns whether there is nothing to repeat. A database whose dump was not loaded is empty: if it had the
        dump up to the point where it breaks off, it would look imported. This blocks the verification of the
        migration."""
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
            # The old host did not complete it, so that another attempt would find the same.
            await self._rest.note(run, applied, about, f"{NOT_LOADED}{error.message}")
            return True
        # Emptied after the dump was checked and before it is loaded: a second attempt must not load into what the first
        # attempt has left.
        await self._parts.databases.empty(database_id)
        told = Counted(run)
        try:
            await server.load(name, source, site.account, told.program, rows=True)
        except (ProgramFailed, DatabaseError) as error:
            why = (error.last or error.message) if isinstance(error, ProgramFailed) else str(error)
            await self._rest.note(run, applied, about, f"{NOT_LOADED}{why}")
            await self._parts.databases.empty(database_id)
            return False
        await run.log(f"The database {database.name} is now {name}.")
        came = await imported_state(self._parts.tables, name, told.rows)
        await run.transact(partial(_came, site.id, database.name, came))
        for line in lost_rows(came):
            await self._rest.note(run, applied, about, line)
        return True

    async def _configure(
        self, run: JobRun, applied: Applied, found: FoundSite, site: SiteRow, login: SiteDatabase
    ) -> None:
        configuration = found.wordpress or found.configuration
        assert configuration is not None
        # It is the customer's text, so the site's confined helper rewrites it, not the core.
        path = placed_at(found, configuration)
        assert path is not None
        folder = site_folder(self._parts.folders, site)
        values = {
            "DB_NAME": login.name,
            "DB_USER": login.user,
            "DB_PASSWORD": login.password,
            "DB_HOST": HOST,
        }
        # Paths in it that lead into the old home, such as that of a cache, are changed to the folder on this server.
        paths = {}
        for old, new in ((found.root, folder.path / "public"), (found.application, folder.path)):
            rest = None if old is None else below(found.home_in_archive, old)
            if found.old_home is not None and rest is not None:
                paths[f"{found.old_home.rstrip('/')}/{rest}"] = str(new)
        order = json.dumps({"values": values, "paths": paths}).encode()
        answer = await self._parts.files.ask(folder, RewriteConfiguration(path), order, seconds=_FILES_SECONDS)
        problem = answer.result["problem"]
        assert found.database is not None
        about = Note(Kind.CONFIGURATION, path, found.domain, part_of(found.database))
        if problem is not None:
            await self._rest.note(run, applied, about, f"{problem}: write the new database into it yourself")
            return
        if applied.choices.domain(found) != found.domain:
            reason = f"its URLs still name {found.domain}: change them in its settings"
            await self._rest.note(run, applied, replace(about, name=site.domain), reason)

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


def _left(
    applied: Applied, made: Sequence[tuple[FoundSite, SiteRow]], done: Mapping[str, Collection[str]]
) -> list[str]:
    """What is not imported, each with the reason that the outcome has."""
    why = {(note.get("site"), note.get("part")): f" ({note['reason']})" for note in applied.row.outcome or ()}
    left = []
    for found, site in made:
        if FILES not in done[found.domain]:
            left.append(f"the site {site.domain}{why.get((found.domain, FILES), '')}")
            continue
        for database in applied.databases(found):
            part = part_of(database.name)
            if part not in done[found.domain]:
                left.append(f"the database {database.name} of {site.domain}{why.get((found.domain, part), '')}")
    return left


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
