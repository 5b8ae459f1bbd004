"""Databases in backups of sites: dumped next to the files; a restoration saves the current content, then loads the
dump."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

import trio

from svc_actors.panel.databases.records import DATABASE_COLUMNS, DatabaseRow, as_database
from svc_actors.panel.databases.states import DatabaseStatus
from svc_actors.panel.jobs import JobRun
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Database
from svc_common.errors import conflict, unavailable
from svc_webhost.databases import DatabaseError, DatabaseServer, EngineKind
from svc_webhost.tree_removal import remove_tree

FOLDER: Final = "databases"
LIST: Final = "databases.json"
_BLOCK: Final = 1 << 20


class SiteDatabases(Protocol):
    """The functions of sites' databases that backups use."""

    def server(self, kind: EngineKind) -> DatabaseServer: ...

    async def empty(self, database_id: UUID) -> None: ...


@dataclass(frozen=True)
class DatabaseDump:
    """One dump of a backup. `name` is the database's; `file` is in the folder of dumps, with its `size` and `sha256`.
    `loaded` is the size of the uncompressed dump, for the estimate of disk space: 0 in backups that do not have it."""

    engine: EngineKind
    name: str
    file: str
    size: int
    sha256: str
    loaded: int = 0

    @property
    def called(self) -> str:
        """The customer's name for it: without the number of the site."""
        return self.name.partition("_")[2]


class DatabaseBackups:
    def __init__(self, database: Database, databases: SiteDatabases) -> None:
        self._database = database
        self._databases = databases

    def server(self, kind: EngineKind) -> DatabaseServer:
        return self._databases.server(kind)

    async def of_site(self, site: SiteRow, *statuses: DatabaseStatus) -> list[DatabaseRow]:
        """Databases that are active, or have one of these statuses."""
        rows = await self._database.fetch(
            f"SELECT {DATABASE_COLUMNS} FROM databases WHERE site_id = $1 AND status = ANY($2) ORDER BY engine, name",
            site.id,
            [DatabaseStatus.ACTIVE, *statuses],
        )
        return [as_database(row) for row in rows]

    async def size(self, site: SiteRow, only: str | None = None) -> int:
        """Disk size of all of them, or of `only` one: no dump is larger, since dumps are compressed."""
        total = 0
        for row in await self.of_site(site):
            if only not in (None, row.name):
                continue
            with translate_errors():
                sizes = await self._databases.server(row.engine).sizes([row.name])
            total += sizes.get(row.name, 0)
        return total

    async def dump(self, run: JobRun, site: SiteRow, content: Path) -> int:
        """Dump all of them into the folder `content`; returns how many there are."""
        rows = await self.of_site(site)
        for row in rows:
            await self._dump(run, row, content / FOLDER / _file(row.engine, row.name))
            await run.log(f"{row.name} was dumped.")
        return len(rows)

    async def verify(self, content: Path) -> list[DatabaseDump]:
        """Read every dump to its end, and write a list of the dumps. A dump gets its final name only once the engine's
        program has succeeded and the dump's last line is present."""
        dumped = await trio.to_thread.run_sync(_read_dumps, content / FOLDER)
        (content / LIST).write_text(json.dumps([asdict(dump) for dump in dumped], indent=1))
        return dumped

    async def held(self, content: Path) -> list[DatabaseDump]:
        """The dumps that a backup lists."""
        return await trio.to_thread.run_sync(_read_list, content)

    async def verify_fetched(self, content: Path, dumped: Sequence[DatabaseDump]) -> None:
        """Raises `unavailable` if a dump differs from what was backed up."""
        for dump in dumped:
            if await trio.to_thread.run_sync(_sha256, content / FOLDER / dump.file) != dump.sha256:
                raise unavailable(f"The dump of {dump.name} differs from what was backed up; the site was not changed.")

    async def targets(self, site: SiteRow, dumped: Sequence[DatabaseDump]) -> list[tuple[DatabaseDump, DatabaseRow]]:
        """The database of the site into which each dump is loaded: the one with the same engine and name. Raises
        `conflict` if there is none."""
        there = {(row.engine, row.name): row for row in await self.of_site(site)}
        found = []
        for dump in dumped:
            name = f"{site.account.name}_{dump.called}"
            row = next((row for (engine, own), row in there.items() if (engine, own) == (dump.engine, name)), None)
            if row is None:
                raise conflict(
                    f"{site.domain} has no database {name} ({dump.engine.value}), which the backup holds; "
                    "the site was not changed.",
                    hint="Create it first, or restore single files.",
                )
            found.append((dump, row))
        return found

    async def load(
        self, run: JobRun, site: SiteRow, content: Path, dumped: Sequence[DatabaseDump], aside: Path
    ) -> None:
        """Replace the content of the databases. The current content of each is saved in the folder `aside` first.
        Raises ServiceError; then all of them have their old content again."""
        targets = await self.targets(site, dumped)
        try:
            for dump, row in targets:
                await self.set_aside(run, row, aside)
                await self._load(run, site, row, content / FOLDER / dump.file)
                await run.log(f"{row.name} was restored from the backup.")
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.put_back(run, site, aside)
            raise

    async def put_back(self, run: JobRun, site: SiteRow, aside: Path) -> None:
        """Load the saved content again, and remove the saved files. If that fails, these stay for another attempt."""
        # A database that was emptied while its server was down still has the status `creating`.
        for row in await self.of_site(site, DatabaseStatus.CREATING):
            file = aside / _file(row.engine, row.name)
            if file.exists():
                await self._load(run, site, row, file)
                await run.log(f"{row.name} has its previous contents again.")
        await trio.to_thread.run_sync(_remove, aside)

    async def set_aside(self, run: JobRun, row: DatabaseRow, aside: Path) -> None:
        """Dump the content of a database to the place where `put_back` finds it."""
        await self._dump(run, row, aside / _file(row.engine, row.name))

    async def _dump(self, run: JobRun, row: DatabaseRow, file: Path) -> None:
        await trio.to_thread.run_sync(lambda: file.parent.mkdir(mode=0o700, parents=True, exist_ok=True))
        with translate_errors():
            await self._databases.server(row.engine).dump(row.name, file, run.program)

    async def _load(self, run: JobRun, site: SiteRow, row: DatabaseRow, file: Path) -> None:
        await self._databases.empty(row.id)
        with translate_errors():
            await self._databases.server(row.engine).load(row.name, file, site.account, run.program)


@contextmanager
def translate_errors() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        raise unavailable(str(error)) from error


def _remove(folder: Path) -> None:
    if folder.exists():
        remove_tree(folder)


def _file(engine: EngineKind, name: str) -> str:
    return f"{engine.value}-{name}.sql.gz"


def _read_list(content: Path) -> list[DatabaseDump]:
    told = json.loads((content / LIST).read_text())
    return [DatabaseDump(**(dump | {"engine": EngineKind(dump["engine"])})) for dump in told]


def _read_dumps(folder: Path) -> list[DatabaseDump]:
    found = []
    for file in sorted(folder.glob("*.sql.gz")):
        loaded = 0
        try:
            with gzip.open(file) as opened:
                while block := opened.read(_BLOCK):
                    loaded += len(block)
        except (EOFError, OSError, zlib.error) as error:
            raise unavailable(f"The dump {file.name} is incomplete: {error}.") from error
        engine, _, name = file.name.removesuffix(".sql.gz").partition("-")
        found.append(DatabaseDump(EngineKind(engine), name, file.name, file.stat().st_size, _sha256(file), loaded))
    return found


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
