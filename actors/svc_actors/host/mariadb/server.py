"""MariaDB as the panel runs it: a Unix socket and nothing else, root known by who connects (unix_socket).

A customer's account may do what it was granted on its databases, and sees no others: in particular nothing with files,
other users, or the server. Names in a GRANT are patterns, in which _ stands for any character, so it is escaped there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.databases.instance import Instance, ask_client
from svc_actors.host.databases.names import DatabaseName, UserName, checked, owner_of
from svc_actors.host.databases.passwords import native_hash, new_password
from svc_actors.host.databases.server import Access, RunProgram, SiteFile
from svc_actors.host.databases.transfer import (
    DUMP_SECONDS,
    LOAD_SECONDS,
    dump_command,
    load_command,
    locked_afterwards,
)
from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher import Service, ServiceName, SiteLauncher
from svc_actors.host.programs import Program

SERVICE: Final = ServiceName("mariadb")
CONNECTIONS: Final = 30
"""Of all users of one site at a time."""
ACCOUNT: Final = "mysql"
"""Of Debian's package."""
_SERVER: Final = "/usr/sbin/mariadbd"
_CLIENT: Final = "/usr/bin/mariadb"
_DUMP: Final = "/usr/bin/mariadb-dump"
_SET_UP: Final = "/usr/bin/mariadb-install-db"
_MARKER: Final = "-- Dump completed"
_PRIVILEGES: Final = {Access.FULL: "ALL PRIVILEGES", Access.READ_ONLY: "SELECT, SHOW VIEW"}
_ONE, _TWO = "\\", "\\\\"
_OWN: Final = "'information_schema', 'mysql', 'performance_schema', 'sys'"


