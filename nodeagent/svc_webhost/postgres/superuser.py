"""The only access to PostgreSQL's superuser, and all statements that it runs.

Customers own their databases. Any query there may call their functions, operators, casts, views and rules, with the
rights of the account that asks. So the superuser asks its questions in the database `postgres`, where no customer can
connect. In a customer's database it changes only owners and privileges, which evaluates nothing. All reading and
writing there works as the owner (`svc_webhost.databases.owners`).

`SuperuserStatement` is closed: `Superuser` runs nothing else. A new statement has to be added here, where
tests/webhost/test_database_administrators.py checks what it does and where it runs.

Rejected: to check a name before it is read, since tables and views change places in between; and databases that belong
to `postgres`, since their owners could neither set nor comment them, and dumps would need other rights.

Why: docs/decisions/0049-databases-of-sites.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from svc_webhost.databases.client import ask_client
from svc_webhost.databases.names import DatabaseName, checked

_OPTIONS: Final = " ".join(
    f"-c {setting}"
    for setting in (
        # The owner of a database can set defaults for sessions in it (ALTER DATABASE ... SET). The settings here
        # override them, so that a hostile search_path, role or timeout neither changes our statements nor ends them.
        *("search_path=pg_catalog", "role=none", "default_transaction_read_only=off", "row_security=off"),
        *("statement_timeout=0", "lock_timeout=30000", "idle_in_transaction_session_timeout=0"),
        *("idle_session_timeout=0", "default_tablespace=", "client_min_messages=warning"),
        # If an owner sets a library that does not exist here, each session would end when it starts.
        "local_preload_libraries=",
        # If a statement fails, it would be logged in full, including a password verifier in it.
        "log_min_error_statement=panic",
    )
)
_ROLE: Final = re.compile(r"(?:owner_|reader_)?(s[1-9][0-9]{0,14}_.+)")
_PREFIX: Final = re.compile(r"s(?:[1-9][0-9]{0,14}_)?")
_SCRAM: Final = re.compile(r"SCRAM-SHA-256\$[0-9]+:[A-Za-z0-9+/=]+\$[A-Za-z0-9+/=]+:[A-Za-z0-9+/=]+")
_PLACE: Final = re.compile(r"\{([a-z]+)\}")


class SuperuserStatement(Enum):
    """`_BINDERS` binds the words in braces. Statements named IN_DATABASE... run in a customer's database."""

    PROBE = "SELECT 1"
    CLOSE_OWN_DATABASES = "REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1 FROM PUBLIC"
    CREATE_ROLE = (
        "SELECT 'CREATE ROLE {role} NOLOGIN' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') \\gexec"
    )
    CREATE_DATABASE = (
        "SELECT 'CREATE DATABASE {database} OWNER {owner} TEMPLATE template0 ENCODING ''UTF8'' "
        "LC_COLLATE ''C.UTF-8'' LC_CTYPE ''C.UTF-8'' CONNECTION LIMIT {number}' "
        "WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = '{database}') \\gexec"
    )
    # An owner may have closed the database to everybody, even to the superuser, or made it a template, which cannot be
    # dropped. This reverses both.
    OPEN_DATABASE = (
        "SELECT 'ALTER DATABASE {database} WITH ALLOW_CONNECTIONS true IS_TEMPLATE false' WHERE EXISTS "
        "(SELECT FROM pg_database WHERE datname = '{database}' AND (datistemplate OR NOT datallowconn)) \\gexec"
    )
    CLOSE_DATABASE = "REVOKE ALL ON DATABASE {database} FROM PUBLIC"
    LET_CONNECT = "GRANT CONNECT ON DATABASE {database} TO {role}"
    IN_DATABASE_READ_SCHEMAS = "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT USAGE ON SCHEMAS TO {role}"
    IN_DATABASE_READ_TABLES = "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {role}"
    IN_DATABASE_READ_SEQUENCES = "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON SEQUENCES TO {role}"
    DROP_DATABASE = "DROP DATABASE IF EXISTS {database} WITH (FORCE)"
    SET_USER = "ALTER ROLE {role} LOGIN INHERIT CONNECTION LIMIT {number} PASSWORD '{verifier}'"
    UNLOCK = "ALTER ROLE {role} LOGIN CONNECTION LIMIT {number} PASSWORD '{verifier}'"
    GIVE_FILES = "ALTER ROLE {role} SET temp_file_limit = '{number}kB'"
    TAKE_FILES = "ALTER ROLE {role} RESET temp_file_limit"
    LOCK = "ALTER ROLE {role} NOLOGIN PASSWORD NULL"
    DROP_ROLE = "DROP ROLE IF EXISTS {role}"
    RESET_ROLE = "ALTER ROLE {role} RESET ALL"
    RESET_IN_DATABASE = "ALTER ROLE {role} IN DATABASE {database} RESET ALL"
    WORK_AS_OWNER = "ALTER ROLE {role} IN DATABASE {database} SET role TO {owner}"
    GRANT = "GRANT {granted} TO {role}"
    REVOKE = "REVOKE {granted} FROM {role}"
    DISCONNECT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
    END_SESSIONS_IN = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = '{database}' AND usename ~ '^(owner_)?s[0-9]+_'"
    )
    # An uncommitted grant holds a lock on the role that it is for, which prevents the role from being dropped: end the
    # sessions that hold such locks.
    END_SESSIONS_AT = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'object' AND pid <> pg_backend_pid() "
        "AND classid = 'pg_authid'::regclass AND objid = (SELECT oid FROM pg_roles WHERE rolname = '{role}')"
    )
    # All databases of a server share the transaction ids, and when these run out, the server refuses all changes. A
    # session with a lock, a snapshot or a temporary table prevents the ids of its database from being reused.
    KEEPING_NUMBERS = (
        "SELECT pid, usename FROM pg_stat_activity JOIN pg_database ON datid = pg_database.oid "
        "WHERE greatest(age(datfrozenxid), mxid_age(datminmxid)) > {number} "
        "AND backend_start < now() - make_interval(secs => {seconds}) AND usename ~ '^(owner_)?s[0-9]+_'"
    )
    END_SESSION = "SELECT pg_terminate_backend({number})"
    ROLES_OF = (
        "SELECT pg_get_userbyid(roleid) FROM pg_auth_members "
        "WHERE member = (SELECT oid FROM pg_roles WHERE rolname = '{role}')"
    )
    MEMBERS_OF = (
        "SELECT pg_get_userbyid(member) FROM pg_auth_members "
        "WHERE roleid = (SELECT oid FROM pg_roles WHERE rolname = '{role}')"
    )
    EXISTS = "SELECT 1 FROM pg_roles WHERE rolname = '{role}'"
    USERS = "SELECT rolname FROM pg_roles WHERE rolname ~ '^s[0-9]+_'"
    DATABASES = (
        "SELECT datname FROM pg_database WHERE starts_with(datname, '{prefix}') AND datname ~ '^s[0-9]+_' "
        "ORDER BY datname"
    )
    # Databases that contain objects of the role or grants to it. These may be other sites' databases: an owner may
    # grant to any role, even another customer's, and without revoking that the role could not be dropped.
    DATABASES_WITH = (
        "SELECT DISTINCT datname FROM pg_shdepend JOIN pg_database "
        "ON oid = CASE WHEN classid = 'pg_database'::regclass THEN objid ELSE dbid END "
        "WHERE refclassid = 'pg_authid'::regclass AND datname ~ '^s[0-9]+_' "
        "AND refobjid = (SELECT oid FROM pg_roles WHERE rolname = '{role}') ORDER BY datname"
    )
    SIZE = "SELECT datname, pg_database_size(oid) FROM pg_database WHERE datname = '{database}'"
    IN_DATABASE_REASSIGN = "REASSIGN OWNED BY {role} TO {owner}"
    IN_DATABASE_DROP_OWNED = "DROP OWNED BY {role}"

    def __call__(self, **values: str | int) -> Statement:
        """The statement with these values for its words."""
        return Statement(self, values)


