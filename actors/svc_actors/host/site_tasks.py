"""What a site's scheduled task does on this server: run a file of the site to its end, or visit the site itself.

A script runs as the site's account, in its view of the server and within its limits (`site_runtime`), and never
outlives the core (`programs`).
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

import httpx
import trio

from svc_actors.host.accounts import SiteAccount
from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher import LauncherError, Limits, SiteLauncher
from svc_actors.host.nginx.render import SCHEDULED_AGENT
from svc_actors.host.php import kept_mail
from svc_actors.host.programs import Program, run_program
from svc_actors.host.site_runtime import SiteCommands, site_environment

MARK: Final = "SVC_PANEL_SCHEDULE"
"""The variable by which the programs of schedules are known to the next core."""
_CHUNK: Final = 16_384
_CONNECT_SECONDS: Final = 10.0

Take = Callable[[list[str]], Awaitable[None]]
"""Is given what is written, in lines, several at a time."""


class Interpreter(StrEnum):
    PHP = "php"
    PYTHON = "python"
    NODE = "node"

    @property
    def program(self) -> str:
        return {"php": "/usr/bin/php", "python": "/usr/bin/python3", "node": "/usr/bin/node"}[self.value]


@dataclass(frozen=True)
class SiteScript:
    """`path` is beneath the home of the account. `mark` tells its processes from all others."""

    account: SiteAccount
    interpreter: Interpreter
    path: str
    arguments: tuple[str, ...]
    limits: Limits
    mark: str
    staged: bool = False
    """Of a copy of a site: what PHP would mail is kept in the copy."""


@dataclass(frozen=True)
class SiteVisit:
    """`path` is asked of the site as it is served here, whatever the world's DNS says. Redirects are not followed."""

    domain: str
    path: str
    secure: bool


class SiteTasks(Protocol):
    async def run(self, script: SiteScript, take: Take) -> int:
        """The exit status of the script; 128 and the number of the signal that ended it. Cancelled, it is gone with all
        that it started. Raises OSError where no process can be begun."""
        ...

    async def visit(self, visit: SiteVisit, take: Take) -> int:
        """The status of HTTP; 0 where the site did not answer, which the last line says why."""
        ...


class HostTasks:
    def __init__(self, folders: HostFolders, launcher: SiteLauncher, http_port: int, https_port: int) -> None:
        self._folders = folders
        self._commands = SiteCommands(folders, launcher)
        self._http_port = http_port
        self._https_port = https_port

    async def run(self, script: SiteScript, take: Take) -> int:
        home = self._folders.sites / script.account.name
        words = (script.interpreter.program, str(home / script.path), *script.arguments)
        environment = site_environment(self._folders, script.account) | {MARK: script.mark}
        shown: tuple[Path, ...] = ()
        if script.staged:
            shown = (await trio.to_thread.run_sync(kept_mail.prepare, script.account, self._folders),)
            environment |= kept_mail.environment(script.account, self._folders)
        try:
            command = await self._commands.command(script.account, words, script.limits, shown=shown)
        except LauncherError as error:
            raise OSError(str(error)) from error
        return await run_program(Program(command, environment), take)

    async def visit(self, visit: SiteVisit, take: Take) -> int:
        # By this server's own address: whoever answers is this server's nginx, so its certificate proves nothing here.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        port = self._https_port if visit.secure else self._http_port
        url = f"{'https' if visit.secure else 'http'}://127.0.0.1:{port}{visit.path}"
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        # Taken as it comes: what is small when compressed may be more than memory when it is not.
        headers = {"Host": visit.domain, "User-Agent": SCHEDULED_AGENT, "Accept-Encoding": "identity"}
        try:
            async with (
                httpx.AsyncClient(verify=context, trust_env=False, timeout=timeout) as client,
                client.stream("GET", url, headers=headers, extensions={"sni_hostname": visit.domain}) as answer,
            ):
                await take([f"HTTP {answer.status_code} {answer.reason_phrase}"])
                async for part in answer.aiter_raw(_CHUNK):
                    await take(part.decode(errors="replace").splitlines())
                return answer.status_code
        except httpx.HTTPError as error:
            await take([f"{visit.domain} did not answer: {error or type(error).__name__}"])
            return 0
