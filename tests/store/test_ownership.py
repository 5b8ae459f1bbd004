"""Each table, or group of a table's columns, is written by its owner alone: docs/actors.md says who that is.

All SQL of the tree is read, and compared with the table "Who writes what" of that page. A table that is not on the page
is written by one module, whichever that is. Retention may remove rows of any table, and change none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "actors.md"
PACKAGES = tuple(
    ROOT / folder
    for folder in ("actors/svc_actors", "svc", "http/svc_http", "console/svc_console", "nodeagent/svc_webhost")
)
HOLE = "\N{REPLACEMENT CHARACTER}"
"""Where a string has something of another expression in it."""

WRITE = re.compile(rf'\b(INSERT INTO|UPDATE|DELETE FROM)\s+(?:ONLY\s+)?"?([a-z_{HOLE}]+)"?(?=[\s(]|$)')
SET = re.compile(r"\bSET\b(.*)", re.DOTALL)


@dataclass(frozen=True)
class Write:
    """One statement that writes. `columns` are those that an UPDATE sets; empty for a whole row."""

    module: str
    line: int
    table: str
    columns: frozenset[str]
    removes: bool

    @property
    def by_retention(self) -> bool:
        return self.removes and self.module.rpartition(".")[2] in ("retention", "removal")


@dataclass(frozen=True)
class Owned:
    """One row of the page: `columns` empty for all that no other row of the table names."""

    table: str
    columns: frozenset[str]
    owners: tuple[str, ...]

    def by(self, module: str) -> bool:
        return any(module == owner or module.startswith(f"{owner}.") for owner in self.owners)


def owned() -> list[Owned]:
    section = PAGE.read_text().split("## Who writes what", 1)[1].split("\n## ", 1)[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `"):
            table, *columns = re.findall(r"`([a-z_]+)`", cells[0])
            rows.append(Owned(table, frozenset(columns), tuple(re.findall(r"`([a-z_.]+)`", cells[1]))))
    return rows


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


def set_columns(text: str) -> frozenset[str]:
    """The columns that the assignments of an UPDATE name: what stands before `=` at the depth of the statement."""
    columns, depth, word = set(), 0, ""
    for token in re.findall(r"[(),=]|\b(?:WHERE|FROM|RETURNING)\b|[^\s(),=]+", text):
        if token == "(":
            depth += 1
        elif token == ")":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and token in ("WHERE", "FROM", "RETURNING"):
            break
        elif depth == 0 and token == ",":
            word = ""
        elif depth == 0 and token == "=" and word:
            columns.add(word)
        elif depth == 0 and not word:
            word = token
    return frozenset(columns)


def writes_of(module: str, source: str) -> Iterator[Write]:
    for line, text in strings(ast.parse(source)):
        for found in WRITE.finditer(text):
            verb, table = found.groups()
            rest = text[found.end() :]
            if verb == "UPDATE" and (found.group(2) == "SET" or re.match(r"(OF|SKIP|NOWAIT)\b", rest.strip())):
                continue
            assignments = SET.search(rest) if verb == "UPDATE" else None
            if verb == "UPDATE" and assignments is None:
                continue  # A sentence, not a statement.
            columns = set_columns(assignments.group(1)) if assignments else frozenset()
            yield Write(module, line, table, columns, removes=verb == "DELETE FROM")


@cache
def writes() -> list[Write]:
    found: list[Write] = []
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
            found += writes_of(module, path.read_text())
    return found


def strangers(rows: list[Owned], found: list[Write]) -> list[str]:
    complaints = []
    first: dict[str, str] = {}
    for write in found:
        if write.by_retention:
            continue
        groups = [row for row in rows if row.table == write.table]
        if not groups and first.setdefault(write.table, write.module) == write.module and write.table != HOLE:
            continue
        named = [row for row in groups if row.columns & write.columns]
        rest = write.columns - frozenset().union(*(row.columns for row in named))
        if not write.columns or rest:
            named += [row for row in groups if not row.columns]
        if not named or not all(row.by(write.module) for row in named):
            columns = f" ({', '.join(sorted(write.columns))})" if write.columns else ""
            complaints.append(f"{write.module}:{write.line} writes {write.table}{columns}")
    return complaints


def test_every_table_is_written_by_its_owner_alone() -> None:
    found = writes()

    assert len(found) > 100, "the statements of the tree are not found any more"
    complaints = strangers(owned(), found)
    assert not complaints, "\n".join(complaints)


def test_the_page_names_no_writer_that_there_is_not() -> None:
    found = writes()

    for row in owned():
        writers = {write.module for write in found if write.table == row.table}
        for owner in row.owners:
            assert any(module == owner or module.startswith(f"{owner}.") for module in writers), (row.table, owner)


@pytest.mark.parametrize(
    ("sql", "table", "columns"),
    [
        ("UPDATE vms SET status = $1, built_at = (SELECT now()) WHERE id = $2", "vms", {"status", "built_at"}),
        ("WITH a AS (SELECT 1) UPDATE nodes SET capacity = coalesce($1, b) FROM a", "nodes", {"capacity"}),
        ("DELETE FROM allocations held USING vms", "allocations", set()),
        ("INSERT INTO tasks (op) VALUES ($1) ON CONFLICT DO NOTHING", "tasks", set()),
    ],
)
def test_a_statement_that_writes_is_found(sql: str, table: str, columns: set[str]) -> None:
    [write] = writes_of("somewhere", f"x = {sql!r}")

    assert write.table == table
    assert set(write.columns) == columns


@pytest.mark.parametrize(
    "sql", ["SELECT FROM vms WHERE id = $1 FOR UPDATE", "SELECT 1 FROM vms FOR NO KEY UPDATE OF vms", "SELECT 1"]
)
def test_a_lock_is_no_write(sql: str) -> None:
    assert list(writes_of("somewhere", f"x = {sql!r}")) == []


def test_of_a_table_that_is_not_on_the_page_a_second_writer_is_named() -> None:
    sql = repr("DELETE FROM things")

    complaints = strangers(
        [], [*writes_of("a.first", sql), *writes_of("a.second", sql), *writes_of("a.retention", sql)]
    )

    assert complaints == ["a.second:1 writes things"]


def test_a_writer_that_is_not_the_owner_is_named() -> None:
    rows = [Owned("vms", frozenset(), ("a.machine",)), Owned("vms", frozenset({"net_wanted"}), ("a.changes",))]

    sql = "UPDATE vms SET net_wanted = 1, status = $1"
    complaints = strangers(rows, [*writes_of("a.changes", repr(sql)), *writes_of("a.machine", repr(sql))])

    assert complaints == ["a.changes:1 writes vms (net_wanted, status)", "a.machine:1 writes vms (net_wanted, status)"]
