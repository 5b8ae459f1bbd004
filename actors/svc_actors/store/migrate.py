"""Numbered SQL files applied in order, each once, each in a transaction, by one process at a time.

`migrations/<component>/NNNN_name.sql`: each component numbers its own files. `shared` is applied first and refers to
no other component, so that two services can share its tables. Each file is recorded with a checksum. A database that is
newer than this code, and a file that was edited after it had been applied, are refused: neither can be repaired by
guessing. Records of another service's component in the same database are left alone.

A component's first file may be `NNNN_release_X_Y_Z.sql`: the whole schema as of that release, for new databases. It
stands for the files up to its number that the release itself had. A database that recorded all of them goes on with the
next number; one that recorded only some is refused.

Each migration is recorded with the number of its component's migrations that the previous release knows. That release
works without the new one (docs/upgrades.md): a service that was rolled back to it may use the migrated database.

Why: docs/decisions/0011-schema-and-the-only-service.md.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable

import structlog

from svc_actors.store.database import Database
from svc_actors.store.embedded import DatabaseUrls
from svc_actors.store.transactions import Queryable, Transaction

_LOCK = 0x5356_4301
_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_RELEASE = re.compile(r"release_(?P<version>\d+_\d+_\d+)")
_MIGRATION_TIMEOUT = 600.0

log = structlog.get_logger(__name__)

_APPEND_ONLY = ("audit", "audit_exports", "audit_seals")
_READ_ONLY = ("schema_migration",)


class MigrationError(RuntimeError):
    """The schema cannot be brought to what this code expects; the message says why, and nothing was changed."""


class Component(StrEnum):
    """Whose tables: people, sessions, audit, events, settings, alerts are shared; the rest is one service's own."""

    SHARED = "shared"
    CONTROLLER = "controller"
    PANEL = "panel"


CONTROLLER_SCHEMA = (Component.SHARED, Component.CONTROLLER)
PANEL_SCHEMA = (Component.SHARED, Component.PANEL)


@dataclass(frozen=True)
class Migration:
    """One step of the schema."""

    component: Component
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def release(self) -> str | None:
        """The release whose whole schema this is, such as 0.1.0."""
        match = _RELEASE.fullmatch(self.name)
        return match["version"].replace("_", ".") if match else None

    def __str__(self) -> str:
        return f"{self.component}/{self.number:04d}_{self.name}"


def known_migrations(
    components: Sequence[Component] = CONTROLLER_SCHEMA, folder: Traversable | None = None
) -> list[Migration]:
    """The migrations of `components` in this release, in order; a component's numbers are unique and leave no gap. They
    start with 1, or with the schema of a release."""
    root = folder or files("svc_actors.store") / "migrations"
    return [migration for component in components for migration in _of(component, root / component.value)]


def _of(component: Component, folder: Traversable) -> list[Migration]:
    found = []
    for entry in folder.iterdir():
        match = _FILE_NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(component, int(match["number"]), match["name"], entry.read_text(encoding="utf-8")))
        elif entry.name.endswith(".sql"):
            raise MigrationError(f"The migration {component}/{entry.name} is not named NNNN_name.sql.")
    found.sort(key=lambda migration: migration.number)
    first = found[0].number if found and found[0].release else 1
    for number, migration in enumerate(found, start=first):
        if migration.number != number:
            raise MigrationError(f"The migration {migration} should have the number {number:04d}.")
    return found


def newest_numbers(migrations: Sequence[Migration]) -> dict[str, int]:
    """The number of the newest migration of each component. `migrations` are in order."""
    return {migration.component.value: migration.number for migration in migrations}


def release_before(folder: Traversable | None = None) -> dict[str, int]:
    """The newest number of each component in the previous release; empty if there was none.

    tools/release adds each release to `migrations/releases.json`, also in the sources of that release itself. So the
    previous release is the newest entry that differs from this code."""
    root = folder or files("svc_actors.store") / "migrations"
    here = dict.fromkeys(map(str, Component), 0) | newest_numbers(known_migrations(tuple(Component), root))
    releases: dict[str, dict[str, int]] = json.loads((root / "releases.json").read_text())
    return next((known for known in reversed(releases.values()) if known != here), {})


async def migrate(
    database: Database, migrations: Sequence[Migration] | None = None, *, returned: bool = False
) -> list[Migration]:
    """Apply what is missing, and return it. Safe to call from many processes at once.

    Raises `MigrationError` when the database is newer than this code or was migrated with other files. A migration that
    fails is rolled back whole and its error raised; those before it stay applied. `returned`: the service was rolled
    back to this release from the next one, whose migrations it does not need.
    """
    known = list(migrations) if migrations is not None else known_migrations()
    before = release_before()
    applied_now: list[Migration] = []
    while True:
        async with database.transaction() as transaction:
            await transaction.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=_MIGRATION_TIMEOUT)
            await _prepare(transaction)
            missing = await _missing(transaction, known, returned=returned)
            if not missing:
                return applied_now
            await _apply(transaction, missing[0], before)
        applied_now.append(missing[0])


async def unapplied(queryable: Queryable, migrations: Sequence[Migration]) -> Sequence[Migration]:
    """The migrations that `migrate` would apply. Raises `MigrationError` as `migrate` does, and changes nothing."""
    return await _missing(queryable, migrations, returned=False)


