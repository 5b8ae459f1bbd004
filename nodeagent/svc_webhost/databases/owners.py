"""Opens a database owner's account while it is in use, and locks it otherwise.

All work on a customer's data runs as the owner of that database and never as the engine's administrator: a table that
was just checked may be a view by the time it is read, and functions in the view have the rights of the reader. The
owner has rights on its own database alone.

Concurrent users of an owner (a preview during a backup) share a password, which nobody else has; the last one locks the
account. An account that a killed core has left open gets a new password before its next use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import trio

from svc_webhost.databases.names import DatabaseName
from svc_webhost.databases.passwords import new_password
from svc_webhost.databases.server import DatabaseError

CONNECTIONS: Final = 8
"""The most connections per owner. A customer who reads the password of a running import can use at most this many of
the engine's connections."""
_LOCK_SECONDS: Final = 10.0
"""How long a cancelled job waits for the lock of its owner."""


@dataclass
class _Account:
    one: trio.Lock = field(default_factory=trio.Lock)
    password: str = ""
    holders: int = 0


class Owners:
    """The owners of one engine; one per process. `unlock` opens an owner's account with a password, `lock` closes it
    and ends its connections. Both raise `DatabaseError`."""

    def __init__(
        self, unlock: Callable[[DatabaseName, str], Awaitable[None]], lock: Callable[[DatabaseName], Awaitable[None]]
    ) -> None:
        self._unlock = unlock
        self._lock = lock
        self._accounts: defaultdict[DatabaseName, _Account] = defaultdict(_Account)

    @asynccontextmanager
    async def opened(self, name: DatabaseName) -> AsyncIterator[str]:
        """Yields the password of the owner, which works until the block ends. Raises `DatabaseError`."""
        account = self._accounts[name]
        async with account.one:
            if account.holders == 0:
                account.password = new_password()
                try:
                    await self._unlock(name, account.password)
                except BaseException:
                    # Locked in any case: after a cancellation it is unknown whether the engine has unlocked the
                    # account.
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
        # Counted down before anything is awaited: a holder that is never counted down would keep the account open for
        # ever.
        account.holders -= 1
        if account.holders:
            return
        # Shielded, so that the account is locked even after a cancellation: the password was in the environment of a
        # process of the site.
        with trio.move_on_after(_LOCK_SECONDS, shield=True) as scope:
            async with account.one:
                # If another holder came meanwhile, it uses the current password, and locks the account later.
                if account.holders == 0:
                    await self._lock(name)
                    if not account.one.statistics().tasks_waiting:
                        self._accounts.pop(name, None)
        if scope.cancelled_caught and account.holders == 0:
            raise DatabaseError(
                f"The account of the owner of {name} was not locked within {_LOCK_SECONDS:.0f} seconds."
            )
