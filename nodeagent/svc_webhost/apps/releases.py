"""Releases of sites' applications: started next to the running one, probed, and switched to.

    run/apps/s1001-4.sock         bound for release 4, and kept across its restarts
    run/apps/s1001.sock           link to the socket of the release that visitors reach
    run/apps/s1001-4.variables    environment variables of release 4

The web server connects to the second name, a link. One rename(2) switches releases: earlier connections reach the old
one, later ones the new one, and the web server's configuration does not change. The old release is stopped once it has
answered a request made after the switch: sockets hand out connections in order, so by then it has taken all that were
waiting.

Why: docs/decisions/0045-php-and-applications.md.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import trio

from svc_webhost.accounts import SiteAccount
from svc_webhost.apps.model import KIND, LOG, App, app_log, service_of, socket_of, variables_file, write_variables
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import Launcher, LauncherError, ServiceName, ServiceStatus
from svc_webhost.site_logs import flush_logs
from svc_webhost.site_runtime import service_name

ANSWERS_WITHIN: Final = 20.0
"""Seconds that a started application has to answer."""
_LOOK_SECONDS: Final = 1.2
_DRAINED_WITHIN: Final = 5.0
_LOOK_AGAIN: Final = 0.2
_ERRORS_FROM: Final = 500
_TAIL: Final = 4096
_LINES: Final = 3
_RAISED: Final = re.compile(r"[\w.]*(?:Error|Exception)\b")
_NAME: Final = re.compile(rf"site-([0-9]+)-{KIND}([0-9]+)")


class AppError(Exception):
    """An application does not run as it should; the message has the application's own output. The previous release
    still runs."""


class AppServing(Protocol):
    """Applications of this server, as the panel needs them. Every method raises `AppError`, and may be repeated."""

    async def start(self, app: App, variables: Mapping[str, str]) -> None:
        """Start the release with these variables and wait for its answer; on failure, nothing of this release is
        left."""
        ...

    async def hold(self, app: App, variables: Mapping[str, str]) -> None:
        """Start the release if it does not run, for example after a boot, and let visitors reach it."""
        ...

    async def go_over(self, app: App) -> None:
        """Switch visitors to this release."""
        ...

    async def hide(self, account: SiteAccount) -> None:
        """Let visitors reach no release."""
        ...

    async def stop(self, app: App) -> None:
        """Stop the release once it has answered its requests."""
        ...

    async def remove(self, account: SiteAccount) -> None:
        """Stop all releases of the site's application, and let visitors reach none."""
        ...

    async def running(self) -> Mapping[int, frozenset[int]]:
        """The releases that were started and not stopped, by the number of their site."""
        ...

    async def status(self, app: App) -> ServiceStatus: ...

    async def problem(self, app: App) -> str | None:
        """Why visitors get no answer from this release, in words; None: they reach it, and it answers."""
        ...


def app_socket(folders: HostFolders, account: SiteAccount) -> Path:
    """Path of the socket nginx connects to."""
    return folders.apps / f"{account.name}.sock"


