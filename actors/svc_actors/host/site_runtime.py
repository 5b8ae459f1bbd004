"""Programs that run for one site: as its account, within its limits, and with nothing of other sites in sight.

A program that goes on (PHP, an application) is a `Service` of the launcher, by `site_service`; one that is run to its
end (a build, a scheduled task, a database that is read in) is a command of `programs.run_program`, by `SiteCommands`.
Both become the account and get its view of the server in the same place: `confined/enter_site.py`, which says what that
view is. Both are in the site's group, so that its limits are those of all its programs together. So it is the same
under the keeper and under systemd.

Rejected for commands: setrlimit(2) alone. RLIMIT_DATA is of each process, and counts neither memfd_create(2) nor shared
maps nor the tmpfs of the view, and no limit of it is one of processor time a second.

The services of a site have names that begin with `site-<number>-`: by that all of them are found and stopped.
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

from svc_actors.host import confined, database_clients
from svc_actors.host.accounts import SiteAccount
from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher import GroupName, Launcher, Limits, ListeningSocket, Service, ServiceName, SiteLauncher
from svc_actors.host.site_logs import log_pipe

_ENTER: Final = Path(confined.__file__).with_name("enter_site.py")
_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
_NICE: Final = ("/usr/bin/nice", "-n", "10")
_MIB: Final = 1 << 20
_SITES_OWN: Final = re.compile(r"site-[0-9]+-")
"""`_prefix` of any account."""
WEB_SERVER: Final = "www-data"


def site_environment(folders: HostFolders, account: SiteAccount) -> dict[str, str]:
    """What every program of a site has in its environment."""
    home = folders.sites / account.name
    return {
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "USER": account.name,
        "LOGNAME": account.name,
        # On the disk of the site: /tmp is memory.
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
    """The command by which `command`, an absolute program and its arguments, runs as the account of the site. To be
    started as root, with `site_environment`. `folder`: where it begins, by default the home. `shown`: what else of the
    data folder, or of what is emptied, it may read, as its rights there permit. `processes`: how many the account may
    have at once. `log`: the log of the site that takes what it says (`site_logs.site_log`); none: what it was started
    with. `ends_with_parent`: it is no service: it is killed when the process that started it ends, and before the
    services of the site where memory runs out."""
    home = folders.sites / account.name
    # Definitions of services hold these words: a key that every one of them gets restarts all sites at an update.
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
    """The one door to commands that run for a site. A test lists who else starts programs, and why."""

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
        """The words by which `command` runs as `site_command` has it, in the group of the site, and behind what serves
        visitors (nice). `limits`: of the site; None where the caller does not know them, and the program runs nothing
        of the site's own: then the group keeps those that it has. Raises `LauncherError`.

        RLIMIT_DATA is set as well: a process that asks for too much is refused and says so, which is a better end than
        to be killed; and it is what is left where the server has no control groups."""
        processes = None if limits is None else limits.processes
        # Under systemd it is no process of the core's unit, which would end with that.
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
    `environment` is added to `site_environment`. `log`: the log of the site that takes what it says."""
    limits = limits or Limits()
    words = site_command(folders, account, command, folder=folder, shown=shown, log=log)
    return Service(
        name=service_name(account, name),
        command=words,
        # It begins as root, and is the account's before the program is executed.
        environment=site_environment(folders, account) | dict(environment or {}),
        sockets=sockets,
        limits=limits,
        limit_group=site_group(account),
        stop_signal=stop_signal,
        stop_seconds=stop_seconds,
        on_demand=on_demand,
    )


def site_group(account: SiteAccount) -> GroupName:
    """All services of the site: its limits are theirs together."""
    return GroupName(f"site-{account.number}")


def site_socket(path: Path, variable: str, form: str = "{descriptor}") -> ListeningSocket:
    """A socket of a program of a site: the web server alone may connect."""
    return ListeningSocket(path, 0o660, "root", WEB_SERVER, variable, form)


def service_name(account: SiteAccount, name: str) -> ServiceName:
    return ServiceName(f"{_prefix(account)}{name}")


def is_of_a_site(name: ServiceName) -> bool:
    """Rather than one that all sites share."""
    return _SITES_OWN.match(name) is not None


def prepare_shared_sockets(folders: HostFolders) -> None:
    """The folder that every program of a site is shown, and that of what they say; none begins without them. Blocks."""
    folders.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    folders.shared_sockets.mkdir(mode=0o755, exist_ok=True)
    folders.log_pipes.mkdir(mode=0o700, exist_ok=True)
    database_clients.prepare(folders)


async def programs_of(launcher: Launcher, account: SiteAccount, name: str = "") -> frozenset[ServiceName]:
    """The services of the site whose own names begin with `name`."""
    prefix = f"{_prefix(account)}{name}"
    return frozenset(found for found in await launcher.names() if found.startswith(prefix))


async def stop_programs(
    launcher: Launcher, account: SiteAccount, name: str = "", *, keep: Collection[ServiceName] = ()
) -> None:
    """Stop the services of the site whose own names begin with `name`, but for those to `keep`. Raises
    `LauncherError`."""
    for found in sorted(await programs_of(launcher, account, name) - set(keep)):
        await launcher.stop(found)


def _prefix(account: SiteAccount) -> str:
    return f"site-{account.number}-"
