"""Runs programs of one site: as its account, within its limits, and without seeing anything of other sites.

A long-running program (PHP, an application) is a `Service` of the launcher, made by `site_service`; one that runs to
its end (a build, a scheduled task, the loading of a database) is a command of `programs.run_program`, made by
`SiteCommands`. Both become the account and get its view of the server in one place, `confined/enter_site.py`, which
describes the view. Both are in the site's group, whose limits are those of all its programs together. So it is the same
under the keeper and under systemd.

Rejected for commands: setrlimit(2) alone. RLIMIT_DATA is per process, and counts neither memfd_create(2) nor shared
maps nor the tmpfs of the view, and no rlimit is one of processor time a second.

The names of a site's services start with `site-<number>-`: so all of them are found and stopped.

Why: docs/decisions/0038-confinement-of-site-programs.md.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_webhost import confined, database_clients, mail
from svc_webhost.accounts import SiteAccount
from svc_webhost.folders import HostFolders
from svc_webhost.launcher import GroupName, Launcher, Limits, ListeningSocket, Service, ServiceName, SiteLauncher
from svc_webhost.site_logs import log_pipe

_ENTER: Final = Path(confined.__file__).with_name("enter_site.py")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_NICE: Final = ("/usr/bin/nice", "-n", "10")
_MIB: Final = 1 << 20
_SITES_OWN: Final = re.compile(r"site-[0-9]+-")
"""Matches `_prefix` of any account."""
WEB_SERVER: Final = "www-data"


def site_environment(folders: HostFolders, account: SiteAccount) -> dict[str, str]:
    """The environment that every program of a site gets."""
    home = folders.sites / account.name
    return {
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "USER": account.name,
        "LOGNAME": account.name,
        # On the site's disk, because /tmp is in memory.
        "TMPDIR": str(home / "tmp"),
        **database_clients.environment(folders),
    }


def site_command(
    folders: HostFolders,
    account: SiteAccount,
    command: Collection[str],
    *,
    folder: Path | None = None,
    shown: Collection[Path] = (),
    processes: int | None = None,
    log: str | None = None,
    ends_with_parent: bool = False,
) -> tuple[str, ...]:
    """The command that runs `command`, an absolute program and its arguments, as the account of the site. To be started
    as root, with `site_environment`. `folder`: its working directory, by default the home. `shown`: further parts of
    the data folder, or of emptied folders, that it may read, as far as its rights there permit. `processes`: how many
    the account may have at once. `log`: the site's log for its output (`site_logs.site_log`); none: the inherited one.
    `ends_with_parent`: for a command rather than a service: it is killed when the process that started it ends, and
    before the site's services if memory runs out."""
    home = folders.sites / account.name
    # This is a part of the services' definitions: a key that is added here for all of them restarts all sites at an
    # update.
    wanted: dict[str, object] = {
        "uid": account.uid,
        "gid": account.uid,
        "home": str(home),
        "folder": str(folder or home),
        "data": str(folders.data),
        "shown": [str(path) for path in (folders.shared_sockets, *shown)],
        "processes": processes,
        "log": None if log is None else str(log_pipe(folders, account, log)),
    }
    if ends_with_parent:
        wanted["ends_with_parent"] = True
    return (sys.executable, "-I", "-S", str(_ENTER), json.dumps(wanted), *command)


@dataclass(frozen=True)
class SiteCommands:
    """The only way to run commands for a site. A test lists the other places that start programs, and why."""

    folders: HostFolders
    launcher: SiteLauncher

    async def command(
        self,
        account: SiteAccount,
        command: Collection[str],
        limits: Limits | None,
        *,
        folder: Path | None = None,
        shown: Collection[Path] = (),
    ) -> tuple[str, ...]:
        """The command that runs `command` like `site_command`, in the group of the site, and at lower priority than
        visitors' requests (nice). `limits`: of the site; None if the caller does not know them, and the program runs no
        code of the site's: then the group keeps its limits. Raises `LauncherError`.

        RLIMIT_DATA is set as well: a process that needs too much gets an error and can report it, which is better than
        to be killed; and it is the only limit on a server without control groups."""
        processes = None if limits is None else limits.processes
        # Under systemd the process is not in the core's unit, so it would not end with the core without this.
        words = site_command(
            self.folders, account, command, folder=folder, shown=shown, processes=processes, ends_with_parent=True
        )
        if limits is not None and limits.memory_mib is not None:
            size = limits.memory_mib * _MIB
            words = ("/usr/bin/prlimit", f"--data={size}:{size}", *words)
        return (*await self.launcher.within(site_group(account), limits), *_NICE, *words)


def site_service(
    folders: HostFolders,
    account: SiteAccount,
    name: str,
    command: Collection[str],
    *,
    environment: Mapping[str, str] | None = None,
    sockets: tuple[ListeningSocket, ...] = (),
    limits: Limits | None = None,
    log: str | None = None,
    folder: Path | None = None,
    shown: Collection[Path] = (),
    stop_signal: signal.Signals = signal.SIGTERM,
    stop_seconds: float = 10.0,
    on_demand: bool = False,
) -> Service:
    """A service of the site. `name`: lower case letters, digits and dashes, one for each program of the site.
    `environment` is added to `site_environment`. `log`: the site's log for its output."""
    limits = limits or Limits()
    words = site_command(folders, account, command, folder=folder, shown=shown, log=log)
    return Service(
        name=service_name(account, name),
        command=words,
        # The program starts as root, and its starter changes to the account before the site's program is executed.
        environment=site_environment(folders, account) | dict(environment or {}),
        sockets=sockets,
        limits=limits,
        limit_group=site_group(account),
        stop_signal=stop_signal,
        stop_seconds=stop_seconds,
        on_demand=on_demand,
    )


def site_group(account: SiteAccount) -> GroupName:
    """Group of all services of the site, which share its limits."""
    return GroupName(f"site-{account.number}")


def site_socket(path: Path, variable: str, form: str = "{descriptor}") -> ListeningSocket:
    """A socket of a site's program, to which only the web server may connect."""
    return ListeningSocket(path, 0o660, "root", WEB_SERVER, variable, form)


def service_name(account: SiteAccount, name: str) -> ServiceName:
    return ServiceName(f"{_prefix(account)}{name}")


def is_of_a_site(name: ServiceName) -> bool:
    """Whether the service belongs to a single site, not to all of them."""
    return _SITES_OWN.match(name) is not None


def prepare_shared_sockets(folders: HostFolders, *, relay: bool = True) -> None:
    """Create the folder that every program of a site sees, and the folder of pipes for the programs' output; no program
    can start without these. `relay`: whether this server has a relay for mail of sites. Blocks."""
    folders.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    folders.shared_sockets.mkdir(mode=0o755, exist_ok=True)
    folders.log_pipes.mkdir(mode=0o700, exist_ok=True)
    database_clients.prepare(folders)
    mail.prepare(folders, relay=relay)


async def programs_of(launcher: Launcher, account: SiteAccount, name: str = "") -> frozenset[ServiceName]:
    """The services of the site whose own names start with `name`."""
    prefix = f"{_prefix(account)}{name}"
    return frozenset(found for found in await launcher.names() if found.startswith(prefix))


async def stop_programs(
    launcher: Launcher, account: SiteAccount, name: str = "", *, keep: Collection[ServiceName] = ()
) -> None:
    """Stop the services of the site whose own names start with `name`, except those in `keep`. Raises
    `LauncherError`."""
    for found in sorted(await programs_of(launcher, account, name) - set(keep)):
        await launcher.stop(found)


def _prefix(account: SiteAccount) -> str:
    return f"site-{account.number}-"
