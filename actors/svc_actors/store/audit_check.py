"""Verifies the audit trail against its seals: recomputes every digest over the table and the files of archived rows.

It reads block by block, for a few seconds at a time: `check_audit` continues after the given seal and trusts the digest
of that seal, which the previous call has verified.

What it cannot detect: changes to rows that are not sealed yet, and a chain whose end was cut off together with its
rows, or that was rebuilt as a whole. A digest that was logged earlier reveals the last two: no seal has it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Final

import trio

from svc_actors.store.audit_seals import BEGINNING, Seal, encode_all, encoded
from svc_actors.store.database import Database

SECONDS: Final = 3.0
_SEALS_AT_ONCE: Final = 100


class AuditMismatchError(Exception):
    """The audit differs from its seals; the message says where."""


@dataclass(frozen=True)
class AuditCheckResult:
    """`next_after`: the seal after which to continue; None at the end or at a problem."""

    seals: int
    rows: int
    archived_rows: int
    problem: str | None
    next_after: int | None


async def check_audit(
    database: Database, folder: Path, after: int = 0, *, seconds: float = SECONDS
) -> AuditCheckResult:
    """Verify the seals after number `after`, for about `seconds` seconds."""
    part = _Part(database, folder)
    try:
        next_after = await part.run(after, trio.current_time() + seconds)
    except AuditMismatchError as unfit:
        return AuditCheckResult(part.seals, part.rows, part.archived, str(unfit), None)
    finally:
        part.files.close()
    return AuditCheckResult(part.seals, part.rows, part.archived, None, next_after)


class _Part:
    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self.files = _Files(folder)
        self.seals = self.rows = self.archived = 0

    async def run(self, after: int, deadline: float) -> int | None:
        before = await self._before(after)
        while True:
            found = await self._database.fetch(
                "SELECT * FROM audit_seals WHERE number > $1 ORDER BY number LIMIT $2",
                before.number if before else 0,
                _SEALS_AT_ONCE,
            )
            if not found:
                return None
            for row in found:
                seal = Seal.of(row)
                if before is None and seal.number == 1:
                    await self._check_beginning(seal)
                await self._check(seal, before)
                self.seals, before = self.seals + 1, seal
                if trio.current_time() >= deadline:
                    return before.number

    async def _before(self, after: int) -> Seal | None:
        if after == 0:
            return None
        row = await self._database.fetchrow("SELECT * FROM audit_seals WHERE number = $1", after)
        if row is None:
            raise AuditMismatchError(f"there is no seal {after}")
        return Seal.of(row)

    async def _check_beginning(self, seal: Seal) -> None:
        """Check the rows below the first seal: they were archived before there was a chain, so they are only in
        files."""
        for export in await self._database.fetch(
            "SELECT file, sha256 FROM audit_exports WHERE last_id < $1 ORDER BY first_id", seal.first_id
        ):
            await trio.to_thread.run_sync(self.files.check, export["file"], export["sha256"])
        below = await self._database.fetchval("SELECT min(id) FROM audit WHERE id < $1", seal.first_id)
        if below is not None:
            raise AuditMismatchError(
                f"row {below} is below the first seal, which starts at row {seal.first_id}: it was inserted"
            )

    async def _check(self, seal: Seal, before: Seal | None) -> None:
        where = f"seal {seal.number} (rows {seal.first_id} to {seal.last_id})"
        number, first, digest = (before.number, before.last_id, before.digest) if before else (0, None, BEGINNING)
        if seal.number != number + 1:
            raise AuditMismatchError(f"seal {number + 1} is missing; the next is {where}")
        if seal.previous_digest != digest or (first is not None and seal.first_id != first + 1):
            raise AuditMismatchError(f"{where} does not follow the one before it")
        # The table is read before the files: rows that are moved in between are then in a file.
        page = await self._database.fetch(
            "SELECT row_to_json(audit)::text AS line FROM audit WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3",
            seal.first_id,
            seal.last_id,
            seal.rows + 1,
        )
        exports = await self._database.fetch(
            "SELECT file, sha256 FROM audit_exports WHERE first_id <= $2 AND last_id >= $1 ORDER BY first_id",
            seal.first_id,
            seal.last_id,
        )
        lines, kept = [row["line"] for row in page], [(row["file"], row["sha256"]) for row in exports]
        archived = await trio.to_thread.run_sync(self._compare, seal, where, lines, kept)
        self.rows += seal.rows
        self.archived += archived

    def _compare(self, seal: Seal, where: str, lines: list[str], exports: list[tuple[str, str]]) -> int:
        """Returns how many of the rows are in files only. Runs in a thread."""
        rows = encode_all(lines)
        archived = 0
        for file, sha256 in exports:
            for row_id, row in self.files.rows(file, sha256, seal.first_id, seal.last_id).items():
                if rows.setdefault(row_id, row) is row:
                    archived += 1
                elif rows[row_id] != row:
                    raise AuditMismatchError(f"row {row_id} is not the same in the table and in {file}")
        if len(rows) != seal.rows:
            how = "missing" if len(rows) < seal.rows else "too many"
            raise AuditMismatchError(
                f"{where} has {abs(seal.rows - len(rows))} or more rows {how}; it was sealed with {seal.rows}"
            )
        if seal.digest_of(rows[row_id] for row_id in sorted(rows)) != seal.digest:
            raise AuditMismatchError(
                f"{where} does not have the digest it was sealed with: one of its rows, or the seal, was changed"
            )
        return archived


class _Files:
    """Archived rows, read in order. One file is open at a time; its SHA-256 is compared with the record first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name: str | None = None
        self._lines: IO[str] | None = None
        self._ahead: tuple[int, bytes] | None = None

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()
        self._name = self._lines = self._ahead = None

    def check(self, name: str, sha256: str) -> None:
        if Path(name).name != name:
            raise AuditMismatchError(f"{name} is no name of an archive")
        try:
            with (self._folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise AuditMismatchError(f"the archive {name} cannot be read: {error.strerror}") from error
        if found != sha256:
            raise AuditMismatchError(f"the archive {name} was changed: it does not have the SHA-256 that was recorded")

    def rows(self, name: str, sha256: str, first: int, last: int) -> dict[int, bytes]:
        """The rows of a range of ids. Each call must ask for a range above the previous one."""
        if name != self._name:
            self.close()
            self.check(name, sha256)
            self._name = name
        found: dict[int, bytes] = {}
        try:
            if self._lines is None:
                self._lines = gzip.open(self._folder / name, "rt", encoding="utf-8")  # noqa: SIM115 - open for the next range
            while (row := self._ahead or self._next(first)) is not None:
                self._ahead = None
                if row[0] > last:
                    self._ahead = row
                    break
                if row[0] >= first:
                    found[row[0]] = row[1]
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise AuditMismatchError(f"the archive {name} cannot be read: {error}") from error
        return found

    def _next(self, first: int) -> tuple[int, bytes] | None:
        assert self._lines is not None
        for line in islice(self._lines, None):
            # Rows before the range are skipped without parsing their JSON: `row_to_json` writes the id first.
            start = line[: line.find(",")].removeprefix('{"id":')
            if not start.isdecimal() or int(start) >= first:
                return encoded(line)
        return None
