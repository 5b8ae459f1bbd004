"""Limits tables of MariaDB's engine MEMORY, which belong to no session, and stay in memory until the server restarts.

A table has at most 16 MiB, but a customer may create any number. The engine cannot be disabled (MariaDB has no
disabled_storage_engines), so tables beyond a site's limit are emptied, as any restart of the server does. The engine of
a table is read from its description file, since asking the server would open every table.

To be emptied a table must not be in use, and a transaction that has read it uses it until it ends. So sessions of the
site are ended while the statement waits: it comes before new connections.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
import trio

from svc_webhost.databases.names import DatabaseName, is_database
from svc_webhost.databases.server import DatabaseError
from svc_webhost.mariadb.owner import MariaDbOwners, Session

TABLE_BYTES: Final = 16 << 20
"""max_heap_table_size, which no session can raise."""
DATABASE_BYTES: Final = 128 << 20
_WAIT: Final = "SET lock_wait_timeout = 3"
_PATIENCE: Final = 1.0
"""Seconds for which a table may be in use before its users' sessions are ended. Less than `_WAIT`."""
_TICK_NS: Final = 1_000_000_000
_BINARY: Final = b"\xfe\x01"
"""How the description of a table starts; a view's is text."""
_ENGINE_AT: Final = 3
_PARTITION_ENGINE_AT: Final = 61
_MEMORY: Final = 6
"""The number of the engine, DB_TYPE_HEAP."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.databases")


Known = dict[DatabaseName, tuple[int, int]]
"""For each database: the mtime of its folder in nanoseconds, and the number of MEMORY tables in it."""


def databases_with(data: Path, known: Known) -> Counter[DatabaseName]:
    """Number of MEMORY tables per database of a site; a partitioned one counts as many. Files are opened only in
    folders that have changed since they became `known`: creating or altering a table changes its folder. Blocks."""
    found: Known = {}
    for database in os.scandir(data):
        if not database.is_dir(follow_symlinks=False) or not is_database(database.name):
            continue
        name, began = DatabaseName(database.name), time.time_ns()
        try:
            changed = os.stat(database.path).st_mtime_ns
            if name in known and known[name][0] == changed:
                found[name] = known[name]
                continue
            tables = [Path(entry.path) for entry in os.scandir(database.path) if entry.name.endswith(".frm")]
        except FileNotFoundError:
            continue  # The database was dropped meanwhile.
        # If the folder has changed very recently, it may change again within the same tick of the file system's clock.
        # Then 0 is stored as the time, so that the next look reads it again.
        found[name] = (changed if changed < began - _TICK_NS else 0, sum(map(_tables_of, tables)))
    known.clear()
    known.update(found)
    return +Counter({name: count for name, (_, count) in found.items()})


def _tables_of(file: Path) -> int:
    try:
        with file.open("rb") as described:
            head = described.read(_PARTITION_ENGINE_AT + 1)
    except OSError:
        return 0  # The table was dropped meanwhile.
    if len(head) <= _PARTITION_ENGINE_AT or not head.startswith(_BINARY):
        return 0
    if head[_PARTITION_ENGINE_AT] == _MEMORY:
        return DATABASE_BYTES // TABLE_BYTES + 1
    return int(head[_ENGINE_AT] == _MEMORY)


async def empty_largest(
    data: Path, owners: MariaDbOwners, end_users: Callable[[DatabaseName], Awaitable[None]], known: Known
) -> None:
    """Empty the largest MEMORY tables of databases with more than `DATABASE_BYTES` in them. `end_users` ends the
    sessions of a database's site, except its owner's."""
    for database, count in (await trio.to_thread.run_sync(databases_with, data, known)).items():
        if count * TABLE_BYTES <= DATABASE_BYTES:
            continue
        try:
            async with owners.session(database) as owner:
                await _empty(database, owner, end_users)
        except DatabaseError as error:
            # The next look tries this database again; the other databases get their turn now.
            log.warning("databases.memory_tables_not_emptied", database=database, error=str(error))


async def _empty(database: DatabaseName, owner: Session, end_users: Callable[[DatabaseName], Awaitable[None]]) -> None:
    told = await owner.ask(
        _WAIT,
        "SELECT DATA_LENGTH + INDEX_LENGTH, HEX(TABLE_NAME) FROM information_schema.TABLES "
        f"WHERE TABLE_SCHEMA = '{database}' AND ENGINE = 'MEMORY' ORDER BY 1 DESC",
    )
    sizes = [(int(size), bytes.fromhex(name).decode()) for size, name in map(str.split, told.splitlines())]
    taken, emptied = sum(size for size, _ in sizes), []
    for size, name in sizes:
        if taken <= DATABASE_BYTES:
            break
        quoted = name.replace("`", "``")
        emptied.append(f"TRUNCATE TABLE `{database}`.`{quoted}`")
        taken -= size
    if not emptied:
        return

    async def insist() -> None:
        while True:
            await trio.sleep(_PATIENCE)
            with suppress(DatabaseError):  # If this fails, the statement fails as well, and reports the reason.
                await end_users(database)

    failure: DatabaseError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(insist)
        try:
            await owner.ask(_WAIT, *emptied)
        except DatabaseError as error:
            # Raised below, because the nursery would wrap it in an exception group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    log.warning("databases.memory_tables_emptied", database=database, tables=len(emptied))
