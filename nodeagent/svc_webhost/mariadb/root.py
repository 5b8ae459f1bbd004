"""The only access to MariaDB's administrator, with all statements that it runs.

Customers may replace a table by a view at any moment, and a view calls their code with the rights of its reader: for
root that is every database of the server. So root never evaluates a customer's object: it creates and drops whole
databases and accounts, and reads the server's own definition tables. All reads and writes in a database are done as its
owner (`svc_webhost.databases.owners`).

`RootStatement` is closed: `Root` runs nothing else, so a new statement must be added here, where a test checks what it
reads. Rejected: information_schema.TABLES, COLUMNS and the like, which open tables and views with the caller's rights.

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
from svc_webhost.databases.server import Access

CLIENT: Final = "/usr/bin/mariadb"
_ACCOUNT: Final = re.compile(r"(?:owner_)?(s[1-9][0-9]{0,14}_.+)")
_VERIFIER: Final = re.compile(r"\*[0-9A-Fa-f]{40}")
_PRIVILEGES: Final = {Access.FULL: "ALL PRIVILEGES", Access.READ_ONLY: "SELECT, SHOW VIEW"}
_PLACE: Final = re.compile(r"\{([a-z]+)\}")


class RootStatement(Enum):
    """`_BINDERS` binds the words in braces. None of them stands for a table, a view or a routine of a database."""

    PROBE = "SELECT 1"
    CREATE_DATABASE = "CREATE DATABASE IF NOT EXISTS {database}"
    # Foreign keys of the site's other databases may refer to tables of the dropped one. They are ignored: the deletion
    # was ordered, and a site's databases may be dropped in any order.
    WITHOUT_FOREIGN_KEYS = "SET SESSION foreign_key_checks = 0"
    DROP_DATABASE = "DROP DATABASE IF EXISTS {database}"
    DATABASES = (
        "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA "
        "WHERE SCHEMA_NAME NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')"
    )
    CREATE_OWNER = (
        "CREATE USER IF NOT EXISTS {account} IDENTIFIED VIA mysql_native_password USING {verifier} ACCOUNT LOCK"
    )
    CREATE_USER = (
        "CREATE USER IF NOT EXISTS {account} IDENTIFIED VIA mysql_native_password USING {verifier} "
        "WITH MAX_USER_CONNECTIONS {number}"
    )
    UNLOCK = (
        "ALTER USER {account} IDENTIFIED VIA mysql_native_password USING {verifier} "
        "WITH MAX_USER_CONNECTIONS {number} ACCOUNT UNLOCK"
    )
    LOCK = "ALTER USER IF EXISTS {account} ACCOUNT LOCK"
    DROP_USER = "DROP USER IF EXISTS {account}"
    DISCONNECT = "KILL SOFT USER {account}"
    GRANT = "GRANT {privileges} ON {pattern}.* TO {account}"
    REVOKE = "REVOKE ALL PRIVILEGES ON {pattern}.* FROM {account}"
    GRANTED = "SELECT Db, Insert_priv FROM mysql.db WHERE User = {user} AND Host = 'localhost'"
    USERS = "SELECT User FROM mysql.global_priv WHERE User LIKE 's%\\_%'"
    FOREIGN_KEYS = (
        "SELECT FOR_NAME, REF_NAME FROM information_schema.INNODB_SYS_FOREIGN "
        "WHERE FOR_NAME LIKE {files} OR REF_NAME LIKE {files}"
    )
    # The output of SHOW CREATE for each routine, with the settings under which the routine was created. It is read from
    # the system table: an owner cannot see routines of a user of its site, and root does not have to parse them.
    ROUTINES = r"""SELECT CONCAT(
 '-- MariaDB dump of a routine\n',
 'SET character_set_client = ', character_set_client, ', collation_connection = ', collation_connection,
 ', sql_mode = ''', sql_mode, ''';\n',
 IF(db_collation = [collation], '', CONCAT('ALTER DATABASE COLLATE ', db_collation, ';\n')),
 'DROP ', type, ' IF EXISTS ', [name], ';\nDELIMITER ;;\n',
 'CREATE ', IF(`aggregate` = 'GROUP', 'AGGREGATE ', ''), type, ' ', [name],
 IF(type LIKE 'PACKAGE%', '', CONCAT('(', param_list, ')')),
 IF(type = 'FUNCTION', CONCAT(IF(FIND_IN_SET('ORACLE', sql_mode), ' RETURN ', ' RETURNS '), returns), ''), '\n',
 IF(sql_data_access = 'CONTAINS_SQL', '', CONCAT(REPLACE(sql_data_access, '_', ' '), '\n')),
 IF(is_deterministic = 'YES', 'DETERMINISTIC\n', ''),
 IF(security_type = 'INVOKER', 'SQL SECURITY INVOKER\n', ''),
 IF(comment = '', '', CONCAT('COMMENT ''', REPLACE(IF(FIND_IN_SET('NO_BACKSLASH_ESCAPES', sql_mode), comment,
    REPLACE(comment, '\\', '\\\\')), '''', ''''''), '''\n')),
 body, '\n;;\nDELIMITER ;\n',
 IF(db_collation = [collation], '', CONCAT('ALTER DATABASE COLLATE ', [collation], ';\n')))
 FROM mysql.proc WHERE db = {schema} ORDER BY type, name""".replace(
        "[collation]", "(SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = {schema})"
    ).replace(
        "[name]",
        "IF(FIND_IN_SET('ANSI_QUOTES', sql_mode), CONCAT('\"', REPLACE(name, '\"', '\"\"'), '\"'), "
        "CONCAT('`', REPLACE(name, '`', '``'), '`'))",
    )
    # Sessions with a running statement come first, those with the longest-running statement at the top.
    SESSIONS = (
        "SELECT ID, USER, MEMORY_USED, COMMAND NOT IN ('Sleep', 'Daemon', 'Killed') "
        "FROM information_schema.PROCESSLIST ORDER BY 4 DESC, TIME_MS DESC"
    )
    END_SESSION = "KILL HARD CONNECTION {number}"

    def __call__(self, **values: str | int | Access) -> Statement:
        """Bind these values. ValueError for invalid ones."""
        return Statement(self, values)


@dataclass(frozen=True)
class Statement:
    """A statement of the list, with its values."""

    statement: RootStatement
    values: Mapping[str, str | int | Access]

    @property
    def sql(self) -> str:
        if set(_PLACE.findall(self.statement.value)) != set(self.values):
            raise ValueError(f"{self.statement.name} is not bound by {sorted(self.values)}")
        return _PLACE.sub(lambda found: _BINDERS[found[1]](self.values[found[1]]), self.statement.value)


@dataclass(frozen=True)
class Root:
    """MariaDB's administrator, who is authenticated as root by the socket. Raises `DatabaseError`."""

    socket: Path

    async def ask(self, *orders: Statement) -> str:
        """Lines of tab-separated values."""
        return await ask_client((*self._client, "--batch"), "".join(f"{order.sql};\n" for order in orders))

    def reading(self, order: Statement) -> tuple[str, ...]:
        """A command that writes the server's raw answer, of any size."""
        return (*self._client, "--batch", "--raw", "--quick", f"--execute={order.sql}")

    @property
    def _client(self) -> tuple[str, ...]:
        return (CLIENT, "--no-defaults", f"--socket={self.socket}", "--user=root", "--skip-column-names")


def account(name: str) -> str:
    found = _ACCOUNT.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no name of an account of a site")
    checked(found[1])
    return f"`{name}`@`localhost`"


def pattern(name: str) -> str:
    """The name as a pattern for GRANT, with `_` escaped, which would match any character."""
    escaped = checked(name).replace("_", r"\_")
    return f"`{escaped}`"


def quoted(name: DatabaseName | str) -> str:
    return f"`{checked(name)}`"


def _files(name: str) -> str:
    """A LIKE pattern for all tables of the database, in InnoDB's naming."""
    escaped = checked(name).replace("_", r"\_")
    return f"'{escaped}/%'"


def _verifier(text: str) -> str:
    if not _VERIFIER.fullmatch(text):
        raise ValueError("not the stored form of a password in MariaDB")
    return f"'{text}'"


_BINDERS: Final[Mapping[str, Callable[[str | int | Access], str]]] = {
    "database": lambda value: quoted(str(value)),
    "schema": lambda value: f"'{checked(str(value))}'",
    "files": lambda value: _files(str(value)),
    "pattern": lambda value: pattern(str(value)),
    "account": lambda value: account(str(value)),
    "user": lambda value: f"'{checked(str(value))}'",
    "verifier": lambda value: _verifier(str(value)),
    "number": lambda value: f"{int(value):d}",
    "privileges": lambda value: _PRIVILEGES[Access(str(value))],
}
