"""Two PostgreSQL servers, one of which follows the other asynchronously, as an operator would have them.

Services reach whichever is the primary under one address, as behind HAProxy or a virtual address: a folder of sockets
that is a symbolic link.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from svc_actors.store import Database
from svc_actors.store.embedded import PROGRAMS
from svc_actors.store.reach import server_account
from tests.support.postgres_server import until

_ACCOUNT = server_account()
_SETTINGS = (
    *("listen_addresses = ''", "fsync = off", "jit = off", "max_connections = 150", "wal_level = replica"),
    *("max_wal_senders = 4", "hot_standby = on", "timezone = 'UTC'"),
)


@dataclass
class Replicated:
    """`primary` and `standby` are the names of folders; `number` counts servers that were made."""

    folder: Path
    primary: str = ""
    standby: str = ""
    number: int = 0
    running: set[str] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        """For a service, with the two roles of docs/database.md."""
        return {"SVC_DATABASE_URL": self.url("svc"), "SVC_DATABASE_OWNER_URL": self.url("svc_owner")}

    def url(self, role: str, server: str = "current", database: str = "svc") -> str:
        return f"postgresql://{role}@/{database}?host={self.folder / server}"

    async def make_primary(self) -> None:
        name = self._next()
        await self._run("initdb", "-D", str(self._data(name)), "-U", "postgres", "--auth=trust", "--no-sync")
        await self._serve(name)
        self._lead_to(name)
        async with Database.open(self.url("postgres", name, "postgres"), size=1) as database:
            for role in ("svc_owner", "svc"):
                await database.execute(f"CREATE ROLE {role} LOGIN")
            await database.execute("CREATE DATABASE svc OWNER svc_owner")

    async def make_standby(self) -> None:
        """A copy of the primary, which follows it from now on."""
        name = self._next()
        copy = ("-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-U", "postgres")
        await self._run("pg_basebackup", "-h", str(self.folder / self.primary), "-D", str(self._data(name)), *copy)
        self.standby = name
        await self._serve(name)

    async def until_same(self) -> None:
        """Until the standby has all that the primary has committed by now."""
        async with (
            Database.open(self.url("postgres", self.primary), size=1) as primary,
            Database.open(self.url("postgres", self.standby), size=1) as standby,
        ):
            position = await primary.fetchval("SELECT pg_current_wal_flush_lsn()::text")

            async def reached() -> bool:
                return bool(await standby.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position))

            await until(reached)

    async def cut_off(self) -> None:
        """The standby gets nothing more."""
        async with Database.open(self.url("postgres", self.standby), size=1) as standby:
            await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            await standby.fetchval("SELECT pg_reload_conf()")

            async def alone() -> bool:
                return not await standby.fetchval("SELECT count(*) FROM pg_stat_wal_receiver")

            await until(alone)

    async def fail_over(self, *, planned: bool = False) -> None:
        """The primary is killed, or told to end, and the standby takes over."""
        await self._stop(self.primary, "fast" if planned else "immediate")
        await self._run("pg_ctl", "-D", str(self._data(self.standby)), "-w", "promote")
        gone, heir, self.standby = self.primary, self.standby, ""
        self._lead_to(heir)
        shutil.rmtree(self.folder / gone)

    async def stop(self) -> None:
        for name in list(self.running):
            await self._stop(name, "immediate")

    def _next(self) -> str:
        self.number += 1
        name = f"server-{self.number}"
        (self.folder / name).mkdir(mode=0o700)
        if _ACCOUNT is not None:
            shutil.chown(self.folder / name, _ACCOUNT.uid, _ACCOUNT.gid)
        return name

    def _data(self, name: str) -> Path:
        return self.folder / name / "data"

    def _lead_to(self, name: str) -> None:
        new = self.folder / "current.new"
        new.symlink_to(name)
        new.rename(self.folder / "current")
        self.primary = name

    async def _serve(self, name: str) -> None:
        place = f"unix_socket_directories = '{self.folder / name}'"
        with (self._data(name) / "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *_SETTINGS, place, ""]))
        await self._run("pg_ctl", "-D", str(self._data(name)), "-w", "-l", str(self.folder / name / "log"), "start")
        self.running.add(name)

    async def _stop(self, name: str, mode: str) -> None:
        await self._run("pg_ctl", "-D", str(self._data(name)), "-w", "-m", mode, "stop")
        self.running.discard(name)

    async def _run(self, program: str, *arguments: str) -> None:
        await trio.run_process(
            [str(PROGRAMS / program), *arguments],
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            user=_ACCOUNT.uid if _ACCOUNT else None,
            group=_ACCOUNT.gid if _ACCOUNT else None,
            extra_groups=[] if _ACCOUNT else None,
            capture_stdout=True,
            capture_stderr=True,
        )


@asynccontextmanager
async def replicated() -> AsyncIterator[Replicated]:
    """A primary with a database, and a standby that follows it."""
    memory = "/dev/shm"
    folder = Path(tempfile.mkdtemp(prefix="svc-pair-", dir=memory if os.access(memory, os.W_OK) else None))
    folder.chmod(0o711)
    pair = Replicated(folder)
    try:
        await pair.make_primary()
        await pair.make_standby()
        yield pair
    finally:
        with trio.CancelScope(shield=True, relative_deadline=60):
            await pair.stop()
        shutil.rmtree(folder, ignore_errors=True)
