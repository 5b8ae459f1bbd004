"""Numbered SQL files applied in order, each once, each in a transaction, by one process at a time.

`migrations/NNNN_name.sql` is recorded with a checksum. A database that is newer than this code, and a file that was
edited after it had been applied, are refused: neither can be mended by guessing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from svc_actors.store.database import Database
from svc_actors.store.transactions import Transaction

_LOCK = 0x5356_4301
_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_MIGRATION_TIMEOUT = 600.0


class MigrationError(RuntimeError):
    """The schema cannot be brought to what this code expects; the message says why, and nothing was changed."""


@dataclass(frozen=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


def known_migrations(folder: Traversable | None = None) -> list[Migration]:
    """The migrations of this release, in order; numbers are unique and leave no gap."""
    found = []
    for entry in (folder or files("svc_actors.store") / "migrations").iterdir():
        match = _FILE_NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match["number"]), match["name"], entry.read_text(encoding="utf-8")))
        elif entry.name.endswith(".sql"):
            raise MigrationError(f"The migration {entry.name} is not named NNNN_name.sql.")
    found.sort(key=lambda migration: migration.number)
    for position, migration in enumerate(found, start=1):
        if migration.number != position:
            raise MigrationError(f"The migration {migration} should have the number {position:04d}.")
    return found


async def migrate(database: Database, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply what is missing, and return it. Safe to call from many processes at once.

    Raises `MigrationError` when the database is newer than this code or was migrated with other files. A migration that
    fails is rolled back whole and its error raised; those before it stay applied.
    """
    known = list(migrations) if migrations is not None else known_migrations()
    applied_now: list[Migration] = []
    while True:
        async with database.transaction() as transaction:
            await transaction.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=_MIGRATION_TIMEOUT)
            missing = await _missing(transaction, known)
            if not missing:
                return applied_now
            await _apply(transaction, missing[0])
        applied_now.append(missing[0])


async def _missing(transaction: Transaction, known: Sequence[Migration]) -> Sequence[Migration]:
    await transaction.execute(
        """
        CREATE TABLE IF NOT EXISTS schema_migration (
            number integer PRIMARY KEY,
            name text NOT NULL,
            checksum text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now()
        )
        """
    )
    recorded = await transaction.fetch("SELECT number, name, checksum FROM schema_migration ORDER BY number")
    if len(recorded) > len(known):
        raise MigrationError(
            f"The database is at migration {recorded[-1]['number']:04d}_{recorded[-1]['name']}, this release knows "
            f"only {len(known)}. It was left untouched: run the newer release, or restore a backup made with this one."
        )
    for row, migration in zip(recorded, known, strict=False):
        if row["checksum"] != migration.checksum:
            raise MigrationError(
                f"The migration {migration} differs from the one that this database was migrated with. It was left "
                "untouched: restore the file, and put the change into a new migration."
            )
    return known[len(recorded) :]


async def _apply(transaction: Transaction, migration: Migration) -> None:
    await transaction.execute(migration.sql, timeout=_MIGRATION_TIMEOUT)
    await transaction.execute(
        "INSERT INTO schema_migration (number, name, checksum) VALUES ($1, $2, $3)",
        migration.number,
        migration.name,
        migration.checksum,
    )
