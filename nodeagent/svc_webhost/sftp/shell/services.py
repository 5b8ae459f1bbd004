"""The services that run shells: one for each login, with the limits of its site, and removed with the login."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import trio

from svc_webhost.folders import HostFolders
from svc_webhost.launcher import LauncherError, ListeningSocket, Service, ServiceName, SiteLauncher
from svc_webhost.php import kept_mail
from svc_webhost.sftp.model import AccessKind, SftpLogin
from svc_webhost.sftp.shell import enter, serve
from svc_webhost.site_runtime import service_name, site_command, site_environment, site_group

KIND: Final = "shell-"
MOST_PROCESSES: Final = 256
"""The limit for an account's shell if its site sets none: a person at a terminal never needs more."""
_NAME: Final = re.compile(rf"site-\d+-{KIND}[a-z0-9-]+")
_STOP_SECONDS: Final = 5.0
_TOP: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""In the root folder: on Debian each of these is a link into /usr."""


class Shells:
    def __init__(self, folders: HostFolders, launcher: SiteLauncher) -> None:
        self._folders = folders
        self._launcher = launcher

    def prepare(self, root: Path) -> None:
        """Create the folder that sshd uses as the chroot of logins. Blocks."""
        for folder in (root, root / "usr", root / "sockets", self._folders.run):
            folder.mkdir(mode=0o711 if folder == self._folders.run else 0o755, parents=True, exist_ok=True)
        self._folders.shells.mkdir(mode=0o711, exist_ok=True)
        for name in _TOP:
            if os.path.islink(f"/{name}") and not (root / name).is_symlink():
                (root / name).symlink_to(os.readlink(f"/{name}"))
        new = root / ".enter.new"
        shutil.copyfile(enter.__file__, new)
        new.chmod(0o755)
        new.rename(root / "enter")

    def service(self, login: SftpLogin) -> Service:
        # This limit is set with RLIMIT_NPROC for this shell alone; the limits of the group apply to all programs of the
        # site together.
        processes = MOST_PROCESSES if login.limits.processes is None else None
        environment, shown = site_environment(self._folders, login.account), []
        if login.staged:
            environment |= kept_mail.environment(login.account, self._folders)
            shown.append(kept_mail.folder_of(login.account, self._folders))
        command = site_command(self._folders, login.account, (), shown=shown, processes=processes)
        program = (sys.executable, "-I", "-S", str(serve.__file__), str(login.account.uid))
        path = self._folders.shells / f"{login.name}.sock"
        return Service(
            name=_service_name(login),
            command=(*program, *command),
            environment=environment,
            sockets=(ListeningSocket(path, 0o660, "root", login.account.name, serve.LISTENING),),
            limits=login.limits,
            limit_group=site_group(login.account),
            stop_seconds=_STOP_SECONDS,
        )

    async def agree(self, logins: Collection[SftpLogin], ended: Collection[str]) -> None:
        """Run exactly these services, and end everything that the logins `ended` have started. Tries all, then raises
        `LauncherError` for a failure."""
        shells = [login for login in logins if login.kind is AccessKind.SHELL]
        services = [self.service(login) for login in shells]
        anew = {_service_name(login) for login in logins if login.name in ended}
        wanted = {service.name for service in services} - anew
        refused: list[LauncherError] = []
        for name in sorted(await self._launcher.names()):
            if _NAME.fullmatch(name) and name not in wanted:
                await self._launcher.stop(name)
        for login, service in zip(shells, services, strict=True):
            if login.staged:
                await trio.to_thread.run_sync(kept_mail.prepare, login.account, self._folders)
            try:
                # The limits are set before the definitions are compared, because changed limits apply to running
                # shells, too.
                await self._launcher.limit(site_group(login.account), login.limits)
                await self._launcher.ensure(service)
            except LauncherError as error:
                refused.append(error)
        if refused:
            raise refused[0]
        await trio.lowlevel.checkpoint()


def _service_name(login: SftpLogin) -> ServiceName:
    return service_name(login.account, f"{KIND}{login.name.partition('-')[2]}")
