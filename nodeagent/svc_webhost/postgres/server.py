"""PostgreSQL as the panel runs it for sites: on a Unix socket only, with `postgres` authenticated by the connecting
account (peer).

Roles of a database `s1001_shop`:

    owner_s1001_shop    owns it and all that is in it; logs in for a dump or a load only
    reader_s1001_shop   may read all that its owner creates
    s1001_ada           a user: a member of the one or of the other

A user with full access works as the owner (`ALTER ROLE ... IN DATABASE ... SET role`), so that users can change each
other's objects. Nobody else can connect: CONNECT is revoked from PUBLIC.

Customers own their databases, and may set defaults for sessions there. The panel's sessions start with settings of
their own (`PGOPTIONS`), which nothing in a database changes, and never call customers' objects (`superuser`).
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.databases.instance import Instance
from svc_webhost.databases.memory import (
    OWNER_BYTES,
    SESSION_BYTES,
    SHARE_BYTES,
    SITE_BYTES,
    Session,
    most_in_group,
    resident,
    to_end,
)
from svc_webhost.databases.names import DatabaseName, UserName, checked, owner_of, prefix_of
from svc_webhost.databases.owners import CONNECTIONS as OWNERS_CONNECTIONS
from svc_webhost.databases.owners import Owners
from svc_webhost.databases.passwords import scram_verifier
from svc_webhost.databases.server import CONNECTIONS, Access, DatabaseError, EngineKind, RunProgram, SiteFile
from svc_webhost.databases.transfer import (
    DUMP_SECONDS,
    LOAD_SECONDS,
    LOOK_SECONDS,
    dump_command,
    load_command,
)
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Limits, Service, ServiceName, SiteLauncher
from svc_webhost.postgres.sessions import WAITING, files_kib, keep_memory_limits, sessions_of
from svc_webhost.postgres.superuser import Statement, Superuser
from svc_webhost.postgres.superuser import SuperuserStatement as Do
from svc_webhost.programs import Program

SERVICE: Final = ServiceName("postgresql")
ACCOUNT: Final = "postgres"
"""The account that Debian's package creates."""
VERSION: Final = 15
_PROGRAMS: Final = Path(f"/usr/lib/postgresql/{VERSION}/bin")
PSQL: Final = _PROGRAMS / "psql"
_MARKER: Final = "-- PostgreSQL database dump complete"
_OPTIONS: Final = f"-c statement_timeout=0 {WAITING}"
"""Overrides what the database's owner has set: pg_dump and dumps do so themselves, but not before a first statement."""
_SHARES: Final = CONNECTIONS[EngineKind.POSTGRESQL]
_OWN_BYTES: Final = 512 << 20
"""Memory in addition to that of the sessions: 48 MiB of buffers, which processes share, and cached files."""
_RESERVED: Final = 10
"""Connections that are reserved for superusers, which means for the panel."""
_MOST_NUMBERS: Final = 500_000_000
"""The age of a database in transactions from which on long sessions are ended: PostgreSQL vacuums by itself from 200
million on, and stops at two billion."""
_NUMBERS_SECONDS: Final = 600
"""How long a session may last in a database of that age."""
_NUMBERS_LOOK_SECONDS: Final = 60.0
_PEER: Final = "svc"
"""The name of the map in pg_ident.conf."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.databases")


class Postgres:
    """A PostgreSQL in a folder of its own."""

    def __init__(self, folders: HostFolders, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._folder = folders.databases / "postgres"
        self._sockets = folders.postgres_sockets
        self._superuser = Superuser(PSQL, self._sockets)
        self._owners = Owners(self._unlock, self._lock)
        self._numbers_looked_at = float("-inf")
        self._instance = Instance(
            self._folder, self._sockets, ACCOUNT, launcher, self.service, self._set_up, self.probe
        )

    @property
    def socket(self) -> Path:
        return self._sockets

    @property
    def exists(self) -> bool:
        return self._instance.exists

    def verifier(self, password: str) -> str:
        return scram_verifier(password)

    def service(self) -> Service:
        instance = self._instance
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket),
            "hba_file": str(self._folder / "pg_hba.conf"),
            "ident_file": str(self._folder / "pg_ident.conf"),
            "password_encryption": "scram-sha-256",
            "max_connections": str(_SHARES.server),
            # The limit applies to each process; only a superuser may change it.
            "temp_file_limit": "1GB",
            "superuser_reserved_connections": str(_RESERVED),
            "shared_buffers": "48MB",
            "jit": "off",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        return Service(
            name=SERVICE,
            command=(
                # The limit applies to each session's process: an allocation beyond it fails its statement (53200). The
                # second number is the limit for the panel's own sessions (`room`).
                *("/usr/bin/prlimit", f"--data={SESSION_BYTES}:{OWNER_BYTES}", str(_PROGRAMS / "postgres")),
                *("-D", str(instance.data)),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ),
            user=ACCOUNT,
            group=ACCOUNT,
            environment={"LANG": "C.UTF-8"},
            log=instance.log,
            # The limit for the whole server, including parallel queries and files in memory.
            limits=Limits(memory_mib=(SHARE_BYTES + _OWN_BYTES) >> 20),
            # At SIGINT the server ends sessions and rolls their transactions back.
            stop_signal=signal.SIGINT,
            stop_seconds=120.0,
            umask=0o077,
        )

    async def ensure(self) -> None:
        await trio.to_thread.run_sync(self._write_authentication)
        await self._instance.ensure()

    async def stop(self) -> None:
        await self._instance.stop()

    async def probe(self) -> None:
        await self._superuser.ask(Do.PROBE())

    async def end_greedy(self, site_most: int = SITE_BYTES) -> list[Session]:
        ended = await trio.to_thread.run_sync(self._greedy, site_most)
        if ended:
            await self._superuser.ask(*(Do.END_SESSION(number=session.number) for session in ended))
        now = trio.current_time()
        if now >= self._numbers_looked_at + _NUMBERS_LOOK_SECONDS and (await self._running())[0]:
            self._numbers_looked_at = now
            await self.end_who_keeps_numbers()
        return ended

    async def sessions(self) -> list[Session]:
        pid, _ = await self._running()
        return await trio.to_thread.run_sync(sessions_of, pid) if pid else []

    async def end_who_keeps_numbers(self) -> None:
        """End sessions that hold back the reuse of transaction ids, before the server runs out of them."""
        found = await self._superuser.ask(Do.KEEPING_NUMBERS(number=_MOST_NUMBERS, seconds=_NUMBERS_SECONDS))
        for line in found.splitlines():
            pid, user = line.split("\t")
            await self._superuser.ask(Do.END_SESSION(number=int(pid)))
            log.warning("databases.numbers_kept", user=user)

    async def _running(self) -> tuple[int, int]:
        return await trio.to_thread.run_sync(self._resident)

    def _greedy(self, site_most: int) -> list[Session]:
        pid, _ = self._resident()
        sessions = sessions_of(pid) if pid else []
        return to_end(sessions, site_most, most_in_group(sessions, pid))

    def _resident(self) -> tuple[int, int]:
        return resident(self._instance.data / "postmaster.pid")

    async def create_database(self, name: DatabaseName) -> None:
        owner, reader = owner_of(name), _reader_of(name)
        await self._superuser.ask(
            Do.CLOSE_OWN_DATABASES(),
            Do.CREATE_ROLE(role=owner),
            Do.CREATE_ROLE(role=reader),
            Do.CREATE_DATABASE(database=name, owner=owner, number=_SHARES.site + OWNERS_CONNECTIONS),
            Do.CLOSE_DATABASE(database=name),
            Do.LET_CONNECT(database=name, role=reader),
        )
        await self._within(
            name,
            Do.IN_DATABASE_READ_SCHEMAS(owner=owner, role=reader),
            Do.IN_DATABASE_READ_TABLES(owner=owner, role=reader),
            Do.IN_DATABASE_READ_SEQUENCES(owner=owner, role=reader),
        )

    async def empty_database(self, name: DatabaseName) -> None:
        await self._superuser.ask(Do.OPEN_DATABASE(database=name), Do.DROP_DATABASE(database=name))
        await self.create_database(name)

    async def drop_database(self, name: DatabaseName) -> None:
        await self._superuser.ask(Do.OPEN_DATABASE(database=name), Do.DROP_DATABASE(database=name))
        for role in (owner_of(name), _reader_of(name)):
            await self._drop_role(role, prefix_of(name))

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        await self._superuser.ask(
            Do.CREATE_ROLE(role=checked(name)), Do.SET_USER(role=checked(name), number=connections, verifier=verifier)
        )

    async def drop_user(self, name: UserName) -> None:
        await self._drop_role(UserName(checked(name)), prefix_of(name))

    async def grant(self, name: UserName, access: Mapping[DatabaseName, Access]) -> None:
        there = await self._roles_of(name)
        wanted = {
            owner_of(database) if allowed is Access.FULL else _reader_of(database): database
            for database, allowed in access.items()
        }
        taken = sorted(there - wanted.keys())
        of_the_site = await self._databases_of(prefix_of(name))
        # The role's own objects are given to the owners of its databases before it loses its rights on them.
        for database in of_the_site:
            await self._within(database, Do.IN_DATABASE_REASSIGN(role=name, owner=owner_of(database)))
        await self._superuser.ask(
            Do.RESET_ROLE(role=name),
            *(Do.REVOKE(granted=role, role=name) for role in taken),
            *(Do.GRANT(granted=role, role=name) for role in sorted(wanted.keys() - there)),
            *(Do.RESET_IN_DATABASE(role=name, database=each) for each in of_the_site),
            *(
                Do.WORK_AS_OWNER(role=name, database=database, owner=role)
                for role, database in sorted(wanted.items())
                if access[database] is Access.FULL
            ),
        )
        if taken:
            await self._disconnect(name)

    async def granted(self, name: UserName) -> dict[DatabaseName, Access]:
        roles = await self._roles_of(name)
        found: dict[DatabaseName, Access] = {}
        for database in await self._databases_of(prefix_of(name)):
            if owner_of(database) in roles:
                found[database] = Access.FULL
            elif _reader_of(database) in roles:
                found[database] = Access.READ_ONLY
        return found

    async def _roles_of(self, name: UserName) -> set[UserName]:
        """Owners and readers of databases whose rights the user has."""
        found = await self._superuser.ask(Do.ROLES_OF(role=checked(name)))
        return {UserName(line) for line in found.splitlines()}

    async def databases(self) -> frozenset[DatabaseName]:
        return frozenset(await self._databases_of("s"))

    async def users(self) -> frozenset[UserName]:
        return frozenset(UserName(line) for line in (await self._superuser.ask(Do.USERS())).splitlines())

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        found = await self._superuser.ask(*(Do.SIZE(database=name) for name in names))
        rows = (line.split("\t") for line in found.splitlines())
        return {DatabaseName(name): int(size) for name, size in rows}

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        owner = owner_of(name)
        command = (
            *(str(_PROGRAMS / "pg_dump"), f"--host={self.socket}", f"--username={owner}", "--no-password"),
            *("--clean", "--if-exists", "--no-owner", "--no-privileges", "--encoding=UTF8", f"--dbname={name}"),
        )
        async with self._opened(name) as password:
            environment = {"PGPASSWORD": password, "PGOPTIONS": _OPTIONS}
            await run(dump_command(file, _MARKER, command), seconds=DUMP_SECONDS, environment=environment)

    async def look(self, source: Path | SiteFile, account: SiteAccount, run: RunProgram) -> None:
        command = await load_command(self._folders, self._instance.launcher, "postgresql", source, account, None)
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
        """Load in one transaction: either all of it, or nothing."""
        owner = owner_of(name)
        client = (
            *(str(PSQL), "--no-psqlrc", "--quiet", "--no-password", "--set=ON_ERROR_STOP=1"),
            *("--single-transaction", f"--host={self.socket}", f"--username={owner}", f"--dbname={name}", "--file=-"),
        )
        stdin = source if isinstance(source, Path) else None
        async with self._opened(name) as password:
            environment = {
                "PGPASSWORD": password,
                "PGOPTIONS": f"-c client_min_messages=warning {_OPTIONS}",
                "EDITOR": "/bin/false",
            }
            launcher = self._instance.launcher
            command = await load_command(self._folders, launcher, "postgresql", source, account, client)
            await run(command, seconds=LOAD_SECONDS, environment=environment, stdin=stdin)

    @asynccontextmanager
    async def _opened(self, name: DatabaseName) -> AsyncIterator[str]:
        """Objects that users have created are given to the owner, since the owner dumps and replaces them."""
        owner = owner_of(name)
        members = await self._superuser.ask(Do.MEMBERS_OF(role=owner))
        await self._within(name, *(Do.IN_DATABASE_REASSIGN(role=user, owner=owner) for user in members.splitlines()))
        async with self._owners.opened(name) as password:
            postmaster, _ = await self._running()
            failure: Exception | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_memory_limits, postmaster, ACCOUNT, owner)
                try:
                    yield password
                except Exception as error:  # noqa: BLE001 - raised below, whatever it is
                    failure = error
                nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure

    async def _unlock(self, name: DatabaseName, password: str) -> None:
        verifier = scram_verifier(password)
        owner, files = owner_of(name), await trio.to_thread.run_sync(files_kib, self._instance.data)
        await self._superuser.ask(
            Do.GIVE_FILES(role=owner, number=files),
            Do.UNLOCK(role=owner, number=OWNERS_CONNECTIONS, verifier=verifier),
        )

    async def _lock(self, name: DatabaseName) -> None:
        owner = owner_of(name)
        await self._superuser.ask(Do.LOCK(role=owner), Do.DISCONNECT(role=owner), Do.TAKE_FILES(role=owner))

    async def _within(self, database: DatabaseName, *orders: Statement) -> None:
        """Run in a customer's database, even if the database's owner allows nobody to connect."""
        await self._superuser.ask(Do.OPEN_DATABASE(database=database))
        await self._superuser.ask(*orders, database=database)

    async def _drop_role(self, role: UserName, prefix: str) -> None:
        """Drop a role with its objects and its privileges in all databases. If another customer has granted it
        something and prevents the revocation, the role stays, but nobody can use it."""
        if not await self._superuser.ask(Do.EXISTS(role=role)):
            return
        await self._superuser.ask(Do.LOCK(role=role))
        await self._disconnect(role)
        for line in (await self._superuser.ask(Do.DATABASES_WITH(role=role))).splitlines():
            database = DatabaseName(line)
            owner, of_site = owner_of(database), prefix_of(database) == prefix
            # Reassigning also moves whole databases, so it is done only within the site: a database must never get an
            # owner of another customer.
            given = [Do.IN_DATABASE_REASSIGN(role=role, owner=owner)] if of_site and role != owner else []
            try:
                await self._once_free(
                    partial(self._within, database, *given, Do.IN_DATABASE_DROP_OWNED(role=role)),
                    Do.END_SESSIONS_IN(database=database),
                )
            except DatabaseError:
                if of_site:
                    raise
        try:
            await self._once_free(partial(self._superuser.ask, Do.DROP_ROLE(role=role)), Do.END_SESSIONS_AT(role=role))
        except DatabaseError as error:
            log.warning("databases.role_kept", role=role, error=str(error))

    async def _once_free(self, work: Callable[[], Awaitable[object]], end_holders: Statement) -> None:
        """On a conflict, end the sessions that hold the locks and try once more."""
        try:
            await work()
        except DatabaseError:
            await self._superuser.ask(end_holders)
            await work()

    async def _disconnect(self, role: UserName) -> None:
        await self._superuser.ask(Do.DISCONNECT(role=role))

    async def _databases_of(self, prefix: str) -> list[DatabaseName]:
        found = await self._superuser.ask(Do.DATABASES(prefix=prefix))
        return [DatabaseName(line) for line in found.splitlines()]

    def _write_authentication(self) -> None:
        """PostgreSQL reads them at its start; they never change."""
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        for name, text in (
            ("pg_hba.conf", f"local all postgres peer map={_PEER}\nlocal all all scram-sha-256\n"),
            ("pg_ident.conf", f"{_PEER} root postgres\n"),
        ):
            path = self._folder / name
            if not path.exists() or path.read_text() != text:
                new = path.with_suffix(".new")
                new.write_text(text)
                new.chmod(0o644)
                new.rename(path)

    def _set_up(self, data: Path) -> Program:
        return Program(
            (
                *("/usr/bin/setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--init-groups", "--no-new-privs"),
                *(str(_PROGRAMS / "initdb"), f"--pgdata={data}", "--username=postgres", "--auth=reject"),
                *("--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums", "--no-instructions", "--no-sync"),
            )
        )


def _reader_of(name: DatabaseName) -> UserName:
    return UserName(f"reader_{checked(name)}")
