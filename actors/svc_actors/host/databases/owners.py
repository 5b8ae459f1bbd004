"""The owner of a database works: its account is open while something works as it, and locked otherwise.

Whatever reads or writes what a customer has made works as the owner of that database and never as the engine's
administrator: a table that was looked at may be a view by the time it is read, and what the view calls has the rights
of who reads. The owner has rights on its own database alone.

Several may work as the same owner at once (a preview during a backup). They share a password, which nobody else has;
the last one locks the account. One that a killed core has left open gets another password before it is used again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from svc_actors.host.databases.names import DatabaseName
from svc_actors.host.databases.passwords import new_password
from svc_actors.host.databases.server import DatabaseError

CONNECTIONS: Final = 8
"""Of one owner at a time. A customer who reads the password of a running import keeps no more of the engine busy."""
_LOCK_SECONDS: Final = 10.0
"""A cancelled job waits so long for the lock of its owner."""


@dataclass
class _Account:
    one: trio.Lock = field(default_factory=trio.Lock)
    password: str = ""
    holders: int = 0


class Owners:
    """Of one engine; one a process. `unlock` opens an owner's account with a password, `lock` closes it and ends its
    connections. Both raise `DatabaseError`."""

    def __init__(
        self, unlock: Callable[[DatabaseName, str], Awaitable[None]], lock: Callable[[DatabaseName], Awaitable[None]]
    ) -> None:
        self._unlock = unlock
        self._lock = lock
        self._accounts: defaultdict[DatabaseName, _Account] = defaultdict(_Account)

    @asynccontextmanager
    async def opened(self, name: DatabaseName) -> AsyncIterator[str]:
        """The password of the owner, which works until the block ends. Raises `DatabaseError`."""
        account = self._accounts[name]
        async with account.one:
            if account.holders == 0:
                account.password = new_password()
                try:
                    await self._unlock(name, account.password)
                except BaseException:
                    # It may have been opened: what is cancelled does not know how far the engine came.
                    with trio.move_on_after(_LOCK_SECONDS, shield=True), suppress(DatabaseError):
                        await self._lock(name)
                    raise
            account.holders += 1
        try:
            yield account.password
        except BaseException:
            with suppress(DatabaseError):
                await self._leave(name, account)
            raise
        await self._leave(name, account)

    async def _leave(self, name: DatabaseName, account: _Account) -> None:
        # Before anything is waited for: one that is counted for ever would keep the account open for ever.
        account.holders -= 1
        if account.holders:
            return
        # Shielded: the password of a cancelled import was in the environment of a process of the site.
        with trio.move_on_after(_LOCK_SECONDS, shield=True) as scope:
            async with account.one:
                # Another that came meanwhile locks it later: it has the password of now.
                if account.holders == 0:
                    await self._lock(name)
                    if not account.one.statistics().tasks_waiting:
                        self._accounts.pop(name, None)
        if scope.cancelled_caught and account.holders == 0:
            raise DatabaseError(
                f"The account of the owner of {name} was not locked within {_LOCK_SECONDS:.0f} seconds."
            )
