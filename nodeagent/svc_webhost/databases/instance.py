"""One engine's own instance on this server: set up once, run by the launcher, and managed as root over its socket.

    databases/mariadb/     0711  root
        data/              0700  mysql
        log
    run/shared/mariadb/    0755  mysql   the socket: the programs of every site may connect

Invariant: `data` exists if and only if the set-up has finished; an unfinished one is called `data.new`.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from svc_webhost.databases.client import MOST_ERROR_CHARACTERS
from svc_webhost.databases.server import DatabaseError
from svc_webhost.launcher import LauncherError, Service, SiteLauncher
from svc_webhost.programs import Program, run_program
from svc_webhost.tree_removal import remove_tree

SET_UP_SECONDS: Final = 180.0
START_SECONDS: Final = 120.0
"""After a power cut an engine reads its logs before it answers."""
_LOOK: Final = 0.05


@dataclass
class Instance:
    """`set_up` is the command that creates a data folder at a path, `asks` a statement to find out whether it is
    ready."""

    folder: Path
    sockets: Path
    account: str
    launcher: SiteLauncher
    service: Callable[[], Service]
    set_up: Callable[[Path], Program]
    asks: Callable[[], Awaitable[object]]
    _one: trio.Lock = field(default_factory=trio.Lock)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def exists(self) -> bool:
        return self.data.exists()

    async def ensure(self) -> None:
        async with self._one:
            try:
                await self._set_up()
                await self.launcher.ensure(self.service())
            except (LauncherError, OSError) as error:
                raise DatabaseError(f"The database server cannot be started: {error}") from error
            await self._answers()

    async def stop(self) -> None:
        async with self._one:
            await self.launcher.stop(self.service().name)

    async def _set_up(self) -> None:
        await trio.to_thread.run_sync(self._folders)
        if self.exists:
            return
        unfinished = self.folder / "data.new"
        await trio.to_thread.run_sync(self._empty, unfinished)
        said: list[str] = []

        async def take(lines: list[str]) -> None:
            said.extend(lines)
            await trio.lowlevel.checkpoint()

        with trio.move_on_after(SET_UP_SECONDS) as deadline:
            status = await run_program(self.set_up(unfinished), take)
        if deadline.cancelled_caught:
            raise DatabaseError(f"Setting up the database server took longer than {SET_UP_SECONDS:.0f} seconds.")
        if status != 0:
            why = " ".join(said[-5:])[-MOST_ERROR_CHARACTERS:]
            raise DatabaseError(f"The database server could not be set up (exit status {status}): {why}")
        await trio.to_thread.run_sync(self._finish, unfinished)

    def _folders(self) -> None:
        account = self._account()
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        self.sockets.mkdir(mode=0o755, parents=True, exist_ok=True)
        os.chown(self.sockets, account.pw_uid, account.pw_gid)

    def _empty(self, unfinished: Path) -> None:
        if unfinished.exists():
            remove_tree(unfinished)
        unfinished.mkdir(mode=0o700)
        account = self._account()
        os.chown(unfinished, account.pw_uid, account.pw_gid)

    def _finish(self, unfinished: Path) -> None:
        # The files must reach the disk before the rename does.
        os.sync()
        unfinished.rename(self.data)
        os.sync()

    def _account(self) -> pwd.struct_passwd:
        try:
            return pwd.getpwnam(self.account)
        except KeyError:
            raise OSError(f"there is no account {self.account}; its Debian package is not installed") from None

    async def _answers(self) -> None:
        why = "it was not asked"
        with trio.move_on_after(START_SECONDS):
            while True:
                try:
                    await self.asks()
                    return
                except DatabaseError as error:
                    why = str(error)
                await trio.sleep(_LOOK)
        raise DatabaseError(
            f"The database server does not answer {START_SECONDS:.0f} seconds after its start: {why} "
            f"({self.log} says more.)"
        )
