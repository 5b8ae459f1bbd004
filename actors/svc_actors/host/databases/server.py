"""What the panel asks of a database server, whichever engine it is.

Everything may be repeated and begun anew after any failure: a method makes the engine as it is told, and one that was
made already stays. An engine is set up and started by the first `ensure`; until then it takes neither memory nor disk.

A database belongs to an account of its own, its owner, whose password nobody has: it is given a new one for the length
of a dump or a load. So what is in a dump can do what the customer may do with this one database, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.databases.memory import SITE_BYTES, Session
from svc_actors.host.databases.names import DatabaseName, UserName


class EngineKind(StrEnum):
    MARIADB = "mariadb"
    POSTGRESQL = "postgresql"


class Access(StrEnum):
    """What a user may do with a database."""

    FULL = "full"
    READ_ONLY = "read_only"


class DatabaseError(Exception):
    """The engine did not do it, or does not answer; the message has its own words. What was asked for may be asked for
    again."""


@dataclass(frozen=True)
class SiteFile:
    """A file of a site: opened by its account, beneath `root` wherever links in `path` lead."""

    root: Path
    path: str


class RunProgram(Protocol):
    """Runs a program to its end: `JobRun.program` is one. Raises where it does not end with exit status 0, the last
    line that it wrote being why."""

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
        """It was set up once, and may hold databases."""
        ...

    def verifier(self, password: str) -> str:
        """What the engine keeps of a password."""
        ...

    async def ensure(self) -> None:
        """It is set up, runs and answers."""
        ...

    async def stop(self) -> None:
        """It runs no more; what it holds stays. Raises `LauncherError`."""
        ...

    async def probe(self) -> None:
        """It answers now, without having been told to start."""
        ...

    async def end_greedy(self, site_most: int = SITE_BYTES) -> list[Session]:
        """End the sessions of sites that take more memory than they may, and say which. None where it does not run."""
        ...

    async def sessions(self) -> list[Session]:
        """Those of sites that are open. None where it does not run."""
        ...

    async def create_database(self, name: DatabaseName) -> None: ...

    async def empty_database(self, name: DatabaseName) -> None:
        """Nothing is in it any more; who may use it still may. `grant` again afterwards what the users had."""
        ...

    async def drop_database(self, name: DatabaseName) -> None:
        """Its owner goes with it, and whoever is connected is disconnected."""
        ...

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        """The user is there with exactly this password, and has at most so many connections at a time."""
        ...

    async def drop_user(self, name: UserName) -> None:
        """What the user has made belongs to the databases' owners from now on."""
        ...

    async def grant(self, name: UserName, access: Mapping[DatabaseName, Access]) -> None:
        """The user may do exactly this."""
        ...

    async def granted(self, name: UserName) -> dict[DatabaseName, Access]:
        """What the user may do, as the engine has it; nothing for one that is not there."""
        ...

    async def databases(self) -> frozenset[DatabaseName]:
        """All that there are, but for the engine's own."""
        ...

    async def users(self) -> frozenset[UserName]:
        """All that there are, but for owners and the engine's own."""
        ...

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        """What each takes on the disk, in bytes; one that is not there is left out."""
        ...

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        """Write all of the database to `file`, as SQL compressed by gzip, which `load` reads. The file gets its name
        when it is whole: the engine's own program has succeeded, and its last line is there. Raises what `run` does."""
        ...

    async def look(self, source: Path | SiteFile, account: SiteAccount, run: RunProgram) -> None:
        """Read a file to its end as `load` would, and change nothing: it is SQL of this engine, holds a statement, and
        is whole where its writer says so (`svc_actors.host.confined.sql_look`). A line LOOKED says how many bytes of
        SQL it has. Raises what `run` does."""
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
        of the site's account that may write no file and start no program (`svc_actors.host.confined.sql`). A `Path` is
        a file of ours. Raises what `run` does; PostgreSQL is as it was then, MariaDB has what came before the error."""
        ...


DatabaseServers = Mapping[EngineKind, DatabaseServer]
