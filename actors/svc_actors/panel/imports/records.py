"""Imports as the database keeps them: the only module that writes `imports` and `import_sites`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from svc_actors.panel.imports.states import ImportMove, ImportStatus, move
from svc_actors.store import Queryable, Record, Target, Transaction
from svc_common.errors import not_found
from svc_webhost.archives.model import Account, account_of
from svc_webhost.confined_client import SiteFolder
from svc_webhost.folders import HostFolders

FIRST_UID: Final = 1_990_000_000
"""First uid of the accounts that read archives, one per import number. The uids are above those of sites and used for
nothing else."""
IMPORT_COLUMNS: Final = """imports.id, imports.number, imports.owner_id, imports.source, imports.name, imports.status,
    imports.problem, imports.size, imports.sha256, imports.found, imports.choices, imports.outcome, imports.job_id,
    imports.created_at, imports.touched_at, imports.remote, imports.sealed_secret,
    ARRAY(SELECT lower(part) FROM unnest(imports.received) AS part) AS starts,
    ARRAY(SELECT upper(part) FROM unnest(imports.received) AS part) AS ends"""


FILES: Final = "files"
SETTINGS: Final = "settings"
"""Parts of a site that are imported one by one; each database is another one. Settings are tasks and certificate."""


@dataclass(frozen=True)
class ImportRow:
    """`received`: byte ranges of the archive that were received, in order and without overlap. `remote`: the other host
    of a fetched import; its credentials exist only while it is being fetched."""

    id: UUID
    number: int
    owner_id: UUID
    source: str
    name: str
    status: ImportStatus
    problem: str | None
    size: int
    sha256: str | None
    found: Mapping[str, Any] | None
    choices: Mapping[str, Any] | None
    outcome: list[Mapping[str, Any]] | None
    job_id: int | None
    created_at: datetime
    touched_at: datetime
    remote: Mapping[str, Any] | None
    sealed_secret: bytes | None = field(repr=False)
    received: tuple[tuple[int, int], ...]

    @property
    def target(self) -> Target:
        """The target of audit rows. Its owner may read them."""
        return Target("import", self.id, self.name, self.owner_id)

    @property
    def account(self) -> Account:
        """The content of the archive. Raises not_found if the archive was not read yet."""
        if self.found is None:
            raise not_found("The import has no plan: its archive was not read.")
        return account_of(self.found)

    @property
    def missing(self) -> tuple[int, int] | None:
        """The first range that is not received yet."""
        begin = 0
        for start, end in self.received:
            if start > begin:
                return begin, start
            begin = end
        return None if begin >= self.size else (begin, self.size)

    def folder(self, folders: HostFolders) -> SiteFolder:
        """The folder of the import's archive. It is owned by an account that has nothing else."""
        uid = FIRST_UID + self.number
        return SiteFolder(folders.imports / f"i{self.number}", uid, uid)


def as_import(row: Record) -> ImportRow:
    """Converts a row of `IMPORT_COLUMNS`."""
    members = {name: row[name] for name in ImportRow.__dataclass_fields__ if name not in ("status", "received")}
    received = tuple(zip(row["starts"], row["ends"], strict=True))
    return ImportRow(**members, status=ImportStatus(row["status"]), received=received)


async def insert_import(
    tx: Transaction, owner_id: UUID, source: str, name: str, size: int, status: ImportStatus
) -> ImportRow:
    row = await tx.fetchone(
        f"""INSERT INTO imports (owner_id, source, name, size, status) VALUES ($1, $2, $3, $4, $5)
            RETURNING {IMPORT_COLUMNS}""",
        *(owner_id, source, name, size, status.value),
    )
    return as_import(row)


async def insert_fetched(
    tx: Transaction, owner_id: UUID, name: str, remote: Mapping[str, Any], sealed_secret: bytes
) -> ImportRow:
    row = await tx.fetchone(
        f"""INSERT INTO imports (owner_id, source, name, size, status, remote, sealed_secret)
            VALUES ($1, 'ssh', $2, 0, 'fetching', $3, $4) RETURNING {IMPORT_COLUMNS}""",
        *(owner_id, name, dict(remote), sealed_secret),
    )
    return as_import(row)


async def write_job(tx: Transaction, import_id: UUID, job_id: int, size: int | None = None) -> None:
    """Record the job that works on the import, and the size of its archive."""
    await tx.execute("UPDATE imports SET job_id = $2, size = coalesce($3, size) WHERE id = $1", import_id, job_id, size)


async def lock_import(tx: Transaction, import_id: UUID) -> ImportRow:
    """Raises not_found."""
    row = await tx.fetchrow(f"SELECT {IMPORT_COLUMNS} FROM imports WHERE id = $1 FOR NO KEY UPDATE", import_id)
    if row is None:
        raise not_found("There is no such import.")
    return as_import(row)


async def read_import(queryable: Queryable, import_id: UUID) -> ImportRow:
    """Raises not_found."""
    row = await queryable.fetchrow(f"SELECT {IMPORT_COLUMNS} FROM imports WHERE id = $1", import_id)
    if row is None:
        raise not_found("There is no such import.")
    return as_import(row)