class AppReleases:
    def __init__(self, folders: HostFolders, launcher: Launcher) -> None:
        self._folders = folders
        self._launcher = launcher
        # Starts and stops of the same release run one at a time: a stop removes the release's variables, which a
        # concurrent start may just have written.
        self._one_at_a_time: defaultdict[ServiceName, trio.Lock] = defaultdict(trio.Lock)

    async def start(self, app: App, variables: Mapping[str, str]) -> None:
        log = app_log(self._folders, app.account)
        before = await trio.to_thread.run_sync(_size, log)
        try:
            await self._ensure(app, variables)
            problem = await self._problem(app)
        except (LauncherError, OSError) as error:
            problem = str(error)
        if problem is None:
            return
        with trio.CancelScope(shield=True):
            await self._stop(app.account, app.release)
        await flush_logs(self._folders, app.account, LOG)
        said = await trio.to_thread.run_sync(_said, log, before)
        raise AppError(f"{problem}{f' It said: {said}' if said else ''}")

    async def hold(self, app: App, variables: Mapping[str, str]) -> None:
        try:
            await self._ensure(app, variables)
        except (LauncherError, OSError) as error:
            raise AppError(str(error)) from error
        await self.go_over(app)

    async def go_over(self, app: App) -> None:
        try:
            await trio.to_thread.run_sync(_link, socket_of(app, self._folders), app_socket(self._folders, app.account))
        except OSError as error:
            raise AppError(f"Visitors cannot be sent to the application: {error}") from error

    async def hide(self, account: SiteAccount) -> None:
        await trio.to_thread.run_sync(lambda: app_socket(self._folders, account).unlink(missing_ok=True))

    async def stop(self, app: App) -> None:
        with trio.move_on_after(_DRAINED_WITHIN):
            await _status_of(socket_of(app, self._folders), app)
        await self._stop(app.account, app.release)

    async def remove(self, account: SiteAccount) -> None:
        await self.hide(account)
        for release in (await self.running()).get(account.number, frozenset()):
            await self._stop(account, release)

    async def running(self) -> Mapping[int, frozenset[int]]:
        found = defaultdict[int, set[int]](set)
        try:
            for name in await self._launcher.names():
                if match := _NAME.fullmatch(name):
                    found[int(match[1])].add(int(match[2]))
        except LauncherError as error:
            raise AppError(str(error)) from error
        return {number: frozenset(releases) for number, releases in found.items()}

    async def status(self, app: App) -> ServiceStatus:
        try:
            return await self._launcher.status(app.name)
        except LauncherError as error:
            raise AppError(str(error)) from error

    async def problem(self, app: App) -> str | None:
        status = await self.status(app)
        if not status.running:
            return f"The application does not run ({status.last_exit or 'it was not started'})."
        socket, link = socket_of(app, self._folders), app_socket(self._folders, app.account)
        if not await trio.to_thread.run_sync(lambda: link.is_symlink() and link.readlink().name == socket.name):
            return "Visitors do not reach the application: its socket is gone, or leads elsewhere."
        with trio.move_on_after(_LOOK_SECONDS):
            answered = await _status_of(socket, app)
            return None if answered < _ERRORS_FROM else f"It answers {app.health_path} with the status {answered}."
        return f"It runs, but does not answer {app.health_path} within {_LOOK_SECONDS:g} seconds."

    async def _stop(self, account: SiteAccount, release: int) -> None:
        name = service_name(account, f"{KIND}{release}")
        async with self._one_at_a_time[name]:
            try:
                await self._launcher.stop(name)
            except LauncherError as error:
                raise AppError(str(error)) from error
            variables_file(self._folders, account, release).unlink(missing_ok=True)

    async def _ensure(self, app: App, variables: Mapping[str, str]) -> None:
        async with self._one_at_a_time[app.name]:
            await trio.to_thread.run_sync(self._prepare, app, variables)
            await self._launcher.ensure(service_of(app, self._folders))

    def _prepare(self, app: App, variables: Mapping[str, str]) -> None:
        self._folders.apps.mkdir(mode=0o711, parents=True, exist_ok=True)
        write_variables(variables_file(self._folders, app.account, app.release), app.account, variables)

    async def _problem(self, app: App) -> str | None:
        """Why the release does not answer its probe; None once it does."""
        problem: str | None = f"It did not answer {app.health_path} within {ANSWERS_WITHIN:.0f} seconds."

        async def watch() -> None:
            nonlocal problem
            while True:
                try:
                    status = await self._launcher.status(app.name)
                except LauncherError as error:
                    # Caught here, because outside the nursery it would be an exception group, which callers do not
                    # catch.
                    problem = str(error)
                    nursery.cancel_scope.cancel()
                    return
                if status.restarts or not status.running:
                    problem = f"It ended right after its start ({status.last_exit or 'the reason is unknown'})."
                    nursery.cancel_scope.cancel()
                await trio.sleep(_LOOK_AGAIN)

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.relative_deadline = ANSWERS_WITHIN
            nursery.start_soon(watch)
            status = await _status_of(socket_of(app, self._folders), app)
            problem = None if status < _ERRORS_FROM else f"It answered {app.health_path} with the status {status}."
            nursery.cancel_scope.cancel()
        return problem


async def _status_of(socket: Path, app: App) -> int:
    """The HTTP status of the release's answer to its probe, however long the answer takes."""
    head = f"Host: {app.domain}\r\nUser-Agent: Service-Probe/1\r\nConnection: close\r\n\r\n"
    request = f"GET {app.health_path} HTTP/1.1\r\n{head}".encode()
    while True:
        try:
            async with await trio.open_unix_socket(str(socket)) as stream:
                await stream.send_all(request)
                received = bytearray()
                while b"\r\n" not in received and len(received) < _TAIL:
                    chunk = await stream.receive_some(_TAIL)
                    if not chunk:
                        break
                    received += chunk
            if match := re.match(rb"HTTP/1\.[01] ([1-5][0-9]{2})\b", bytes(received)):
                return int(match[1])
        except (OSError, trio.BrokenResourceError):
            # The application has ended, and its connections with it. The socket stays for the application's restart.
            pass
        await trio.sleep(_LOOK_AGAIN)


def _link(target: Path, link: Path) -> None:
    """Set the link in one step, whatever was there before."""
    new = link.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(target.name)
    os.replace(new, link)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def _said(log: Path, before: int) -> str:
    """The last lines that the release has written since its log had so many bytes."""
    try:
        with log.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(before if before <= size else 0, size - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    # If there are exceptions, only their lines are returned: they say more than the server's log lines about its end.
    raised = [line for line in said if _RAISED.match(line)]
    return " / ".join((raised or said)[-_LINES:])[:600]
