"""MariaDB as the panel runs it: on a Unix socket only, with root authenticated by the connecting account (unix_socket).

A customer's account may do what it was granted on its databases, and sees no others; it has no access to files, other
users, or the server. Names in a GRANT are patterns, in which _ matches any character, so it is escaped there.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.databases.instance import Instance
from svc_webhost.databases.memory import (
    SESSION_BYTES,
    SHARE_BYTES,
    SITE_BYTES,
    Session,
    is_of_site,
    resident,
    to_end,
)
from svc_webhost.databases.names import DatabaseName, UserName, checked, owner_of
from svc_webhost.databases.passwords import native_hash, new_password
from svc_webhost.databases.server import CONNECTIONS, Access, DatabaseError, EngineKind, RunProgram, SiteFile
from svc_webhost.databases.transfer import (
    DUMP_SECONDS,
    LOAD_SECONDS,
    LOOK_SECONDS,
    dump_command,
    load_command,
)
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Service, ServiceName, SiteLauncher
from svc_webhost.mariadb import memory_tables
from svc_webhost.mariadb.owner import MariaDbOwners
from svc_webhost.mariadb.root import CLIENT, Root, RootStatement
from svc_webhost.mariadb.temporary import FILES_BYTES, temporary_files
from svc_webhost.programs import Program

SERVICE: Final = ServiceName("mariadb")
ACCOUNT: Final = "mysql"
"""The account that Debian's package creates."""
_SERVER: Final = "/usr/sbin/mariadbd"
DUMP: Final = "/usr/bin/mariadb-dump"
DUMP_OPTIONS: Final = (
    *("--single-transaction", "--quick", "--hex-blob", "--no-tablespaces", "--max-allowed-packet=64M"),
    *("--default-character-set=utf8mb4", "--dump-date"),
)
_OWN_BYTES: Final = 1280 << 20
"""Memory in addition to that of the sessions: buffers (64 MiB), caches, and 292 KiB of stack for each possible
connection. Some 250 MiB of this are resident."""
_MEMORY: Final = (
    f"--max-session-mem-used={SESSION_BYTES}",
    # Sessions may change these settings freely, up to the given maximum.
    f"--maximum-max-session-mem-used={SESSION_BYTES}",
    "--maximum-sort-buffer-size=32M",
    "--maximum-join-buffer-size=32M",
    "--maximum-join-buffer-space-limit=64M",
    "--maximum-read-buffer-size=8M",
    "--maximum-read-rnd-buffer-size=8M",
    "--maximum-mrr-buffer-size=8M",
    "--maximum-tmp-memory-table-size=64M",
    f"--maximum-max-heap-table-size={memory_tables.TABLE_BYTES}",
    "--maximum-bulk-insert-buffer-size=16M",
    "--maximum-preload-buffer-size=8M",
    "--maximum-group-concat-max-len=16M",
    "--maximum-query-prealloc-size=1M",
    "--maximum-transaction-prealloc-size=1M",
    "--aria-sort-buffer-size=32M",
    "--maximum-aria-sort-buffer-size=32M",
    "--myisam-sort-buffer-size=32M",
    "--maximum-myisam-sort-buffer-size=32M",
    # This file contains all temporary tables of InnoDB.
    "--innodb-temp-data-file-path=ibtmp1:12M:autoextend:max:4G",
)
_SET_UP: Final = "/usr/bin/mariadb-install-db"
TABLES_SECONDS: Final = 60.0
"""Seconds between two checks of MEMORY tables, which look at the folders of all databases."""
DUMP_MARKER: Final = "-- Dump completed"


