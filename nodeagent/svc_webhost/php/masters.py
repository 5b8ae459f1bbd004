"""The php-fpm masters of this server's sites: starts, probes and ends them.

Why: docs/decisions/0045-php-and-applications.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog
import trio

from svc_common.durable import hold
from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, ServiceName, SiteLauncher
from svc_webhost.php import kept_mail
from svc_webhost.php.extensions import Extension, installed_extensions, installed_versions
from svc_webhost.php.fastcgi import ask
from svc_webhost.php.pool import (
    KIND,
    LOG,
    PING,
    Pool,
    configuration_of,
    log_of,
    number_of,
    pool_service,
    program,
    render_pool,
    socket_of,
)
from svc_webhost.site_logs import flush_logs
from svc_webhost.site_runtime import service_name, stop_programs
from svc_webhost.tree_removal import remove_tree

_ANSWERS_WITHIN: Final = 20.0
_AGAIN: Final = 0.05
_LOOK_SECONDS: Final = 1.2
"""Seconds for PHP that runs or rests: it answers in milliseconds, or as soon as its master is started."""
_PING: Final = {"SCRIPT_NAME": PING, "SCRIPT_FILENAME": PING, "REQUEST_METHOD": "GET", "SERVER_PROTOCOL": "HTTP/1.1"}
_TAIL: Final = 4096
_CHILDREN_FAULTS: Final = 8
"""The position of cminflt, counted from the field of the state."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.php")


class PhpError(Exception):
    """PHP of a site does not run as it should; the message has PHP's own error. The previous pool still runs."""


@dataclass(frozen=True)
class _Seen:
    asked: tuple[int, int | None]
    """The pid of the master, and the result of `_asked` for it."""
    since: float
    """A time on Trio's clock."""


class PhpServing(Protocol):
    """PHP of this server, as the panel needs it. The methods raise `PhpError`, and may be repeated."""

    async def versions(self) -> list[str]:
        """Versions available to sites, the newest first."""
        ...

    async def extensions(self, version: str) -> list[Extension]: ...

    async def start(self, pool: Pool) -> None:
        """Start it and wait until it answers."""
        ...

    async def running(self) -> frozenset[ServiceName]:
        """The PHP services of all sites that were started and not stopped."""
        ...

    async def rest_idle(self, seconds: float) -> None:
        """End masters that have had no request for so long; the next request of a visitor starts such a master
        again."""
        ...

    async def reconcile(self, pools: Collection[Pool]) -> None:
        """Restore the configuration of these running services, which is used when they restart."""
        ...

    async def is_current(self, pool: Pool) -> bool:
        """Whether the service's configuration, which is used when it restarts, is correct."""
        ...

    async def problem(self, pool: Pool) -> str | None:
        """Why visitors get no answer from the service, in words; None: it answers. The check starts a service that is
        idle."""
        ...

    async def stop(self, name: ServiceName) -> None:
        """Stop the service once it has answered its open requests, after a minute at most."""
        ...

    async def remove(self, account: SiteAccount) -> None:
        """Remove everything of this site's PHP."""
        ...


