"""A client of MariaDB that works as the owner of one database, and has rights on no other.

Rejected: to work as root after a look at the names. The customer swaps a table for a view between the look and the
read, and the view calls the customer's function with root's rights. Rejected too: to sign in by unix_socket, without a
password. The process would need the account's own name; another name needs MariaDB 11.6, and this is 10.11.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from svc_webhost.databases.client import ask_client
from svc_webhost.databases.names import DatabaseName, owner_of
from svc_webhost.databases.owners import CONNECTIONS, Owners
from svc_webhost.databases.passwords import native_hash
from svc_webhost.databases.server import Access
from svc_webhost.mariadb.root import CLIENT, Root, RootStatement

# How long a cancelled job waits until the rights are revoked; it waits as long for the lock of the account (owners.py).
_REVOKE_SECONDS = 10.0


@dataclass(frozen=True)
class Session:
    """A session as a database owner whose account is unlocked. `login`: options for any of MariaDB's clients.
    `environment` holds the password, which every account of the server could read in arguments."""

    login: tuple[str, ...]
    environment: dict[str, str]

    async def ask(self, *statements: str) -> str:
        """Lines of tabulated values, also from the customer's views and functions. Raises `DatabaseError`."""
        # --quick: without it the client holds all rows in memory before it prints the first.
        command = (CLIENT, *self.login, "--sandbox", "--batch", "--quick", "--skip-column-names")
        return await ask_client(command, "".join(f"{each};\n" for each in statements), self.environment)


class MariaDbOwners:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._owners = Owners(self._unlock, self._lock)

    @asynccontextmanager
    async def session(self, name: DatabaseName, *, also: Collection[DatabaseName] = ()) -> AsyncIterator[Session]:
        """`also`: databases of the panel on which the owner has all rights during the block, so that tables can move
        between them. Raises `DatabaseError`."""
        owner = owner_of(name)
        login = ("--no-defaults", f"--socket={self._root.socket}", f"--user={owner}")
        async with self._owners.opened(name) as password, self._granted(owner, also):
            yield Session(login, {"MYSQL_PWD": password})

    @asynccontextmanager
    async def _granted(self, owner: str, also: Collection[DatabaseName]) -> AsyncIterator[None]:
        given = [RootStatement.GRANT(privileges=Access.FULL, pattern=each, account=owner) for each in also]
        taken = [RootStatement.REVOKE(pattern=each, account=owner) for each in also]
        if given:
            await self._root.ask(*given)
        try:
            yield
        finally:
            # Shielded: otherwise, after a cancellation, the owner would keep rights on a database that is not its own,
            # and its password is in the environment of a client that is just ending.
            if taken:
                with trio.move_on_after(_REVOKE_SECONDS, shield=True):
                    await self._root.ask(*taken)

    async def _unlock(self, name: DatabaseName, password: str) -> None:
        await self._root.ask(
            RootStatement.UNLOCK(account=owner_of(name), verifier=native_hash(password), number=CONNECTIONS)
        )

    async def _lock(self, name: DatabaseName) -> None:
        owner = owner_of(name)
        await self._root.ask(RootStatement.LOCK(account=owner), RootStatement.DISCONNECT(account=owner))
