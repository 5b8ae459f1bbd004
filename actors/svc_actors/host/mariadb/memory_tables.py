"""Tables of MariaDB's engine MEMORY: they are of no session, and stay in memory until the server is started anew.

A table has at most 16 MiB, and there may be as many as a customer likes. The engine cannot be refused (MariaDB has no
disabled_storage_engines), so what a site has above its bound is emptied, as any start of the server does. Which tables
are of it is read from the files that describe them, as asking the server would open every table.

To be emptied a table must be used by nobody, and a transaction that has read it uses it until it ends. So sessions of
the site are ended while the statement waits: it has its turn before who connects anew.
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

from svc_actors.host.databases.names import DatabaseName, is_database
from svc_actors.host.databases.server import DatabaseError
from svc_actors.host.mariadb.owner import MariaDbOwners, Session

TABLE_BYTES: Final = 16 << 20
"""max_heap_table_size, which no session can raise."""
DATABASE_BYTES: Final = 128 << 20
_WAIT: Final = "SET lock_wait_timeout = 3"
_PATIENCE: Final = 1.0
"""Seconds that a table may be in use before those who use it are ended. Less than `_WAIT`."""
_TICK_NS: Final = 1_000_000_000
_BINARY: Final = b"\xfe\x01"
"""What the description of a table begins with; that of a view is text."""
_ENGINE_AT: Final = 3
_PARTITION_ENGINE_AT: Final = 61
_MEMORY: Final = 6
"""DB_TYPE_HEAP."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.databases")


Known = dict[DatabaseName, tuple[int, int]]
"""Of databases: when the folder had changed, in nanoseconds, and how many tables of the engine were in it."""


def databases_with(data: Path, known: Known) -> Counter[DatabaseName]:
    """How many tables of the engine each database of a site has; one in parts counts as many. Files are opened only in
    folders that have changed since they became `known`: a table that is made or altered changes its folder. Blocks."""
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
            continue  # It was dropped meanwhile.
        # What has just changed may change again within the same tick of the file system's clock.
        found[name] = (changed if changed < began - _TICK_NS else 0, sum(map(_tables_of, tables)))
    known.clear()
    known.update(found)
    return +Counter({name: count for name, (_, count) in found.items()})


def _tables_of(file: Path) -> int:
    try:
        with file.open("rb") as described:
            head = described.read(_PARTITION_ENGINE_AT + 1)
    except OSError:
        return 0  # It was dropped meanwhile.
    if len(head) <= _PARTITION_ENGINE_AT or not head.startswith(_BINARY):
        return 0
    if head[_PARTITION_ENGINE_AT] == _MEMORY:
        return DATABASE_BYTES // TABLE_BYTES + 1
    return int(head[_ENGINE_AT] == _MEMORY)


async def empty_largest(
    data: Path, owners: MariaDbOwners, end_users: Callable[[DatabaseName], Awaitable[None]], known: Known
) -> None:
    """No database has more than `DATABASE_BYTES` in such tables; the largest are emptied. `end_users` ends the sessions
    of a database's site, but for its owner's."""
    for database, count in (await trio.to_thread.run_sync(databases_with, data, known)).items():
        if count * TABLE_BYTES <= DATABASE_BYTES:
            continue
        try:
            async with owners.session(database) as owner:
                await _empty(database, owner, end_users)
        except DatabaseError as error:
            # The next look tries again, and those of others are not left for it.
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
            with suppress(DatabaseError):  # The statement fails as well then.
                await end_users(database)

    failure: DatabaseError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(insist)
        try:
            await owner.ask(_WAIT, *emptied)
        except DatabaseError as error:
            # Raised below: a nursery would wrap it in a group.
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    log.warning("databases.memory_tables_emptied", database=database, tables=len(emptied))