async def write_received(queryable: Queryable, import_id: UUID, start: int, end: int) -> ImportRow | None:
    """Record received bytes; None if the import is no longer being uploaded."""
    row = await queryable.fetchrow(
        f"""UPDATE imports SET received = received + int8multirange(int8range($2, $3)), touched_at = now()
            WHERE id = $1 AND status = 'uploading' RETURNING {IMPORT_COLUMNS}""",
        import_id,
        start,
        end,
    )
    return None if row is None else as_import(row)


async def write_lost(queryable: Queryable, import_id: UUID) -> None:
    """Record that the received bytes are lost."""
    await queryable.execute("UPDATE imports SET received = '{}' WHERE id = $1 AND status = 'uploading'", import_id)


async def write_move(
    tx: Transaction,
    locked: ImportRow,
    by: ImportMove,
    *,
    problem: str | None = None,
    job_id: int | None = None,
    sha256: str | None = None,
) -> None:
    """Every move deletes the credentials of the other host. Raises `conflict`."""
    await tx.execute(
        """UPDATE imports SET status = $2, problem = $3, sealed_secret = NULL, job_id = coalesce($4, job_id),
               sha256 = coalesce($5, sha256), touched_at = now() WHERE id = $1""",
        *(locked.id, move(locked.status, by).value, problem, job_id, sha256),
    )


async def write_found(tx: Transaction, import_id: UUID, findings: Mapping[str, Any], size: int) -> None:
    await tx.execute("UPDATE imports SET found = $2, size = $3 WHERE id = $1", import_id, dict(findings), size)


async def write_choices(
    tx: Transaction,
    import_id: UUID,
    owner_id: UUID,
    choices: Mapping[str, Any],
    outcome: Sequence[Mapping[str, Any]],
) -> None:
    """`outcome`: the notes that stay. The parts that are imported stay recorded."""
    await tx.execute(
        """UPDATE imports SET owner_id = $3, outcome = $4,
               choices = jsonb_build_object('imported', coalesce(choices -> 'imported', '{}')) || $2::jsonb
           WHERE id = $1""",
        *(import_id, dict(choices), owner_id, [dict(each) for each in outcome]),
    )


async def add_outcome(tx: Transaction, import_id: UUID, outcome: Sequence[Mapping[str, Any]]) -> None:
    await tx.execute(
        "UPDATE imports SET outcome = coalesce(outcome, '[]'::jsonb) || $2::jsonb WHERE id = $1",
        import_id,
        [dict(each) for each in outcome],
    )


async def write_site(tx: Transaction, import_id: UUID, domain: str, site_id: UUID) -> None:
    await tx.execute(
        "INSERT INTO import_sites (import_id, domain, site_id) VALUES ($1, $2, $3)", import_id, domain, site_id
    )


async def write_tables(tx: Transaction, site_id: UUID, database: str, tables: Mapping[str, Sequence[Any]]) -> None:
    """Record the rows of a database, which is named as on the old host. For each table: rows in the dump, rows here,
    checksum."""
    await tx.execute(
        "UPDATE import_sites SET tables = tables || jsonb_build_object($2::text, $3::jsonb) WHERE site_id = $1",
        *(site_id, database, {table: list(facts) for table, facts in tables.items()}),
    )


async def sites_of(queryable: Queryable, import_id: UUID) -> dict[str, UUID]:
    """Ids of the sites that it has created, by their domains in the archive."""
    rows = await queryable.fetch("SELECT domain, site_id FROM import_sites WHERE import_id = $1", import_id)
    return {row["domain"]: row["site_id"] for row in rows}


def part_of(database: str) -> str:
    """The part of a site that is this database, which is named as on the old host."""
    return f"database:{database}"


async def parts_of(queryable: Queryable, import_id: UUID) -> dict[str, frozenset[str]]:
    """The parts that are imported completely, by the domains of their sites in the archive."""
    rows = await queryable.fetch(
        """SELECT import_sites.domain, imports.choices -> 'imported' -> import_sites.site_id::text AS parts
           FROM import_sites JOIN imports ON imports.id = import_sites.import_id WHERE imports.id = $1""",
        import_id,
    )
    return {row["domain"]: frozenset(row["parts"] or ()) for row in rows}


async def write_part(import_id: UUID, site_id: UUID, part: str, tx: Transaction) -> None:
    await tx.execute(
        """UPDATE imports SET choices = jsonb_set(choices, '{imported}', coalesce(choices -> 'imported', '{}')
               || jsonb_build_object($2::text, coalesce(choices -> 'imported' -> $2, '[]') || to_jsonb($3::text)))
           WHERE id = $1""",
        *(import_id, str(site_id), part),
    )


async def remove_import(tx: Transaction, import_id: UUID) -> None:
    """Remove the record. The sites that the import has created stay."""
    await tx.execute("DELETE FROM imports WHERE id = $1", import_id)
