"""Whether the database still has what this service committed, or has stepped back: a standby was promoted that lacks
the last commits, or an older copy was put in place.

Theory of operation. Each transaction that writes leaves a mark, in the transaction itself: a number that only grows, in
one of a few rows of this service (`commit_marks`). What was acknowledged is remembered here, and once a second in a
file of the data folder. A database that shows less than is remembered has lost a commit. A server's log is lost from
its end, so a database that shows all of it has lost nothing of ours. The comparison is made on each new connection
before it is used, once a second by the holder of the service's lock, and at each start.

The service that notices a loss records it in the database (`_PENDING`) and stops. The next one to start deals with it
first: the same service, or a standby on another host, which does not know what was lost. How often that was done is
counted in the database (`_DEALT`). A file with a lower count was written before that, so the loss that it shows has
been dealt with: the same loss is dealt with once, even if the file could not be written, or belongs to another host.

Rejected: the system identifier and the timeline, which change at a planned switchover that loses nothing, and stay when
a snapshot of the server's disk is put back; positions in the write-ahead log, since where a timeline forked is shown to
superusers only; one row for all, for which commits would queue; ids of events, since after a loss a sequence may be up
to 32 numbers ahead of the rows for which ids were drawn.

Invariants:
- a number is remembered after its commit was acknowledged, and compared with what is read afterwards, so nothing but a
  loss raises the alarm: neither a crash of either side nor an unknown outcome;
- the rows are keyed by the data folder's own id, which nobody else writes: numbers that were lost are never given to
  another service's commits;
- a server that is a standby still is used for nothing: it may lag, and has lost nothing by that.

Why: docs/decisions/0013-lost-commits.md.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import structlog
import trio

from svc_actors.store.failures import cannot_connect
from svc_actors.store.nurseries import background_nursery
from svc_actors.store.remembered_keys import KEYS_FOR, Key, RememberedKeys
from svc_common.durable import write_whole
from svc_common.errors import unavailable

if TYPE_CHECKING:
    from svc_actors.store.database import Database
    from svc_actors.store.driver import Record
    from svc_actors.store.transactions import Queryable, Transaction

FILE: Final = "database-marks.json"
"""The name of the file of marks in the data folder."""
MACHINE: Final = Path("/etc/machine-id")
"""Differs if a data folder was copied to another host: two services with one id would hide each other's losses."""
WRITE_SECONDS: Final = 1.0
"""Seconds between two writes of the file. Marks of commits since the last write are forgotten if the service's host
goes down together with the database's; otherwise the service itself notices its loss."""
_FINAL_WRITE: Final = 5.0
_TURN, _TURNS = 60.0, 60
"""For how many seconds the same rows are written, and after how many others again. While a dump or a replication slot
has a snapshot open, the old versions of a row stay, and each write of it goes through them: 87 blocks after 10,000
commits of one row, 4 with rows of their own for each minute. Rejected: ever new rows, with the old ones deleted; a file
that was not written since would miss them."""