async def _prepare(transaction: Transaction) -> None:
    """Create the table of applied migrations, or bring it to today's columns."""
    columns = {
        row["attname"]
        for row in await transaction.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('schema_migration') AND attnum > 0"
        )
    }
    if columns and "component" not in columns:
        raise MigrationError(
            "The database was made by a version before 0.1.0, which cannot be upgraded. It was left untouched: "
            "give this service an empty database."
        )
    if not columns:
        await _make_table(transaction)
    elif "dispensable_from" not in columns:
        await transaction.execute("ALTER TABLE schema_migration ADD COLUMN dispensable_from integer")


async def _make_table(transaction: Transaction) -> None:
    await transaction.execute(
        """
        CREATE TABLE schema_migration (
            component text NOT NULL,
            number integer NOT NULL,
            name text NOT NULL,
            checksum text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT now(),
            -- Who knows that many of the component can do without this one.
            dispensable_from integer,
            PRIMARY KEY (component, number)
        )
        """
    )


async def _missing(queryable: Queryable, known: Sequence[Migration], *, returned: bool) -> Sequence[Migration]:
    recorded: dict[tuple[str, int], str] = {}
    newest: dict[str, str] = {}
    for row in await queryable.fetch("SELECT component, number, name, checksum FROM schema_migration ORDER BY number"):
        recorded[row["component"], row["number"]] = row["checksum"]
        newest[row["component"]] = f"{row['component']}/{row['number']:04d}_{row['name']}"
    for component, last in newest_numbers(known).items():
        newer = [number for of, number in recorded if of == component and number > last]
        if newer and not (returned and await _dispensable(queryable, component, last)):
            raise MigrationError(
                f"The database is at migration {newest[component]}, this release knows only {last} of {component}. "
                "It was left untouched: run the newer release, or restore a backup made with this one."
            )
    for migration in known:
        if migration.release and _made_by_its_release(recorded, migration):
            recorded[migration.component, migration.number] = migration.checksum
    for migration in known:
        checksum = recorded.get((migration.component, migration.number), migration.checksum)
        if checksum != migration.checksum:
            raise MigrationError(
                f"The migration {migration} differs from the version that this database was migrated with. It was left "
                "untouched: restore the file, and put the change into a new migration."
            )
    return [migration for migration in known if (migration.component, migration.number) not in recorded]


def _made_by_its_release(recorded: Collection[tuple[str, int]], schema: Migration) -> bool:
    """Whether the release itself has made its schema, in `schema.number` steps. Raises `MigrationError` if the database
    has only some of these."""
    steps = {number for component, number in recorded if component == schema.component and number <= schema.number}
    if steps <= {schema.number}:
        return False
    if len(steps) < schema.number:
        raise MigrationError(
            f"The database has {len(steps)} of the {schema.number} migrations of {schema.component} that release "
            f"{schema.release} consists of. It was left untouched: install {schema.release} (docs/upgrades.md), which "
            "applies the others when it starts, and then this release."
        )
    return True


async def _dispensable(queryable: Queryable, component: str, last: int) -> bool:
    """Whether a release that knows the component's migrations up to `last` works without the later ones."""
    return (
        await queryable.fetchval(
            """SELECT bool_and(coalesce(dispensable_from <= $2, false)) FROM schema_migration
           WHERE component = $1 AND number > $2""",
            component,
            last,
        )
        is True
    )


async def _apply(transaction: Transaction, migration: Migration, before: Mapping[str, int]) -> None:
    await transaction.execute(migration.sql, timeout=_MIGRATION_TIMEOUT)
    await _record(transaction, migration, before)


async def _record(transaction: Transaction, migration: Migration, before: Mapping[str, int]) -> None:
    await transaction.execute(
        """INSERT INTO schema_migration (component, number, name, checksum, dispensable_from)
           VALUES ($1, $2, $3, $4, $5)""",
        migration.component.value,
        migration.number,
        migration.name,
        migration.checksum,
        before.get(migration.component.value),
    )


# Rights of the service's role: it may read and write rows, nothing else. It owns nothing, so it can neither change
# tables nor disable their triggers. In the audit trail it may only add and read rows. The rights are granted again
# after every migration, in one transaction, so that a new table always has them.
async def prepare_schema(
    urls: DatabaseUrls, components: Sequence[Component] = CONTROLLER_SCHEMA, *, returned: bool = False
) -> None:
    """Migrate the service's components as the owner, and grant the service's role its rights. `returned`: the service
    was rolled back to this release (`migrate`)."""
    async with Database.open(urls.service, size=1) as service:
        role: str = await service.fetchval("SELECT session_user")
    async with Database.open(urls.owner, size=1, application_name="svc migration") as owner:
        await migrate(owner, known_migrations(components), returned=returned)
        if role == await owner.fetchval("SELECT session_user"):
            log.warning(
                "database.role_owns_audit",
                role=role,
                remedy="name an owner in SVC_DATABASE_OWNER_URL (docs/database.md)",
            )
        else:
            await grant_service(owner, role)


async def grant_service(owner: Database, role: str) -> None:
    async def grant(tx: Transaction) -> None:
        name = await tx.fetchval("SELECT quote_ident($1)", role)
        await tx.execute(
            f"""
            GRANT USAGE ON SCHEMA public TO {name};
            GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name};
            GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {name};
            REVOKE UPDATE, DELETE, TRUNCATE ON {", ".join(_APPEND_ONLY)} FROM {name};
            REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {", ".join(_READ_ONLY)} FROM {name};
            GRANT EXECUTE ON FUNCTION remove_exported_audit(interval, bigint, bigint) TO {name};
            """
        )

    await owner.transact(grant)
