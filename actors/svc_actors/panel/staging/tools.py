"""Functions shared by all work on staging copies: both sites, their files and tables as they are now, and room on the
disk.

Files are copied and dumps are rewritten by programs (`svc_webhost.staging`), and tables are read as the owner of their
database: both belong to the customer, who can change them meanwhile.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from svc_actors.panel.databases import SiteDatabases
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow
from svc_actors.panel.staging.selection import OPTIONS, POSTS, VISITORS_POSTS, VOLATILE, SiteContents, is_copied
from svc_actors.runtime import ActorSystem
from svc_actors.store import Database
from svc_common.errors import capacity, conflict, unavailable
from svc_webhost.databases import DatabaseError, DatabaseName, DatabaseServer, EngineKind
from svc_webhost.folders import HostFolders
from svc_webhost.mariadb.tables import StagedTables
from svc_webhost.staging import rewrite, trees
from svc_webhost.tree_removal import remove_tree
from svc_webhost.wordpress import ConfiguredDatabase, WordPressError, WordPressSites

# For one program, within the 4 hours of a copy and the 6 hours of a push.
COPY_SECONDS: Final = 3 * 3600.0
SPARE_BYTES: Final = 256 << 20
"""Stays free on the disk after a copy, because the other sites keep writing."""
FOLDER: Final = ".staging-"


@dataclass(frozen=True)
class Tools:
    database: Database
    folders: HostFolders
    databases: SiteDatabases
    wordpress: WordPressSites
    tables: StagedTables
    actors: ActorSystem

    @property
    def server(self) -> DatabaseServer:
        return self.databases.server(EngineKind.MARIADB)

    def home(self, site: SiteRow) -> Path:
        return self.folders.sites / site.account.name

    def folder(self, job_id: int) -> Path:
        """The folder of a job. Only root can read it, and it is next to the homes, on the same file system, so that
        rename(2) moves files from it into a home in one step."""
        return self.folders.sites / f"{FOLDER}{job_id}"

    async def make_folder(self, job_id: int) -> Path:
        folder = self.folder(job_id)
        await trio.to_thread.run_sync(partial(folder.mkdir, mode=0o700))
        return folder

    async def remove_folder(self, job_id: int) -> None:
        # Errors are ignored: `PushRollback.round` finds folders that are left, and tries again.
        await trio.to_thread.run_sync(partial(remove_tree, self.folder(job_id), ignore_errors=True))

    async def configured(self, site: SiteRow) -> ConfiguredDatabase:
        """The database and prefix of the site. Raises `conflict` if the database is not the site's own."""
        with translate_errors():
            found = await self.wordpress.configured(site.account)
        # wp-config.php is the customer's text. Without this check it could name another site's database, and the job
        # would copy it, because the job may work as the owner of any database.
        own = await self.database.fetchval(
            "SELECT true FROM databases WHERE site_id = $1 AND engine = 'mariadb' AND name = $2",
            site.id,
            found.database,
        )
        if not own:
            raise conflict(f"{site.domain} keeps its content in {found.database}, which is not a database of the site.")
        return found

    async def entries(self, site: SiteRow) -> list[str]:
        return await trio.to_thread.run_sync(trees.entries_of, self.home(site), site.account.uid)

    async def digests(self, site: SiteRow, entries: Collection[str]) -> dict[str, str]:
        with _followed():
            return await trio.to_thread.run_sync(trees.digests, self.home(site), site.account.uid, entries)

    async def facts(self, database: str, prefix: str, tables: Collection[str] | None = None) -> dict[str, str]:
        """Facts of all tables of the site, or only of these."""
        name = DatabaseName(database)
        with translate_errors():
            wanted = await self.tables.names(name) if tables is None else tables
            wanted = [table for table in wanted if table.startswith(prefix)]
            return await self.tables.facts(name, wanted, options=f"{prefix}{OPTIONS}", volatile=VOLATILE)

    async def seen(
        self, live: SiteRow, copy: SiteRow, at: ConfiguredDatabase, copied: ConfiguredDatabase
    ) -> SiteContents:
        """Both sites as they are now."""
        with translate_errors():
            posts = f"{at.prefix}{POSTS}"
            there = await self.tables.names(DatabaseName(at.database))
            types = (
                await self.tables.has_posts(DatabaseName(at.database), posts, VISITORS_POSTS) if posts in there else []
            )
            # Tables of both databases are checked, because a swap moves tables out of both.
            bound = {
                *await self.tables.bound(DatabaseName(at.database), there),
                *await self.tables.bound(DatabaseName(copied.database), there),
            }
            copied_tables = await self.tables.names(DatabaseName(copied.database))
        live_entries = await self.entries(live)
        return SiteContents(
            copied_tables=copied_tables,
            copied_files=[entry for entry in await self.entries(copy) if is_copied(entry)],
            live_tables=await self.facts(at.database, at.prefix),
            live_files=await self.digests(live, live_entries),
            bound=bound,
            visitors_posts=types,
        )

    async def copy_files(
        self,
        run: JobRun,
        site: SiteRow,
        to: SiteRow,
        entries: Sequence[str],
        target: Path,
        *,
        newest: bool = False,
        most: int | None = None,
    ) -> None:
        """Copy these entries of a site into `target`/public, as files of the other site's account. `newest`: if a file
        exists at the target, the file that was changed last stays. `most`: the most bytes of each folder; None: no
        limit."""
        folders = {"": target / "public", trees.CONTENT: target / "public" / trees.CONTENT}
        for below, folder in folders.items():
            names = [entry.removeprefix(f"{below}/") for entry in entries if entry.rpartition("/")[0] == below]
            if not names:
                continue
            await trio.to_thread.run_sync(_make_public, target, folder, to.account.uid)
            order = {
                "source": str(self.home(site)),
                "below": ["public", *([below] if below else [])],
                "uid": site.account.uid,
                "target": str(folder),
                "to": to.account.uid,
                "entries": names,
                "newest": newest,
                "most": most,
            }
            # The order is passed in a file, because the names of many entries may be too long for an argument.
            file = self.folder(run.id) / "order.json"
            await trio.to_thread.run_sync(file.write_text, json.dumps(order))
            said: list[str] = []

            async def hear(lines: list[str], said: list[str] = said) -> None:
                said.extend(lines)

            words = (sys.executable, "-I", "-S", str(trees.__file__), str(file))
            await run.program(words, seconds=COPY_SECONDS, read=hear)
            counted = json.loads(said[-1])
            left = f"; {counted['left_out']:,} that are not the site's own were left out" if counted["left_out"] else ""
            await run.log(f"{below or 'public'}: {counted['files']:,} files, {counted['bytes']:,} bytes{left}.")

    async def rewrite(self, run: JobRun, dump: Path, to: Path, hosts: dict[str, str], homes: tuple[str, str]) -> None:
        """Replace the addresses in a dump."""
        order = json.dumps({"hosts": hosts, "homes": homes})
        command = (sys.executable, "-I", "-S", str(rewrite.__file__), order, str(dump), str(to))
        await run.program(command, seconds=COPY_SECONDS)

    async def require_room(self, site: SiteRow, entries: Collection[str], database: str) -> None:
        """Raises `capacity` if the disk has no room for a copy of this site's entries and database."""
        with _followed():
            needed = await trio.to_thread.run_sync(trees.sizes, self.home(site), site.account.uid, entries)
        with translate_errors():
            # Twice: once for the loaded database, once for its dump and the rewritten dump (both compressed), which
            # exist at the same time.
            needed += 2 * (await self.server.sizes([DatabaseName(database)])).get(DatabaseName(database), 0)
        space = os.statvfs(self.folders.data)
        free = space.f_bavail * space.f_frsize
        if needed + SPARE_BYTES > free:
            raise capacity(
                f"The copy may need {needed + SPARE_BYTES:,} bytes, and {free:,} are free; nothing was changed.",
                hint="Free some space.",
            )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Errors of the site's programs and of its database server become `unavailable`."""
    try:
        yield
    except DatabaseError as error:
        raise unavailable(str(error)) from error
    except WordPressError as error:
        raise unavailable(f"WordPress: {error}") from error


@contextmanager
def _followed() -> Iterator[None]:
    try:
        yield
    except trees.TooDeepError as error:
        raise conflict(f"{error.filename}: {error.strerror}. Nothing was changed.") from error


def _make_public(target: Path, folder: Path, uid: int) -> None:
    # `target` itself belongs to root with mode 0700: nobody else can reach its contents until they are switched into
    # place.
    for each in (target, target / "public", folder):
        if not each.exists():
            each.mkdir(mode=0o700)
            if each != target:
                os.chown(each, uid, uid)
                each.chmod(0o755)
