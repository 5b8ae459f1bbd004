"""PostgreSQL as the panel runs it for sites: a Unix socket and nothing else, `postgres` known by who connects (peer).

Roles of a database `s1001_shop`:

    owner_s1001_shop    owns it and all that is in it; logs in for a dump or a load only
    reader_s1001_shop   may read all that its owner makes
    s1001_ada           a user: a member of the one or of the other

A user with full access works as the owner (`ALTER ROLE ... IN DATABASE ... SET role`), so that what one makes the
others can change. Nobody else can connect: CONNECT is revoked from PUBLIC.

Customers own their databases, and may change how sessions begin there. A session of ours begins with settings of its
own (`PGOPTIONS`), which nothing in a database changes, and never calls what customers have made.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.databases.instance import Instance, ask_client
from svc_actors.host.databases.names import DatabaseName, UserName, checked, owner_of, prefix_of
from svc_actors.host.databases.passwords import new_password, scram_verifier
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

SERVICE: Final = ServiceName("postgresql")
ACCOUNT: Final = "postgres"
"""Of Debian's package."""
VERSION: Final = 15
_PROGRAMS: Final = Path(f"/usr/lib/postgresql/{VERSION}/bin")
_MARKER: Final = "-- PostgreSQL database dump complete"
CONNECTIONS: Final = 20
"""Of all users of one site at a time; each is a process."""
_OWNERS: Final = 5
"""Connections of the panel's own to one database, for dumps and loads."""
_RESERVED: Final = 10
"""That nobody but a superuser, who is the panel, is given."""
_OPTIONS: Final = (
    # The last: a failing statement is written to the log with all of it, a password's verifier among it.
    "-c search_path=pg_catalog -c role=none -c default_transaction_read_only=off -c row_security=off "
    "-c log_min_error_statement=panic -c client_min_messages=warning"
)
_PEER: Final = "svc"
"""The map of pg_ident.conf."""