@dataclass(frozen=True)
class Statement:
    """A statement of the list, and the values of its words."""

    statement: SuperuserStatement
    values: Mapping[str, str | int]

    @property
    def sql(self) -> str:
        """Raises ValueError for a value that no name or verifier of the panel can have."""
        if set(_PLACE.findall(self.statement.value)) != set(self.values):
            raise ValueError(f"{self.statement.name} is not bound by {sorted(self.values)}")
        text = _PLACE.sub(lambda found: _BINDERS[found[1]](self.values[found[1]]), self.statement.value)
        return text if text.endswith("\\gexec") else f"{text};"


@dataclass(frozen=True)
class Superuser:
    """Signs in by being root. Raises `DatabaseError`. `program` is psql, `socket` the folder of the server's socket."""

    program: Path
    socket: Path

    async def ask(self, *orders: Statement, database: DatabaseName | None = None) -> str:
        """Lines of tabulated values. Each statement is a transaction of its own. `database`: a customer's; statements
        that may not run there raise ValueError."""
        # Checked in both directions: an IN_DATABASE statement that is run without its customer's database would change
        # the database `postgres` itself.
        for order in orders:
            if order.statement.name.startswith("IN_DATABASE") is not (database is not None):
                raise ValueError(f"{order.statement.name} does not run in {database or 'the database of our own'}")
        if not orders:
            return ""
        command = (
            *(str(self.program), "--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--no-password"),
            *("--field-separator=\t", "--set=ON_ERROR_STOP=1", f"--host={self.socket}", "--username=postgres"),
            *(f"--dbname={'postgres' if database is None else checked(database)}", "--file=-"),
        )
        return await ask_client(command, "".join(f"{order.sql}\n" for order in orders), {"PGOPTIONS": _OPTIONS})


def _role(name: str) -> str:
    found = _ROLE.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no name of a role of a site")
    checked(found[1])
    return name


def _prefix(text: str) -> str:
    if not _PREFIX.fullmatch(text):
        raise ValueError(f"{text!r} is no prefix of a site")
    return text


def _verifier(text: str) -> str:
    if not _SCRAM.fullmatch(text):
        raise ValueError("not the stored form of a password in PostgreSQL")
    return text


_BINDERS: Final[Mapping[str, Callable[[str | int], str]]] = {
    "database": lambda value: checked(str(value)),
    "role": lambda value: _role(str(value)),
    "owner": lambda value: _role(str(value)),
    "granted": lambda value: _role(str(value)),
    "prefix": lambda value: _prefix(str(value)),
    "verifier": lambda value: _verifier(str(value)),
    "number": lambda value: f"{int(value):d}",
    "seconds": lambda value: f"{int(value):d}",
}
