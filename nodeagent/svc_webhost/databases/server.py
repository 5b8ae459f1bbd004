"""The panel's interface to a database server, whichever engine it is.

Every method may be repeated after any failure: it brings the engine into the given state, and what is so already stays.
The first `ensure` sets an engine up and starts it; until then it takes neither memory nor disk.

A database belongs to an account of its own, its owner, whose password nobody has: it gets a new one for the time of a
dump or a load. So the content of a dump can do only what the customer may do with this one database.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from svc_webhost.accounts import SiteAccount
from svc_webhost.databases.memory import SITE_BYTES, Session
from svc_webhost.databases.names import DatabaseName, UserName


class EngineKind(StrEnum):
    MARIADB = "mariadb"
    POSTGRESQL = "postgresql"


class Access(StrEnum):
    """A user's access to a database."""

    FULL = "full"
    READ_ONLY = "read_only"


class DatabaseError(Exception):
    """The engine refused, or does not answer; the message has its own words. The request may be repeated."""


@dataclass(frozen=True)
class SiteFile:
    """A file of a site: opened by its account, within `root` wherever links in `path` lead."""

    root: Path
    path: str


class RunProgram(Protocol):
    """Runs a program to its end, like `JobRun.program`. Raises for an exit status other than 0, with the last line of
    its output."""

    async def __call__(
        self,
        command: tuple[str, ...],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        stdin: Path | None = None,
    ) -> None: ...


class DatabaseServer(Protocol):
    """Every method but `stop` raises `DatabaseError`."""

    @property
    def socket(self) -> Path:
        """Where its clients connect: MariaDB's socket, PostgreSQL's folder of sockets."""
        ...

    @property
    def exists(self) -> bool:
        """Whether the engine was set up, and so may have databases."""
        ...

    def verifier(self, password: str) -> str:
        """The engine's stored form of a password."""
        ...

    async def ensure(self) -> None:
        """Set the engine up and start it if needed; when this returns, it answers."""
        ...

    async def stop(self) -> None:
        """Stop the engine; its data stays. Raises `LauncherError`."""
        ...

    async def probe(self) -> None:
        """Raises if the engine does not answer now; does not start it."""
        ...

    async def end_greedy(self, site_most: int = SITE_BYTES) -> list[Session]:
        """End the sessions of sites that take more memory than allowed; returns them. Empty if the engine does not
        run."""
        ...

    async def sessions(self) -> list[Session]:
        """The open sessions of sites. Empty if the engine does not run."""
        ...

    async def create_database(self, name: DatabaseName) -> None: ...

    async def empty_database(self, name: DatabaseName) -> None:
        """Drop the content; users may still connect afterwards. Call `grant` then to give them access to the
        content."""
        ...

    async def drop_database(self, name: DatabaseName) -> None:
        """Drop the database with its owner. Open connections are ended."""
        ...

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        """Create the user, or set exactly this password and limit of concurrent connections."""
        ...

    async def drop_user(self, name: UserName) -> None:
        """What the user has created belongs to the databases' owners from now on."""
        ...

    async def grant(self, name: UserName, access: Mapping[DatabaseName, Access]) -> None:
        """Give the user exactly this access."""
        ...

    async def granted(self, name: UserName) -> dict[DatabaseName, Access]:
        """The user's access in the engine; empty for an unknown user."""
        ...

    async def databases(self) -> frozenset[DatabaseName]:
        """All databases except the engine's own."""
        ...

    async def users(self) -> frozenset[UserName]:
        """All users except owners and the engine's own."""
        ...

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        """The size on disk of each of the databases in bytes; unknown databases are left out."""
        ...

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        """Write the whole database to `file`, as SQL compressed by gzip, which `load` reads. The file gets its name
        when it is complete: the engine's own program has succeeded, and its last line is there. Raises what `run`
        does."""
        ...

    async def look(self, source: Path | SiteFile, account: SiteAccount, run: RunProgram) -> None:
        """Read a file to its end as `load` would, and change nothing: it must be SQL of this engine, have a statement,
        and be complete if its writer marks the end (`svc_webhost.confined.sql_look`). A line LOOKED has the bytes
        of SQL. Raises what `run` does."""
        ...

    async def load(
        self,
        name: DatabaseName,
        source: Path | SiteFile,
        account: SiteAccount,
        run: RunProgram,
        *,
        rows: bool = False,
    ) -> None:
        """Run the SQL of a file, plain or compressed by gzip, bzip2 or xz, in the database, as its owner, in a process
        of the site's account that may write no file and start no program (`svc_webhost.confined.sql`). A `Path` is
        a file of ours. Raises what `run` does; PostgreSQL is then unchanged, MariaDB has all that came before the
        error."""
        ...


DatabaseServers = Mapping[EngineKind, DatabaseServer]
