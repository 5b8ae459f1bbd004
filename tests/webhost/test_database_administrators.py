"""Nothing that a customer has made is evaluated by an engine's administrator: the lists of what they run, walked."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import svc
import svc_actors
import svc_http
import svc_nodeagent
import svc_webhost
from svc_webhost.mariadb import root
from svc_webhost.mariadb.root import RootStatement
from svc_webhost.postgres import superuser
from svc_webhost.postgres.superuser import Superuser, SuperuserStatement

SOURCES = [Path(package.__path__[0]) for package in (svc, svc_actors, svc_http, svc_nodeagent, svc_webhost)]
DEFINITIONS = {
    "mysql.db",
    "mysql.global_priv",
    "mysql.proc",
    "information_schema.SCHEMATA",
    "information_schema.INNODB_SYS_FOREIGN",
    "information_schema.PROCESSLIST",
}
"""The server's own tables, whose rows are made without opening a table, view or routine of a database."""
ROOT_VERBS = {
    *("CREATE DATABASE", "DROP DATABASE", "CREATE USER", "ALTER USER", "DROP USER"),
    *("GRANT {privileges}", "REVOKE ALL", "KILL SOFT", "KILL HARD"),
    "SET SESSION",  # Of its own session, which ends with what it was asked.
}
OWNERSHIP = re.compile(r"(ALTER DEFAULT PRIVILEGES FOR ROLE|REASSIGN OWNED BY|DROP OWNED BY) \{\w+\}[ A-Za-z{}]*")
"""Of PostgreSQL: what changes owners and privileges alone, or drops, and evaluates nothing."""
CATALOGUES = {"pg_roles", "pg_database", "pg_auth_members", "pg_stat_activity", "pg_shdepend", "pg_locks"}


def read_from(sql: str) -> set[str]:
    return set(re.findall(r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|CALL|CHECKSUM|VIEW)\s+([A-Za-z_][\w.]*)", sql))


@pytest.mark.parametrize("statement", RootStatement)
def test_root_of_mariadb_reads_definitions_only(statement: RootStatement) -> None:
    sql = statement.value
    if sql.startswith("SELECT"):
        assert read_from(sql) <= DEFINITIONS
        assert ";" not in re.sub(r"'(?:''|[^'])*'", "", sql)  # One statement.
    else:
        assert " ".join(sql.split()[:2]) in ROOT_VERBS
        assert read_from(sql) <= {"{account}"}
    assert set(re.findall(r"\{(\w+)\}", sql)) <= root._BINDERS.keys()


@pytest.mark.parametrize("statement", SuperuserStatement)
def test_the_superuser_of_postgresql_changes_owners_alone_in_a_database(statement: SuperuserStatement) -> None:
    sql = statement.value
    if statement.name.startswith("IN_DATABASE"):
        assert OWNERSHIP.fullmatch(sql)
    elif sql.startswith("SELECT"):
        assert read_from(sql) <= CATALOGUES
    assert set(re.findall(r"\{(\w+)\}", sql)) <= superuser._BINDERS.keys()


@pytest.mark.parametrize("statement", SuperuserStatement)
async def test_a_question_is_never_asked_in_a_database_of_a_customer(statement: SuperuserStatement) -> None:
    client = Superuser(Path("/nonexistent/psql"), Path("/nonexistent"))
    inside = statement.name.startswith("IN_DATABASE")

    with pytest.raises(ValueError, match="does not run in"):
        await client.ask(statement(), database=None if inside else "s1001_shop")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hostile", ["s1_a; DROP TABLE x", "s1_a`", "s1_a'", "mysql", "", "S1_a", "s1_a\n", "root", "owner_root"]
)
@pytest.mark.parametrize("binders", [root._BINDERS, superuser._BINDERS], ids=["mariadb", "postgresql"])
def test_no_value_ends_the_name_that_it_stands_for(binders: dict[str, object], hostile: str) -> None:
    for binder in binders.values():
        with pytest.raises(ValueError, match=r".*"):
            binder(hostile)  # type: ignore[operator]


def constants(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_nothing_else_connects_as_an_administrator() -> None:
    """The account, the client program, and what runs a client, in all sources."""
    connecting, running = set(), set()
    for package, file in ((folder, path) for folder in SOURCES for path in folder.rglob("*.py")):
        text = file.read_text()
        if "--user" not in text and "ask_client" not in text:
            continue
        tree, name = ast.parse(text), str(file.relative_to(package.parent))
        if any(re.search(r"--user(name)?=(root|postgres)$", text) for text in constants(tree)):
            connecting.add(name)
        if any(isinstance(node, ast.Name) and node.id == "ask_client" for node in ast.walk(tree)):
            running.add(name)

    administrators = {"svc_webhost/mariadb/root.py", "svc_webhost/postgres/superuser.py"}
    initdb = "svc_webhost/postgres/server.py"
    assert connecting == {*administrators, initdb}
    assert running == {*administrators, "svc_webhost/mariadb/owner.py"}