WRITE_MARK: Final = """
    INSERT INTO commit_marks AS kept (holder, slot, value, at) VALUES ($1, $2, $3, clock_timestamp())
    ON CONFLICT (holder, slot) DO UPDATE SET value = greatest(kept.value, excluded.value), at = excluded.at
"""
_STANDBY: Final = "it is a standby, and takes no changes"
_PENDING: Final = -1
"""The slot of a row that says: a step back was noticed, and not dealt with yet."""
_DEALT: Final = -2
"""The slot of the row, of no holder, that counts how often a step back was dealt with."""
_COUNT: Final = f"coalesce((SELECT value FROM commit_marks WHERE slot = {_DEALT} AND holder = '{UUID(int=0)}'), 0)"
_READ: Final = f"""
    SELECT pg_is_in_recovery() AS standby, {_COUNT} AS dealt,
           EXISTS (SELECT FROM commit_marks WHERE slot = {_PENDING}) AS pending,
           array(SELECT slot FROM commit_marks WHERE holder = $1 AND slot >= 0 ORDER BY slot) AS slots,
           array(SELECT value FROM commit_marks WHERE holder = $1 AND slot >= 0 ORDER BY slot) AS marks
"""
_AS_OF: Final = """
    SELECT coalesce((SELECT max(at) FROM commit_marks WHERE slot >= 0), (SELECT max(at) FROM event))
"""
_TELL: Final = f"""
    INSERT INTO commit_marks (holder, slot, value, at)
    SELECT $1, {_PENDING}, 0, clock_timestamp() WHERE {_COUNT} <= $2
    ON CONFLICT DO NOTHING
"""
"""Writes the notice, unless a step back was dealt with since the given count: the notice would then cause the same loss
to be dealt with twice."""
_DEAL: Final = f"""
    WITH noticed AS (DELETE FROM commit_marks WHERE slot = {_PENDING})
    INSERT INTO commit_marks AS kept (holder, slot, value, at)
    VALUES ('{UUID(int=0)}', {_DEALT}, 1, clock_timestamp())
    ON CONFLICT (holder, slot) DO UPDATE SET value = kept.value + 1, at = excluded.at
    RETURNING value
"""
LOST: Final = b""
"""A fingerprint that no request has. It is stored for an idempotency key whose order may have been lost, so that every
request with the key is refused."""
REFUSE_KEYS: Final = """
    INSERT INTO idempotency_keys AS held (owner, key, operation, fingerprint, claim, leased_until)
    SELECT owner, key, '', '', gen_random_uuid(), now() FROM unnest($1::text[], $2::text[]) AS lost (owner, key)
    ON CONFLICT (owner, key) DO UPDATE
    SET fingerprint = excluded.fingerprint, claim = excluded.claim, created_at = now(), leased_until = now()
    WHERE held.answer IS NULL
"""
"""Takes owners and keys. These keys are refused for as long as keys are kept, unless an answer is stored. The new
`claim` takes the key from a caller that still works under it, whose answer must not replace the refusal."""

log = structlog.get_logger(__name__)


class Rows(Protocol):
    """A bare connection."""

    async def rows(self, sql: str, args: tuple[object, ...], limit: int) -> list[Record]: ...
    async def command(self, sql: str, args: tuple[object, ...]) -> str: ...


class SteppedBackError(RuntimeError):
    """The database has lost commits of this service, which stops: its next start deals with that."""


@dataclass(frozen=True)
class Mark:
    """The mark that one transaction writes. No other transaction uses its slot until this one has ended."""

    holder: UUID
    slot: int
    value: int

    @property
    def row(self) -> tuple[object, ...]:
        return (self.holder, self.slot, self.value)