class PhpMasters:
    def __init__(self, folders: HostFolders, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._launcher = launcher
        self._last: dict[ServiceName, _Seen] = {}

    async def versions(self) -> list[str]:
        return await trio.to_thread.run_sync(installed_versions)

    async def extensions(self, version: str) -> list[Extension]:
        return await trio.to_thread.run_sync(installed_extensions, version)

    async def start(self, pool: Pool) -> None:
        if not program(pool.version).is_file():
            raise PhpError(f"PHP {pool.version} is not installed on this server.")
        before = pool.service_name in await self.running()
        try:
            size = await trio.to_thread.run_sync(_prepare, pool, self._folders)
            await self._launcher.ensure(pool_service(pool, self._folders))
            await self._proven(pool, size)
        except (LauncherError, OSError, PhpError) as error:
            if not before:
                with trio.CancelScope(shield=True):
                    try:
                        await self._launcher.stop(pool.service_name)
                    except LauncherError as left:
                        # A service that stays running is stopped by the rounds, because no record wants it
                        # (panel/sites/programs.py).
                        log.warning("php.failed_start_left", service=pool.service_name, reason=str(left))
            raise PhpError(str(error)) from error

    async def running(self) -> frozenset[ServiceName]:
        try:
            return frozenset(name for name in await self._launcher.names() if number_of(name) is not None)
        except LauncherError as error:
            raise PhpError(str(error)) from error

    async def rest_idle(self, seconds: float) -> None:
        """If ending one master fails, the others are ended nevertheless; the first failure is raised at the end."""
        try:
            processes = await self._launcher.processes()
        except LauncherError as error:
            raise PhpError(str(error)) from error
        masters = {name: pid for name, pid in processes.items() if number_of(name) is not None}
        now = trio.current_time()
        before, self._last = self._last, {}
        failures: list[LauncherError] = []
        for name, pid in masters.items():
            asked = await trio.to_thread.run_sync(_asked, pid)
            last = before.get(name)
            if asked is None or last is None or last.asked != (pid, asked):
                self._last[name] = _Seen((pid, asked), now)
            elif now - last.since < seconds:
                self._last[name] = last
            else:
                try:
                    await self._launcher.stop_idle(name)
                except LauncherError as error:
                    failures.append(error)
        if failures:
            raise PhpError(str(failures[0])) from failures[0]

    async def reconcile(self, pools: Collection[Pool]) -> None:
        """If writing one file fails, the others are written nevertheless; the first failure is raised at the end."""

        def prepare() -> list[OSError]:
            failures: list[OSError] = []
            for pool in pools:
                try:
                    _prepare(pool, self._folders)
                except OSError as error:
                    failures.append(error)
            return failures

        if failures := await trio.to_thread.run_sync(prepare):
            raise PhpError(f"The configuration of PHP cannot be written: {failures[0]}") from failures[0]

    async def is_current(self, pool: Pool) -> bool:
        def look() -> bool:
            try:
                text = configuration_of(pool, self._folders).read_text(errors="replace")
            except OSError:
                return False
            return text == render_pool(pool, self._folders)

        return await trio.to_thread.run_sync(look)

    async def problem(self, pool: Pool) -> str | None:
        if pool.service_name not in await self.running():
            return f"PHP {pool.version} does not run."
        with trio.move_on_after(_LOOK_SECONDS):
            try:
                answer = await ask(socket_of(pool, self._folders), _PING)
            except OSError as error:
                return f"PHP {pool.version} does not answer: {error}"
            return None if _is_answer(answer, pool) else f"PHP {pool.version} responds, but with an unexpected answer."
        return f"PHP {pool.version} runs, and does not answer within {_LOOK_SECONDS:g} seconds."

    async def stop(self, name: ServiceName) -> None:
        try:
            await self._launcher.stop(name)
        except LauncherError as error:
            raise PhpError(str(error)) from error
        number = number_of(name)
        if number is not None:
            await trio.to_thread.run_sync(_forget, SiteAccount(number), name, self._folders)

    async def remove(self, account: SiteAccount) -> None:
        try:
            await stop_programs(self._launcher, account, KIND)
        except LauncherError as error:
            raise PhpError(str(error)) from error
        await trio.to_thread.run_sync(_remove, self._folders.php / account.name)

    async def _proven(self, pool: Pool, logged: int) -> None:
        problem = "nothing was answered"
        with trio.move_on_after(_ANSWERS_WITHIN):
            while True:
                try:
                    answer = await ask(socket_of(pool, self._folders), _PING)
                except OSError as error:
                    problem = str(error)
                else:
                    if _is_answer(answer, pool):
                        return
                    problem = answer.decode(errors="replace")[:200]
                await trio.sleep(_AGAIN)
        await flush_logs(self._folders, pool.account, LOG)
        said = await trio.to_thread.run_sync(_said, log_of(pool.account, self._folders), logged)
        raise PhpError(f"PHP {pool.version} does not answer within {_ANSWERS_WITHIN:g} seconds: {said or problem}")


def _is_answer(answer: bytes, pool: Pool) -> bool:
    """Whether it is the answer to a ping."""
    return answer.endswith(f"\r\n\r\n{pool.account.name}".encode())


def _asked(pid: int) -> int | None:
    """A counter that grows with each ended worker, and so with answered requests: half a minute after its last request
    a master has no workers. None: the master has workers now, or is gone."""
    try:
        if Path(f"/proc/{pid}/task/{pid}/children").read_text():
            return None
        # Page faults of children that were reaped, see proc(5): every process causes some, so the number shows whether
        # any has run.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[_CHILDREN_FAULTS])
    except OSError:
        return None


def _prepare(pool: Pool, folders: HostFolders) -> int:
    """Write its folders and configuration; returns the size of its log."""
    folders.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    folders.php_sockets.mkdir(mode=0o711, exist_ok=True)
    configuration = configuration_of(pool, folders)
    folders.php.mkdir(mode=0o711, exist_ok=True)
    # This folder is not visible to other sites.
    configuration.parent.mkdir(mode=0o755, exist_ok=True)
    if pool.staged:
        kept_mail.prepare(pool.account, folders)
    hold(configuration, render_pool(pool, folders))
    try:
        return log_of(pool.account, folders).stat().st_size
    except FileNotFoundError:
        return 0


def _forget(account: SiteAccount, name: ServiceName, folders: HostFolders) -> None:
    """Delete the configuration of a stopped service."""
    for path in (folders.php / account.name).glob("*.conf"):
        if service_name(account, f"{KIND}{path.stem}") == name:
            path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    if folder.exists():
        remove_tree(folder)


def _said(path: Path, since: int) -> str:
    """The last line that was written since the log had this size."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, path.stat().st_size - _TAIL))
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    return lines[-1][:500] if lines else ""