class MariaDb:
    """A MariaDB in a folder of its own."""

    def __init__(self, folders: HostFolders, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._folder = folders.databases / "mariadb"
        self._sockets = folders.mariadb_socket.parent
        self._instance = Instance(
            self._folder, self._sockets, ACCOUNT, launcher, self.service, self._set_up, self.probe
        )

    @property
    def socket(self) -> Path:
        return self._folders.mariadb_socket

    @property
    def exists(self) -> bool:
        return self._instance.exists

    @property
    def connections(self) -> int:
        return CONNECTIONS

    def verifier(self, password: str) -> str:
        return native_hash(password)

    def service(self) -> Service:
        """Small: the first 100 MB serve many sites, and it grows with what they hold."""
        instance = self._instance
        return Service(
            name=SERVICE,
            command=(
                # With as few files as a program begins with (1024) it takes 594 connections, whatever it is told.
                *("/usr/bin/prlimit", "--nofile=8192:", _SERVER),
                "--no-defaults",
                f"--datadir={instance.data}",
                f"--socket={self.socket}",
                f"--pid-file={self._sockets / 'mariadbd.pid'}",
                "--skip-networking",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--local-infile=0",
                # Not that anybody had the privilege to read or write files of the server.
                f"--secure-file-priv={self._folder / 'empty'}",
                "--symbolic-links=0",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_unicode_ci",
                # Twenty sites with all of theirs, and what the panel itself asks meanwhile; one more is kept for root.
                # A connection that is not there takes nothing.
                f"--max-connections={20 * CONNECTIONS + 100}",
                "--max-allowed-packet=64M",
                "--innodb-buffer-pool-size=64M",
                # What an event runs counts as no connection of its user: a customer could have any number of them.
                "--event-scheduler=OFF",
            ),
            user=ACCOUNT,
            group=ACCOUNT,
            log=instance.log,
            stop_seconds=120.0,
            umask=0o007,
        )

    async def ensure(self) -> None:
        await trio.to_thread.run_sync(lambda: (self._folder / "empty").mkdir(mode=0o755, parents=True, exist_ok=True))
        await self._instance.ensure()

    async def stop(self) -> None:
        await self._instance.stop()

    async def probe(self) -> None:
        await self._ask("SELECT 1")

    async def create_database(self, name: DatabaseName) -> None:
        owner = _account(owner_of(name))
        await self._ask(
            f"CREATE DATABASE IF NOT EXISTS {_quoted(name)}",
            f"CREATE USER IF NOT EXISTS {owner} {_identified(native_hash(new_password()))} ACCOUNT LOCK",
            f"GRANT ALL PRIVILEGES ON {_pattern(name)}.* TO {owner}",
        )

    async def empty_database(self, name: DatabaseName) -> None:
        # What is granted on it stays.
        await self._ask(f"DROP DATABASE IF EXISTS {_quoted(name)}")
        await self.create_database(name)

    async def drop_database(self, name: DatabaseName) -> None:
        """Grants of a database outlive it: a user is granted what is left to it by `grant`."""
        await self._ask(f"DROP DATABASE IF EXISTS {_quoted(name)}", f"DROP USER IF EXISTS {_account(owner_of(name))}")

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        account, limit = _account(checked(name)), f"WITH MAX_USER_CONNECTIONS {connections:d}"
        await self._ask(
            f"CREATE USER IF NOT EXISTS {account} {_identified(verifier)} {limit}",
            f"ALTER USER {account} {_identified(verifier)} {limit} ACCOUNT UNLOCK",
        )

    async def drop_user(self, name: UserName) -> None:
        await self._ask(f"DROP USER IF EXISTS {_account(checked(name))}")
        await self._disconnect(name)

    async def grant(self, name: UserName, access: Mapping[DatabaseName, Access]) -> None:
        account = _account(checked(name))
        there = await self._granted(name)
        wanted = {_pattern(database): allowed for database, allowed in access.items()}
        taken = [pattern for pattern, allowed in there.items() if wanted.get(pattern) is not allowed]
        given = [pattern for pattern, allowed in wanted.items() if there.get(pattern) is not allowed]
        await self._ask(
            *(f"REVOKE ALL PRIVILEGES ON {pattern}.* FROM {account}" for pattern in taken),
            *(f"GRANT {_PRIVILEGES[wanted[pattern]]} ON {pattern}.* TO {account}" for pattern in given),
        )
        if taken:
            # What a connection may do with its database is looked up when it chooses it.
            await self._disconnect(name)

    async def granted(self, name: UserName) -> dict[DatabaseName, Access]:
        there = await self._granted(UserName(checked(name)))
        return {DatabaseName(pattern.strip("`").replace(r"\_", "_")): access for pattern, access in there.items()}

    async def _granted(self, name: UserName) -> dict[str, Access]:
        """By the pattern that a GRANT has."""
        found = await self._ask(f"SELECT Db, Insert_priv FROM mysql.db WHERE User = '{name}' AND Host = 'localhost'")
        there: dict[str, Access] = {}
        for pattern, writes in (line.split("\t") for line in found.splitlines()):
            # The client writes a backslash as two.
            there[f"`{pattern.replace(_TWO, _ONE)}`"] = Access.FULL if writes == "Y" else Access.READ_ONLY
        return there

    async def databases(self) -> frozenset[DatabaseName]:
        found = await self._ask(
            f"SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN ({_OWN})"
        )
        return frozenset(DatabaseName(line) for line in found.splitlines())

    async def users(self) -> frozenset[UserName]:
        found = await self._ask("SELECT User FROM mysql.global_priv WHERE User LIKE 's%\\_%'")
        return frozenset(UserName(line) for line in found.splitlines())

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        """By the files, as every table has its own: asking MariaDB would open each of them."""
        return await trio.to_thread.run_sync(lambda: dict(_sizes(self._instance.data, names)))

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        """As root: nobody else is shown all routines. It reads in one transaction, and locks nothing for long."""
        command = (
            *(_DUMP, "--no-defaults", f"--socket={self.socket}", "--user=root", "--single-transaction", "--quick"),
            *("--routines", "--triggers", "--events", "--hex-blob", "--no-tablespaces", "--max-allowed-packet=64M"),
            *("--default-character-set=utf8mb4", "--dump-date", "--", checked(name)),
        )
        await run(dump_command(file, _MARKER, command), seconds=DUMP_SECONDS)

    async def load(
        self,
        name: DatabaseName,
        source: Path | SiteFile,
        account: SiteAccount,
        run: RunProgram,
        *,
        rows: bool = False,
    ) -> None:
        owner, password = owner_of(name), new_password()
        await self._ask(f"ALTER USER {_account(owner)} {_identified(native_hash(password))} ACCOUNT UNLOCK")
        client = (
            *(_CLIENT, "--no-defaults", "--sandbox", "--batch", f"--socket={self.socket}", f"--user={owner}"),
            *("--default-character-set=utf8mb4", "--max-allowed-packet=64M", f"--database={name}"),
        )
        # Its editor is none.
        environment = {"MYSQL_PWD": password, "EDITOR": "/bin/false", "VISUAL": "/bin/false"}
        stdin = source if isinstance(source, Path) else None

        async def lock() -> None:
            await self._ask(f"ALTER USER {_account(owner)} ACCOUNT LOCK")

        async with locked_afterwards(lock):
            launcher = self._instance.launcher
            command = await load_command(self._folders, launcher, "mariadb", source, account, client, rows=rows)
            await run(command, seconds=LOAD_SECONDS, environment=environment, stdin=stdin)

    async def _disconnect(self, name: UserName) -> None:
        await self._ask(f"KILL SOFT USER {_account(name)}")

    async def _ask(self, *statements: str) -> str:
        """Lines of tabulated values."""
        command = (_CLIENT, "--no-defaults", f"--socket={self.socket}", "--user=root", "--batch", "--skip-column-names")
        return await ask_client(command, "".join(f"{statement};\n" for statement in statements))

    def _set_up(self, data: Path) -> Program:
        return Program(
            (
                *(_SET_UP, "--no-defaults", f"--user={ACCOUNT}", f"--datadir={data}"),
                *("--auth-root-authentication-method=socket", "--auth-root-socket-user=root"),
                *("--skip-test-db", "--skip-name-resolve"),
            )
        )


def _quoted(name: DatabaseName) -> str:
    return f"`{checked(name)}`"


def _pattern(name: DatabaseName) -> str:
    escaped = checked(name).replace("_", r"\_")
    return f"`{escaped}`"


def _account(name: str) -> str:
    return f"`{name}`@`localhost`"


def _identified(verifier: str) -> str:
    if not verifier.startswith("*") or not verifier[1:].isalnum():
        raise ValueError("no password of MariaDB's is stored so")
    return f"IDENTIFIED VIA mysql_native_password USING '{verifier}'"


def _sizes(data: Path, names: Collection[DatabaseName]) -> list[tuple[DatabaseName, int]]:
    found = []
    for name in names:
        try:
            entries = list(os.scandir(data / checked(name)))
        except FileNotFoundError:
            continue
        found.append((name, sum(_blocks(entry) for entry in entries)))
    return found


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0  # A table that was dropped meanwhile.
