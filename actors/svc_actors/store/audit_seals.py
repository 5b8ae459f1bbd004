"""The audit's hash chain: committed rows are sealed in the order of their ids, block by block, after they were written.

The digest of a seal is the SHA-256 over the digest before it, its number, range and time, and an encoding of each row.
Invariants:

- A range is sealed only once no transaction can still add a row to it. Ids are drawn before the commit. So the last id
  drawn is read first, and then the holders of the lock that every INSERT takes before it draws an id and keeps to the
  end of its transaction. Once these transactions are over, every row up to that id is visible or never will be.
  Writers never wait.
- One service seals, under the lock that makes it the only one. A second one is refused by the keys of the table.
- Ranges follow one another without a gap, so a row that appears later between sealed rows belongs to no range.
- Rows leave the table for a file only when they are sealed (`audit_archive`), and their encoding there is the same.

The encoding is the row as JSON with sorted names and without nulls: a column that a later migration adds must be null
in the existing rows.

Why: docs/decisions/0010-audit-log-and-its-chain.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, Self

import structlog
import trio

from svc_actors.store.database import Database
from svc_actors.store.driver import Record
from svc_actors.store.removal import pause_after_work
from svc_actors.store.transactions import Queryable, Transaction

log = structlog.get_logger("svc.audit")

SEAL_SECONDS: Final = 60.0
ROWS_A_SEAL: Final = 500
"""Hashing a seal takes some milliseconds of a thread's time; verifying it reads this many rows at once."""
BEGINNING: Final = "0" * 64
"""Stands for the digest before the first seal."""


@dataclass(frozen=True, kw_only=True)
class Seal:
    number: int
    first_id: int
    last_id: int
    rows: int
    previous_digest: str
    digest: str
    sealed_at: datetime

    @classmethod
    def of(cls, row: Record) -> Self:
        return cls(**dict(row))

    def digest_of(self, rows: Iterable[bytes]) -> str:
        """The digest this seal must have with these rows, encoded and in the order of their ids."""
        at = self.sealed_at.astimezone(UTC).isoformat(timespec="microseconds")
        head = f"svc audit 1 {self.previous_digest} {self.number} {self.first_id} {self.last_id} {self.rows} {at}\n"
        digest = hashlib.sha256(head.encode())
        for row in rows:
            digest.update(row)
            digest.update(b"\n")
        return digest.hexdigest()


def encoded(line: str) -> tuple[int, bytes]:
    """The id and the encoding of a row, from its JSON as `row_to_json` writes it, in whatever time zone.
    Raises ValueError for anything else."""
    row = json.loads(line, object_pairs_hook=_members)
    if not isinstance(row, dict) or not isinstance(row.get("id"), int) or not isinstance(row.get("at"), str):
        raise ValueError("this is no row of the audit")
    at = datetime.fromisoformat(row["at"]).astimezone(UTC).isoformat(timespec="microseconds")
    told = {name: value for name, value in {**row, "at": at}.items() if value is not None}
    return row["id"], json.dumps(told, sort_keys=True, separators=(",", ":")).encode()


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands twice in a row of the audit")
    return members


def encode_all(lines: Iterable[str]) -> dict[int, bytes]:
    return dict(map(encoded, lines))


async def newest_seal(queryable: Queryable) -> Seal | None:
    row = await queryable.fetchrow("SELECT * FROM audit_seals ORDER BY number DESC LIMIT 1")
    return None if row is None else Seal.of(row)


class AuditSealer:
    """Seals the ranges of rows that are final; one task calls `round` regularly."""

    def __init__(self, database: Database, *, rows_a_seal: int = ROWS_A_SEAL) -> None:
        self._database = database
        self._most = rows_a_seal
        # `_upto`: the last id that was drawn at the time of a look. `_running`: the transactions that were writing at
        # that time and have not been seen to end since.
        self._upto: int | None = None
        self._running: frozenset[str] = frozenset()

    async def round(self) -> int:
        """Seal what can be sealed; returns the number of rows."""
        if self._upto is None:
            # Two statements, in this order: a transaction that has drawn an id up to `upto` either holds the lock now,
            # and so is among `_writing`, or has ended.
            upto: int = await self._database.fetchval(
                "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM audit_id_seq"
            )
            self._running = await self._writing()
            self._upto = upto
        else:
            self._running &= await self._writing()
        if self._running:
            return 0
        last, self._upto = self._upto, None
        sealed = 0
        while rows := await self._seal(last):
            sealed += rows
        return sealed

    async def _writing(self) -> frozenset[str]:
        """Transactions that have written to the audit, prepared ones too."""
        rows = await self._database.fetch(
            """
            SELECT DISTINCT virtualtransaction FROM pg_locks
            WHERE locktype = 'relation' AND relation = 'audit'::regclass AND mode = 'RowExclusiveLock' AND granted
              AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            """
        )
        return frozenset(row["virtualtransaction"] for row in rows)

    async def _seal(self, upto: int) -> int:
        """Seal the next block of rows up to this id; returns the number of rows."""
        began = trio.current_time()
        seal = await self._database.transact(partial(self._next, upto=upto))
        if seal is None:
            return 0
        log.info("audit.sealed", number=seal.number, last_id=seal.last_id, rows=seal.rows, digest=seal.digest)
        await pause_after_work(began)
        return seal.rows

    async def _next(self, tx: Transaction, *, upto: int) -> Seal | None:
        previous = await newest_seal(tx)
        # The chain of seals starts at the first row that is in the table now: older rows are in files already.
        first = previous.last_id + 1 if previous else await tx.fetchval("SELECT min(id) FROM audit")
        if first is None or first > upto:
            return None
        page = await tx.fetch(
            "SELECT id, row_to_json(audit)::text AS line FROM audit WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3",
            first,
            upto,
            self._most,
        )
        if not page:
            return None
        rows = await trio.to_thread.run_sync(encode_all, [row["line"] for row in page])
        draft = Seal(
            number=previous.number + 1 if previous else 1,
            first_id=first,
            last_id=upto if len(page) < self._most else page[-1]["id"],
            rows=len(page),
            previous_digest=previous.digest if previous else BEGINNING,
            digest="",
            sealed_at=datetime.now(UTC),
        )
        digest = await trio.to_thread.run_sync(draft.digest_of, rows.values())
        row = await tx.fetchrow(
            """
            INSERT INTO audit_seals (number, first_id, last_id, rows, previous_digest, digest, sealed_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING *
            """,
            draft.number,
            draft.first_id,
            draft.last_id,
            draft.rows,
            draft.previous_digest,
            digest,
            draft.sealed_at,
        )
        return None if row is None else Seal.of(row)