class Postgres:
    """A PostgreSQL in a folder of its own."""

    def __init__(self, folders: HostFolders, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._folder = folders.databases / "postgres"
        self._sockets = folders.postgres_sockets
        self._instance = Instance(
            self._folder, self._sockets, ACCOUNT, launcher, self.service, self._set_up, self.probe
        )

    @property
    def socket(self) -> Path:
        return self._sockets

    @property
    def exists(self) -> bool:
        return self._instance.exists

    @property
    def connections(self) -> int:
        return CONNECTIONS

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
            # Twenty sites with all of theirs, and what the panel itself asks meanwhile.
            "max_connections": str(20 * CONNECTIONS + 50),
            "superuser_reserved_connections": str(_RESERVED),
            "shared_buffers": "48MB",
            "jit": "off",
            "log_timezone": "UTC",
            "timezone": "UTC",
        }
        return Service(
            name=SERVICE,
            command=(
                str(_PROGRAMS / "postgres"),
                *("-D", str(instance.data)),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
            ),
            user=ACCOUNT,
            group=ACCOUNT,
            environment={"LANG": "C.UTF-8"},
            log=instance.log,
            # Sessions are ended, and what they were doing is rolled back.
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
        await self._ask("SELECT 1")

    async def create_database(self, name: DatabaseName) -> None:
        owner, reader = owner_of(name), _reader_of(name)
        await self._ask(
            "REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC",
            *_create_role(owner, "NOLOGIN"),
            *_create_role(reader, "NOLOGIN"),
            f"SELECT 'CREATE DATABASE {name} OWNER {owner} TEMPLATE template0 ENCODING ''UTF8'' "
            f"LC_COLLATE ''C.UTF-8'' LC_CTYPE ''C.UTF-8'' CONNECTION LIMIT {CONNECTIONS + _OWNERS}' "
            f"WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{name}') \\gexec",
            f"REVOKE ALL ON DATABASE {name} FROM PUBLIC",
            f"GRANT CONNECT ON DATABASE {name} TO {reader}",
        )
        await self._ask(
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT USAGE ON SCHEMAS TO {reader}",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {reader}",
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON SEQUENCES TO {reader}",
            database=name,
        )

    async def empty_database(self, name: DatabaseName) -> None:
        await self._ask(f"DROP DATABASE IF EXISTS {checked(name)} WITH (FORCE)")
        await self.create_database(name)

    async def drop_database(self, name: DatabaseName) -> None:
        await self._ask(f"DROP DATABASE IF EXISTS {checked(name)} WITH (FORCE)")
        for role in (owner_of(name), _reader_of(name)):
            await self._drop_role(role, prefix_of(name))

    async def create_user(self, name: UserName, verifier: str, connections: int) -> None:
        if not verifier.startswith("SCRAM-SHA-256$") or "'" in verifier:
            raise ValueError("no password of PostgreSQL's is stored so")
        await self._ask(
            *_create_role(UserName(checked(name)), "NOLOGIN"),
            f"ALTER ROLE {name} LOGIN INHERIT CONNECTION LIMIT {connections:d} PASSWORD '{verifier}'",
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
        # What it has made itself becomes its databases', before it loses its rights on them.
        for database in await self._databases_of(prefix_of(name)):
            await self._ask(f"REASSIGN OWNED BY {name} TO {owner_of(database)}", database=database)
        await self._ask(
            f"ALTER ROLE {name} RESET ALL",
            *(f"REVOKE {role} FROM {name}" for role in taken),
            *(f"GRANT {role} TO {name}" for role in sorted(wanted.keys() - there)),
            *(f"ALTER ROLE {name} IN DATABASE {each} RESET ALL" for each in await self._databases_of(prefix_of(name))),
            *(
                f"ALTER ROLE {name} IN DATABASE {database} SET role TO {role}"
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
        found = await self._ask(
            "SELECT pg_get_userbyid(roleid) FROM pg_auth_members "
            f"WHERE member = (SELECT oid FROM pg_roles WHERE rolname = '{checked(name)}')"
        )
        return {UserName(line) for line in found.splitlines()}

    async def databases(self) -> frozenset[DatabaseName]:
        return frozenset(await self._databases_of("s"))

    async def users(self) -> frozenset[UserName]:
        found = await self._ask("SELECT rolname FROM pg_roles WHERE rolname ~ '^s[0-9]+_'")
        return frozenset(UserName(line) for line in found.splitlines())

    async def sizes(self, names: Collection[DatabaseName]) -> dict[DatabaseName, int]:
        wanted = ", ".join(f"'{checked(name)}'" for name in names) or "NULL"
        found = await self._ask(f"SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname IN ({wanted})")
        rows = (line.split("\t") for line in found.splitlines())
        return {DatabaseName(name): int(size) for name, size in rows}

    async def dump(self, name: DatabaseName, file: Path, run: RunProgram) -> None:
        owner, password = await self._unlock(name)
        command = (
            *(str(_PROGRAMS / "pg_dump"), f"--host={self.socket}", f"--username={owner}", "--no-password"),
            *("--clean", "--if-exists", "--no-owner", "--no-privileges", "--encoding=UTF8", f"--dbname={name}"),
        )
        async with locked_afterwards(lambda: self._lock(owner)):
            await run(dump_command(file, _MARKER, command), seconds=DUMP_SECONDS, environment={"PGPASSWORD": password})

    async def load(
        self,
        name: DatabaseName,
        source: Path | SiteFile,
        account: SiteAccount,
        run: RunProgram,
        *,
        rows: bool = False,
    ) -> None:
        """In one transaction: all of it, or nothing."""
        owner, password = await self._unlock(name)
        client = (
            *(str(_PROGRAMS / "psql"), "--no-psqlrc", "--quiet", "--no-password", "--set=ON_ERROR_STOP=1"),
            *("--single-transaction", f"--host={self.socket}", f"--username={owner}", f"--dbname={name}", "--file=-"),
        )
        environment = {"PGPASSWORD": password, "PGOPTIONS": "-c client_min_messages=warning", "EDITOR": "/bin/false"}
        stdin = source if isinstance(source, Path) else None
        async with locked_afterwards(lambda: self._lock(owner)):
            launcher = self._instance.launcher
            command = await load_command(self._folders, launcher, "postgresql", source, account, client)
            await run(command, seconds=LOAD_SECONDS, environment=environment, stdin=stdin)

    async def _unlock(self, name: DatabaseName) -> tuple[UserName, str]:
        """What users have made by themselves is the owner's as well, as it dumps and replaces it."""
        owner, password = owner_of(name), new_password()
        members = await self._ask(
            "SELECT pg_get_userbyid(member) FROM pg_auth_members "
            f"WHERE roleid = (SELECT oid FROM pg_roles WHERE rolname = '{owner}')"
        )
        await self._ask(*(f"REASSIGN OWNED BY {user} TO {owner}" for user in members.splitlines()), database=name)
        await self._ask(f"ALTER ROLE {owner} LOGIN PASSWORD '{scram_verifier(password)}'")
        return owner, password

    async def _lock(self, owner: UserName) -> None:
        await self._ask(f"ALTER ROLE {owner} NOLOGIN PASSWORD NULL")

    async def _drop_role(self, role: UserName, prefix: str) -> None:
        """It may have objects and privileges in any database that it could connect to: those of its site."""
        if not await self._ask(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
            return
        await self._ask(f"ALTER ROLE {role} NOLOGIN")
        await self._disconnect(role)
        for database in await self._databases_of(prefix):
            owner = owner_of(database)
            await self._ask(
                *([f"REASSIGN OWNED BY {role} TO {owner}"] if role != owner else []),
                f"DROP OWNED BY {role}",
                database=database,
            )
        await self._ask(f"DROP ROLE IF EXISTS {role}")

    async def _disconnect(self, role: UserName) -> None:
        await self._ask(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'")

    async def _databases_of(self, prefix: str) -> list[DatabaseName]:
        found = await self._ask(
            f"SELECT datname FROM pg_database WHERE starts_with(datname, '{prefix}') AND datname ~ '^s[0-9]+_' "
            "ORDER BY datname"
        )
        return [DatabaseName(line) for line in found.splitlines()]

    async def _ask(self, *statements: str, database: str = "postgres") -> str:
        """Lines of tabulated values. Each statement is a transaction of its own."""
        command = (
            *(str(_PROGRAMS / "psql"), "--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--no-password"),
            *("--field-separator=\t", "--set=ON_ERROR_STOP=1", f"--host={self.socket}", "--username=postgres"),
            *(f"--dbname={database}", "--file=-"),
        )
        if not statements:
            return ""
        ends = (statement if statement.endswith("\\gexec") else f"{statement};" for statement in statements)
        return await ask_client(command, "\n".join(ends) + "\n", {"PGOPTIONS": _OPTIONS})

    def _write_authentication(self) -> None:
        """Read anew by PostgreSQL when it starts; they never change."""
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


def _create_role(role: UserName, options: str) -> Iterable[str]:
    yield (
        f"SELECT 'CREATE ROLE {role} {options}' "
        f"WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') \\gexec"
    )