class CommitMarks:
    """The commits that are known to have succeeded. `stepped_back` is set, and never cleared, once the database has
    shown fewer of them."""

    def __init__(
        self, path: Path, holder: UUID, seen: dict[int, int], keys: RememberedKeys | None = None, dealt: int = 0
    ) -> None:
        self.stepped_back = trio.Event()
        self._path = path
        self._holder = holder
        self._seen = seen
        self._last = max(seen.values(), default=0)
        self._turn = 0
        self._slots = 0
        self._free: list[int] = []
        self._keys = keys or RememberedKeys()
        self._machine = _machine()
        self._copied = False
        self._changed = False
        self.dealt = dealt
        """How often a step back of the database was dealt with, as far as is known here."""
        self.serving = False
        """Set once this service has dealt with a notice that it found at its start. A notice that appears later is
        about a new loss."""

    @classmethod
    def load(cls, folder: Path) -> CommitMarks:
        """The marks of a data folder: empty for a new one, or if the file cannot be read or understood."""
        path = folder / FILE
        try:
            known = json.loads(path.read_bytes())
            seen = {int(slot): int(value) for slot, value in known["marks"].items()}
            keys = RememberedKeys()
            for owner, key, *noted in known["keys"]:
                keys.note((str(owner), str(key)), float(noted[0]) if noted else time.time())
            marks = cls(path, UUID(known["holder"]), seen, keys, int(known.get("dealt", 0)))
            marks._copied = known.get("machine", marks._machine) != marks._machine
            return marks
        except FileNotFoundError:
            pass
        except OSError as error:
            # The file belongs to another account, or is on a bad sector: serving without this comparison is better than
            # not serving.
            log.warning("database_marks.not_read", path=str(path), error=str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("database_marks.not_understood", path=str(path), error=str(error))
        return cls(path, uuid4(), {})

    # Marks that transactions leave in the database.

    def draw(self) -> Mark:
        """The mark of a transaction that is about to commit; give it back with `put_back`, however that ends."""
        # Each transaction that commits at the same time gets a slot of its own: if all shared one row, commits would
        # wait for its lock. The lowest free slot is taken, so there are only as many rows as slots were ever used at
        # once.
        turn = int(trio.current_time() / _TURN) % _TURNS
        if turn != self._turn:
            self._turn, self._slots, self._free = turn, 0, []
        if self._free:
            slot = heappop(self._free)
        else:
            slot, self._slots = self._slots * _TURNS + turn, self._slots + 1
        self._last += 1
        return Mark(self._holder, slot, self._last)

    def committed(self, mark: Mark) -> None:
        """The commit was acknowledged."""
        self._seen[mark.slot] = max(mark.value, self._seen.get(mark.slot, 0))
        self._changed = True

    def put_back(self, mark: Mark) -> None:
        if mark.slot % _TURNS == self._turn:
            heappush(self._free, mark.slot)

    def note_key(self, key: Key) -> None:
        """An order is being carried out under this idempotency key. If the database loses it, the key is refused."""
        self._keys.note(key, time.time())
        self._changed = True

    def forget_key(self, key: Key) -> None:
        """Forget an idempotency key under which nothing was done."""
        self._keys.forget(key)

    @property
    def keys(self) -> list[Key]:
        """The keys of the last day, the oldest first."""
        return [key for key, _ in self._keys.since(time.time() - KEYS_FOR)]

    # Comparisons of these marks with what the database shows.

    async def examine(self, connection: Rows) -> None:
        """Check a new connection before it is used. Raises `unavailable` for a database that has stepped back, and for
        a standby the driver's error of a server that is not ready."""
        # Copied before the database is asked: the answer need not include commits that happen while it is on its way.
        before = dict(self._seen)
        [row] = await connection.rows(_READ, (self._holder,), 0)
        if row["standby"]:
            raise asyncpg.CannotConnectNowError(_STANDBY)
        if not self._is_present(row, before):
            # In this order: first the event, which stops the service even if the statements fail; then the keys,
            # because callers may repeat their orders at once; then the notice, for a successor on another host.
            self._notice(before, row)
            await connection.command(REFUSE_KEYS, self._columns)
            await connection.command(_TELL, (self._holder, self.dealt))
            raise unavailable(
                "The database has lost its latest changes. Nothing was changed; the service restarts, and compares "
                "the hosts with its records.",
                details={"retry_after": 5},
            )

    async def still_there(self, queryable: Queryable) -> None:
        """Raises `SteppedBackError` if the database that `queryable` reads shows less than is known to be committed."""
        before = dict(self._seen)
        row = await queryable.fetchone(_READ, self._holder)
        if not self._is_present(row, before):
            self._notice(before, row)
            await queryable.execute(REFUSE_KEYS, *self._columns)
            await queryable.execute(_TELL, self._holder, self.dealt)
            raise self.error

    @property
    def error(self) -> SteppedBackError:
        return SteppedBackError(
            "The database has lost commits that it had acknowledged: it was put back, or another server has taken "
            "over without them. The service has stopped, so that nothing is given out twice. Start it again, unless "
            "its supervisor does: it then compares the world with the records first."
        )

    async def lost(self, queryable: Queryable) -> datetime | None:
        """Compare the database with the file, at the start. If the database has stepped back since the file was
        written, or another service has noticed that, returns the time of its last mark, else None. Afterwards the marks
        in the database count as the known ones. A database without any mark or event is new, and has lost nothing.
        Raises `unavailable` for a standby."""
        row = await queryable.fetchone(_READ, self._holder)
        if row["standby"]:
            raise cannot_connect(asyncpg.CannotConnectNowError(_STANDBY))
        there, known = _shown(row), self._seen
        # If the database's count is higher than ours, the loss was already dealt with: by another host, or by an
        # earlier run of this service that could not write its file.
        lost = not _has_all(row, known) and row["dealt"] <= self.dealt
        self._seen = dict(there)
        self._last = max(self._last, *there.values(), 0)
        self.dealt = row["dealt"]
        # The marks of the copied folder are compared now; from here on this host writes marks under an id of its own.
        if self._copied:
            self._holder, self._seen, self._copied = uuid4(), {}, False
        self._changed = True
        if not (lost or row["pending"]):
            return None
        as_of: datetime | None = await queryable.fetchval(_AS_OF)
        # The notice proves a step back in any case; only its time is unknown.
        if as_of is None and row["pending"]:
            return datetime.fromtimestamp(0, UTC)
        return as_of

    def _is_present(self, row: Record, known: dict[int, int]) -> bool:
        return _has_all(row, known) and not (self.serving and row["pending"])

    @property
    def _columns(self) -> tuple[list[str], list[str]]:
        keys = self.keys
        return [owner for owner, _ in keys], [key for _, key in keys]

    def _notice(self, known: dict[int, int], row: Record) -> None:
        if not self.stepped_back.is_set():
            log.error(
                "database.stepped_back",
                known=max(known.values(), default=0),
                there=max(_shown(row).values(), default=0),
            )
            self.stepped_back.set()

    # The file, which survives the process.

    async def write(self) -> None:
        """Write the file, where something has changed. Raises `OSError`."""
        if not self._changed:
            return
        # Reset before the content is taken, so that changes during the write are written the next time.
        self._changed = False
        known: dict[str, Any] = {
            "holder": str(self._holder),
            "machine": self._machine,
            "marks": self._seen,
            "keys": [(*key, noted) for key, noted in self._keys.since(time.time() - KEYS_FOR)],
            "dealt": self.dealt,
        }
        content = json.dumps(known).encode()
        try:
            await trio.to_thread.run_sync(partial(write_whole, self._path, content, mode=0o600))
        except BaseException:
            self._changed = True
            raise

    async def keep_written(self) -> None:
        """Write the file every second, until cancelled, and once more then. A full disk is waited out: the marks in
        memory do until the process ends."""
        try:
            while True:
                await trio.sleep(WRITE_SECONDS)
                await self.try_to_write()
        finally:
            with trio.CancelScope(shield=True, relative_deadline=_FINAL_WRITE):
                await self.try_to_write()

    async def try_to_write(self) -> None:
        try:
            await self.write()
        except OSError as error:
            log.warning("database_marks.not_written", path=str(self._path), error=str(error))


StepBack: TypeAlias = "Callable[[datetime, Sequence[Key]], Awaitable[None]]"
"""What a service does on a database that shows the past, before it serves anybody. It gets the time that the database
shows, and the idempotency keys that were used until now."""


@asynccontextmanager
async def marked(database: Database, folder: Path, step_back: StepBack) -> AsyncIterator[None]:
    """Have `database` mark what it commits, and be compared with what this data folder knows, for the length of the
    block. If it has stepped back, `step_back` is called first. Its schema exists, and no other service uses it."""
    marks = await trio.to_thread.run_sync(CommitMarks.load, folder)
    as_of = await marks.lost(database)
    database.marks = marks
    if as_of is not None:
        log.error("database.found_stepped_back", as_of=as_of.isoformat())
        await step_back(as_of, marks.keys)
        # Counted only after `step_back`: if the service is killed during it, the next start, or the successor, does it
        # again.
        marks.dealt = await database.transact(settle_losses)
    marks.serving = True
    # A full disk must not prevent the start: the database records that the loss was dealt with.
    await marks.try_to_write()
    async with background_nursery() as nursery:
        nursery.start_soon(marks.keep_written)
        yield


async def settle_losses(tx: Transaction) -> int:
    """Record that every loss of the database until now was dealt with, whether it was noticed or not; returns how often
    losses were dealt with so far."""
    return int(await tx.fetchval(_DEAL))


def forget_marks(folder: Path) -> None:
    """Delete the file of marks: an operator has deliberately restored another time or installed another database, and
    handles the consequences."""
    (folder / FILE).unlink(missing_ok=True)


def _machine() -> str:
    try:
        return MACHINE.read_text().strip()
    except OSError:
        return ""


def _shown(row: Record) -> dict[int, int]:
    return dict(zip(row["slots"], row["marks"], strict=True))


def _has_all(row: Record, known: dict[int, int]) -> bool:
    there = _shown(row)
    return all(there.get(slot, 0) >= value for slot, value in known.items())
