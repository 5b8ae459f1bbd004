"""The panel's interface to a database server, whichever engine it is.

Every method may be repeated after any failure: it brings the engine into the given state, and changes nothing that is
in this state already. The first `ensure` sets an engine up and starts it; until then it takes neither memory nor disk.

A database belongs to an account of its own, its owner, whose password nobody has: it gets a new one for the time of a
dump or a load. So the content of a dump can do only what the customer may do with this one database.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

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
        """Where the engine's clients connect: MariaDB's socket, PostgreSQL's folder of sockets."""
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
        """Drop the user; objects that the user has created go to the owners of their databases."""
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


# Both engines limit the connections of users alone. So each user gets a share of its site's limit and of its
# customer's, and a customer has at most as many users as connections: the sum over a customer's users never exceeds the
# customer's limit.
@dataclass(frozen=True)
class Connections:
    site: int
    customer: int
    """The connections of one customer; also the most users that a customer may have in the engine."""
    server: int
    """The connections of the server: if two customers use up their limits, some are left for others, and for the
    panel."""

    def of_user(self, *, of_site: int, of_customer: int) -> int:
        """How many connections each user may have, given how many users its site and its customer have in the
        engine."""
        return max(1, min(self.site // of_site, self.customer // of_customer))

    def is_shared(self, of_customer: int) -> bool:
        """Whether a user gets fewer connections than the only user of a site, because its customer has so many
        users."""
        return of_customer * self.site > self.customer


CONNECTIONS: Final[Mapping[EngineKind, Connections]] = {
    # In MariaDB a connection is a thread; while it waits it takes some 200 KB.
    EngineKind.MARIADB: Connections(site=30, customer=1000, server=2100),
    # In PostgreSQL a connection is a process of some 5 MB.
    EngineKind.POSTGRESQL: Connections(site=20, customer=400, server=850),
}
