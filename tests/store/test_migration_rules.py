"""Migrations expand: what the release before uses is there while it still runs (docs/upgrades.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

MIGRATIONS = Path(__file__).resolve().parents[2] / "actors" / "svc_actors" / "store" / "migrations"
MARKER = re.compile(r"^-- contract: unused since \d+\.\d+(\.\d+)?$", re.MULTILINE)
CONTRACTS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\bDROP\s+(TABLE|COLUMN|VIEW|TYPE)\b",
        r"\bDROP\s+(?!INDEX|TRIGGER|CONSTRAINT|FUNCTION|DEFAULT|NOT\s+NULL|IF\b|POLICY)(?!TABLE|COLUMN|VIEW|TYPE)\w+\s*(,|;|$)",
        r"\bRENAME\b",
        r"\bALTER\s+(COLUMN\s+)?\w+\s+(SET\s+DATA\s+)?TYPE\b",
        r"\bSET\s+NOT\s+NULL\b",
        r"\bADD\s+(COLUMN\s+)?\w+\s+(?!.*\bDEFAULT\b)[^,;]*\bNOT\s+NULL\b",
    )
]


def contracts_without_a_marker(sql: str) -> list[str]:
    """The statements that would break a release which still runs."""
    if MARKER.search(sql):
        return []
    plain = re.sub(r"--[^\n]*", "", sql)
    return [
        " ".join(statement.split()) for statement in plain.split(";") if any(c.search(statement) for c in CONTRACTS)
    ]


def test_no_migration_takes_away_what_the_release_before_uses() -> None:
    files = list(MIGRATIONS.glob("*/*.sql"))
    found = {str(file.relative_to(MIGRATIONS)): contracts_without_a_marker(file.read_text()) for file in files}

    assert files
    assert {name: statements for name, statements in found.items() if statements} == {}


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE nodes DROP COLUMN facts;",
        "ALTER TABLE nodes DROP facts;",
        "DROP TABLE nodes;",
        "ALTER TABLE nodes RENAME COLUMN facts TO said;",
        "ALTER TABLE nodes RENAME TO hosts;",
        "ALTER TABLE nodes ALTER COLUMN name TYPE varchar(10);",
        "ALTER TABLE nodes ALTER name SET NOT NULL;",
        "ALTER TABLE nodes ADD COLUMN rack text NOT NULL;",
    ],
)
def test_what_breaks_a_release_that_still_runs_needs_a_marker(statement: str) -> None:
    assert contracts_without_a_marker(statement)
    assert not contracts_without_a_marker(f"-- contract: unused since 1.2\n{statement}")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE nodes ADD COLUMN rack text;",
        "ALTER TABLE nodes ADD COLUMN rack text NOT NULL DEFAULT '';",
        "CREATE TABLE racks (id uuid PRIMARY KEY, name text NOT NULL);",
        "DROP INDEX nodes_name; CREATE INDEX nodes_name ON nodes (name, id);",
        "ALTER TABLE nodes DROP CONSTRAINT nodes_check;",
        "ALTER TABLE nodes ALTER name DROP NOT NULL;",
        "DROP TRIGGER nodes_counted ON nodes;",
        "-- DROP TABLE in a comment\nSELECT 1;",
    ],
)
def test_what_only_adds_needs_none(statement: str) -> None:
    assert contracts_without_a_marker(statement) == []
