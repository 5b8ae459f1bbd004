"""Runs a site's scheduled task on this server: a file of the site, or an HTTP request to the site.

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

from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, Limits, SiteLauncher
from svc_webhost.nginx.render import SCHEDULED_AGENT
from svc_webhost.php import kept_mail
from svc_webhost.programs import Program, run_program
from svc_webhost.site_runtime import SiteCommands, site_environment

MARK: Final = "SVC_PANEL_SCHEDULE"
"""The environment variable with which the next core finds the programs of schedules."""
_CHUNK: Final = 16_384
_CONNECT_SECONDS: Final = 10.0

Take = Callable[[list[str]], Awaitable[None]]
"""Receives lines of the output, several at a time."""


class Interpreter(StrEnum):
    PHP = "php"
    PYTHON = "python"
    NODE = "node"

    @property
    def program(self) -> str:
        return {"php": "/usr/bin/php", "python": "/usr/bin/python3", "node": "/usr/bin/node"}[self.value]


@dataclass(frozen=True)
class SiteScript:
    """`path` is below the home of the account. `mark` identifies its processes."""

    account: SiteAccount
    interpreter: Interpreter
    path: str
    arguments: tuple[str, ...]
    limits: Limits
    mark: str
    staged: bool = False
    """Whether this is for a staging copy: PHP's mail is kept in the copy."""


@dataclass(frozen=True)
class SiteVisit:
    """`path` is requested from the site as it is served here, whatever the public DNS says. Redirects are not
    followed."""

    domain: str
    path: str
    secure: bool


class SiteTasks(Protocol):
    async def run(self, script: SiteScript, take: Take) -> int:
        """The exit status of the script; 128 plus the number of the signal that ended it. When cancelled, it ends with
        all its children. Raises OSError if no process can be started."""
        ...

    async def visit(self, visit: SiteVisit, take: Take) -> int:
        """The HTTP status; 0 if the site did not answer, with the reason in the last line."""
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
        # The connection goes to this server's own address, so always to its own nginx: the certificate need not be
        # verified.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        port = self._https_port if visit.secure else self._http_port
        url = f"{'https' if visit.secure else 'http'}://127.0.0.1:{port}{visit.path}"
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        # No compression is requested: a small compressed body may be larger than the memory once it is unpacked.
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
