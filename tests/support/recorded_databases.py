"""A database server that does whatever it is told and remembers it, in the place of MariaDB or PostgreSQL."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.confined.sql_look import LOOKED, NoDumpError, SqlLook
from svc_webhost.confined.sql_rows import ROWS, RowCounter
from svc_webhost.databases import (
    Access,
    DatabaseError,
    DatabaseName,
    DatabaseServer,
    EngineKind,
    RunProgram,
    Session,
    SiteFile,
    UserName,
)
from svc_webhost.databases.memory import SITE_BYTES


async def undisturbed(method: str) -> None:
    """What happens before a method that nobody interferes with."""
    await trio.lowlevel.checkpoint()


@dataclass
class RecordedUser:
    verifier: str
    connections: int
    access: dict[DatabaseName, Access] = field(default_factory=dict)


@dataclass
class RecordedDatabases:
    """`before` is called before each method with its name: a test lets it fail, or stops there."""

    kind: EngineKind
    contents: dict[DatabaseName, str] = field(default_factory=dict)
    accounts: dict[UserName, RecordedUser] = field(default_factory=dict)
    loaded: list[tuple[DatabaseName, Path | SiteFile, SiteAccount]] = field(default_factory=list)
    greedy: list[Session] = field(default_factory=list)
    open: list[Session] = field(default_factory=list)
    """Sessions that the next look finds taking too much."""
    running: bool = False
    exists: bool = False
    before: Callable[[str], Awaitable[None]] = undisturbed

    @property
    def socket(self) -> Path:
        return Path("/run/databases") / self.kind.value

    def verifier(self, password: str) -> str:
        return f"stored:{password}"

    async def ensure(self) -> None:
        await self.before("ensure")
        self.running = self.exists = True

    async def stop(self) -> None:
        await self.before("stop")
        self.running = False

    async def probe(self) -> None:
        await self.before("probe")
        if not self.running:
            raise DatabaseError("it does not run")

    async def end_greedy(self, site_most: int = SITE_BYTES) -> list[Session]:
        await self.before("end_greedy")
        ended, self.greedy = self.greedy, []
        return ended

    async def sessions(self) -> list[Session]:
        await self.before("sessions")
        return self.open

    async def create_database(self, name: DatabaseName) -> None:
        await self._begin("create_database")
        self.contents.setdefault(name, "")

    async def empty_database(self, name: DatabaseName) -> None:
        await self._begin("empty_database")
        self.contents[name] = ""

    async def drop_database(self, name: DatabaseName) -> None:
        await self._begin("drop_database")
        self.contents.pop(name, None)

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        await self._begin("create_user")
        access = self.accounts[name].access if name in self.accounts else {}
        self.accounts[name] = RecordedUser(verifier, connections, access)

    async def drop_user(self, name: UserName) -> None:
        await self._begin("drop_user")
        self.accounts.pop(name, None)

    async def grant(self, name: UserName, access: Mapping[DatabaseName, Access]) -> None:
        await self._begin("grant")
        self.accounts[name].access = dict(access)

    async def granted(self, name: UserName) -> dict[DatabaseName, Access]:
        await self._begin("granted")
        return dict(self.accounts[name].access) if name in self.accounts else {}

    async def databases(self) -> frozenset[DatabaseName]:
        await self._begin("databases")
        return frozenset(self.contents)

    async def users(self) -> frozenset[UserName]:
        await self._begin("users")
        return frozenset(self.accounts)

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        await self._begin("sizes")
        return {name: len(self.contents[name]) for name in names if name in self.contents}

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        await self._begin("dump")
        file.write_bytes(gzip.compress(self.contents[name].encode(), mtime=0))

    async def look(self, source: Path | SiteFile, account: SiteAccount, run: RunProgram) -> None:
        """As the real ones, without their confinement."""
        await self._begin("look")
        look = SqlLook(self.kind.value)
        try:
            content = (source if isinstance(source, Path) else source.root / source.path).read_bytes()
            content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
            for line in content.splitlines(keepends=True):
                look.feed(line, at_line_start=True)
            look.finish()
        except (NoDumpError, EOFError, OSError) as error:
            await run(("/bin/sh", "-c", 'printf "%s\\n" "$1"; exit 3', "look", str(error)), seconds=10)
        await run(("/usr/bin/printf", f"{LOOKED}{look.size}\\n"), seconds=10)

    async def load(
        self,
        name: DatabaseName,
        source: Path | SiteFile,
        account: SiteAccount,
        run: RunProgram,
        *,
        rows: bool = False,
    ) -> None:
        """Its contents are what the file holds then."""
        await self._begin("load")
        self.loaded.append((name, source, account))
        content = (source if isinstance(source, Path) else source.root / source.path).read_bytes()
        self.contents[name] = (gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content).decode()
        if rows:
            counter = RowCounter()
            counter.feed(self.contents[name].encode())
            lines = [f"{ROWS}{json.dumps(told)}" for told in counter.finish().items()]
            await run(("/usr/bin/printf", "%s\\n", *lines), seconds=10)

    async def _begin(self, method: str) -> None:
        await self.before(method)
        if not self.running:
            raise DatabaseError("The database server does not run.")


def recorded_databases() -> Mapping[EngineKind, DatabaseServer]:
    return {kind: RecordedDatabases(kind) for kind in EngineKind}