class MariaDb:
    """A MariaDB in a folder of its own."""

    def __init__(self, folders: HostFolders, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._folder = folders.databases / "mariadb"
        self._sockets = folders.mariadb_socket.parent
        self.root = Root(folders.mariadb_socket)
        self.owners = MariaDbOwners(self.root)
        self._tables_known: memory_tables.Known = {}
        self._tables_looked_at = float("-inf")
        self._instance = Instance(
            self._folder, self._sockets, ACCOUNT, launcher, self.service, self._set_up, self.probe
        )

    @property
    def socket(self) -> Path:
        return self._folders.mariadb_socket

    @property
    def _pid_file(self) -> Path:
        return self._sockets / "mariadbd.pid"

    @property
    def _temporary(self) -> Path:
        return self._folder / "tmp"

    @property
    def exists(self) -> bool:
        return self._instance.exists

    def verifier(self, password: str) -> str:
        return native_hash(password)

    def service(self) -> Service:
        """The service of MariaDB. Its buffer is small at first: 100 MB serve many sites, and it grows with their
        data."""
        instance = self._instance
        return Service(
            name=SERVICE,
            command=(
                # With the default limit of open files (1024), the server accepts only 594 connections, whatever its
                # settings. With the limit of memory, an allocation beyond it fails only its statement, not the server.
                *("/usr/bin/prlimit", "--nofile=8192:", f"--data={SHARE_BYTES + _OWN_BYTES}", _SERVER),
                "--no-defaults",
                f"--datadir={instance.data}",
                f"--socket={self.socket}",
                f"--pid-file={self._pid_file}",
                "--skip-networking",
                "--skip-name-resolve",
                "--skip-log-bin",
                "--local-infile=0",
                # No user has the privilege to read or write files on the server anyway.
                f"--secure-file-priv={self._folder / 'empty'}",
                # Temporary files are not in /tmp, which may be in memory.
                f"--tmpdir={self._temporary}",
                "--symbolic-links=0",
                "--character-set-server=utf8mb4",
                "--collation-server=utf8mb4_unicode_ci",
                # One more connection is reserved for root. Unused connections cost nothing.
                f"--max-connections={CONNECTIONS[EngineKind.MARIADB].server}",
                *_MEMORY,
                # This limit applies to all sessions together, so it is high enough for each: prepared statements count
                # towards the sessions' memory anyway.
                "--max-prepared-stmt-count=1048576",
                "--max-allowed-packet=64M",
                "--innodb-buffer-pool-size=64M",
                # Events are off: they would run outside their user's connection limit, and a customer could have any
                # number of them.
                "--event-scheduler=OFF",
            ),
            user=ACCOUNT,
            group=ACCOUNT,
            log=instance.log,
            stop_seconds=120.0,
            umask=0o007,
        )

    async def ensure(self) -> None:
        await trio.to_thread.run_sync(self._make_folders)
        await self._instance.ensure()

    def _make_folders(self) -> None:
        (self._folder / "empty").mkdir(mode=0o755, parents=True, exist_ok=True)
        self._temporary.mkdir(mode=0o700, exist_ok=True)
        try:
            account = pwd.getpwnam(ACCOUNT)
        except KeyError:
            return  # The server's package is not installed; the set-up reports that.
        os.chown(self._temporary, account.pw_uid, account.pw_gid)

    async def stop(self) -> None:
        await self._instance.stop()

    async def probe(self) -> None:
        await self.root.ask(RootStatement.PROBE())

    async def end_greedy(self, site_most: int = SITE_BYTES, files_most: int = FILES_BYTES) -> list[Session]:
        """End sessions that take too much memory. Temporary files count as well, of which a site may have at most
        `files_most`."""
        pid, taken = await trio.to_thread.run_sync(resident, self._pid_file)
        tables, sorting = await trio.to_thread.run_sync(temporary_files, pid, self._temporary)
        if max(sorting, sum(tables.values())) <= files_most and taken < site_most:
            return []  # No site can exceed its limit with so little, so the server need not be asked.
        rows = await self._sessions()
        there = {number: (user, size, works) for number, user, size, works in rows}
        ended = [
            *to_end([Session(number, user, size) for number, (user, size, _) in there.items()], site_most),
            *to_end([Session(each, there[each][0], tables[each]) for each in tables if each in there], files_most),
        ]
        if sorting > files_most:
            ended += [Session(number, user, sorting) for number, (user, _, works) in there.items() if works][:1]
        await self._end(ended)
        now = trio.current_time()
        if taken > SHARE_BYTES // 2 and now >= self._tables_looked_at + TABLES_SECONDS:
            # This comes last, because it waits for users of the tables.
            self._tables_looked_at = now
            await self.empty_memory_tables()
        return ended

    async def sessions(self) -> list[Session]:
        if not (await trio.to_thread.run_sync(resident, self._pid_file))[0]:
            return []
        return [Session(number, user, size) for number, user, size, _ in await self._sessions()]

    async def empty_memory_tables(self) -> None:
        """Enforce the sites' limit of tables in memory."""
        await memory_tables.empty_largest(self._instance.data, self.owners, self._end_users, self._tables_known)

    async def _end_users(self, database: DatabaseName) -> None:
        """End the sessions of the database's site, except those of its owner."""
        owner = Session(0, owner_of(database), 0)
        found = [Session(number, user, size) for number, user, size, _ in await self._sessions()]
        await self._end([each for each in found if each.site == owner.site and each.user != owner.user])

    async def _sessions(self) -> list[tuple[int, str, int, bool]]:
        """Sessions of sites, that with the longest statement first: id, user, bytes of memory, and whether a statement
        runs."""
        found = [line.split("\t") for line in (await self.root.ask(RootStatement.SESSIONS())).splitlines()]
        return [(int(number), user, int(size), works == "1") for number, user, size, works in found if is_of_site(user)]

    async def _end(self, sessions: Collection[Session]) -> None:
        for session in sessions:
            with suppress(DatabaseError):  # The session may have ended by itself.
                await self.root.ask(RootStatement.END_SESSION(number=session.number))

    async def create_database(self, name: DatabaseName) -> None:
        owner = owner_of(name)
        await self.root.ask(
            RootStatement.CREATE_DATABASE(database=name),
            RootStatement.CREATE_OWNER(account=owner, verifier=native_hash(new_password())),
            RootStatement.GRANT(privileges=Access.FULL, pattern=name, account=owner),
        )

    async def empty_database(self, name: DatabaseName) -> None:
        # Grants on the database are kept.
        await self.root.ask(RootStatement.WITHOUT_FOREIGN_KEYS(), RootStatement.DROP_DATABASE(database=name))
        await self.create_database(name)

    async def drop_database(self, name: DatabaseName) -> None:
        """Drop the database. In MariaDB grants survive when their database is dropped; call `grant` to set the access
        that users still have."""
        await self.root.ask(
            RootStatement.WITHOUT_FOREIGN_KEYS(),
            RootStatement.DROP_DATABASE(database=name),
            RootStatement.DROP_USER(account=owner_of(name)),
        )

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        bound: dict[str, str | int] = {"account": checked(name), "verifier": verifier, "number": connections}
        await self.root.ask(RootStatement.CREATE_USER(**bound), RootStatement.UNLOCK(**bound))

    async def drop_user(self, name: UserName) -> None:
        await self.root.ask(RootStatement.DROP_USER(account=checked(name)))
        await self._disconnect(name)

    async def grant(self, name: UserName, access: Mapping[DatabaseName, Access]) -> None:
        there = await self.granted(name)
        taken = [database for database, allowed in there.items() if access.get(database) is not allowed]
        given = [database for database, allowed in access.items() if there.get(database) is not allowed]
        await self.root.ask(
            *(RootStatement.REVOKE(pattern=database, account=checked(name)) for database in taken),
            *(
                RootStatement.GRANT(privileges=access[database], pattern=database, account=checked(name))
                for database in given
            ),
        )
        if taken:
            # The server checks a connection's rights only when it selects the database, so existing connections are
            # ended.
            await self._disconnect(name)

    async def granted(self, name: UserName) -> dict[DatabaseName, Access]:
        found = await self.root.ask(RootStatement.GRANTED(user=name))
        there: dict[DatabaseName, Access] = {}
        for name_pattern, writes in (line.split("\t") for line in found.splitlines()):
            # In the grant's name pattern _ is escaped with a backslash, and the client prints a backslash as two.
            there[DatabaseName(name_pattern.replace("\\", ""))] = Access.FULL if writes == "Y" else Access.READ_ONLY
        return there

    async def databases(self) -> frozenset[DatabaseName]:
        found = await self.root.ask(RootStatement.DATABASES())
        return frozenset(DatabaseName(line) for line in found.splitlines())

    async def users(self) -> frozenset[UserName]:
        found = await self.root.ask(RootStatement.USERS())
        return frozenset(UserName(line) for line in found.splitlines())

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        """The sizes of the databases, from their files, since every table has its own file: if MariaDB were asked, it
        would open each of them."""
        return await trio.to_thread.run_sync(lambda: dict(_sizes(self._instance.data, names)))

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        """Dumps as the owner, who sees everything except routines of the site's users: their definitions come first,
        since views may call them. It reads in one transaction, and locks nothing for long."""
        routines = self.root.reading(RootStatement.ROUTINES(schema=name))
        async with self.owners.session(name) as session:
            command = (*(DUMP, *session.login, *DUMP_OPTIONS, "--triggers", "--events", "--", checked(name)),)
            await run(
                dump_command(file, DUMP_MARKER, routines, command),
                seconds=DUMP_SECONDS,
                environment=session.environment,
            )

    async def look(self, source: Path | SiteFile, account: SiteAccount, run: RunProgram) -> None:
        command = await load_command(self._folders, self._instance.launcher, "mariadb", source, account, None)
        await run(command, seconds=LOOK_SECONDS, stdin=source if isinstance(source, Path) else None)

    async def load(
        self,
        name: DatabaseName,
        source: Path | SiteFile,
        account: SiteAccount,
        run: RunProgram,
        *,
        rows: bool = False,
    ) -> None:
        async with self.owners.session(name) as session:
            client = (
                *(CLIENT, *session.login, "--sandbox", "--batch"),
                *("--default-character-set=utf8mb4", "--max-allowed-packet=64M", f"--database={name}"),
            )
            launcher = self._instance.launcher
            command = await load_command(self._folders, launcher, "mariadb", source, account, client, rows=rows)
            # These variables disable the client's editor.
            environment = {**session.environment, "EDITOR": "/bin/false", "VISUAL": "/bin/false"}
            stdin = source if isinstance(source, Path) else None
            await run(command, seconds=LOAD_SECONDS, environment=environment, stdin=stdin)

    async def _disconnect(self, name: UserName) -> None:
        await self.root.ask(RootStatement.DISCONNECT(account=checked(name)))

    def _set_up(self, data: Path) -> Program:
        return Program(
            (
                *(_SET_UP, "--no-defaults", f"--user={ACCOUNT}", f"--datadir={data}"),
                *("--auth-root-authentication-method=socket", "--auth-root-socket-user=root"),
                *("--skip-test-db", "--skip-name-resolve"),
            )
        )


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
        return 0  # The table was dropped meanwhile.
