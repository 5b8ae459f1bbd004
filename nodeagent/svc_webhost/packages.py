"""Debian's packages of the software that the panel manages: which have updates, and how they are installed.

Managed packages are those built from the sources in `_SOURCES`: nginx, PHP, the database servers, the name server, SSH,
and their and the panel's dependencies. Packages of one source are updated together, as Debian builds them.

apt gets argument lists and asks nothing: changed configuration files stay (confold), held packages stay (apt refuses to
change them), nothing is removed, and it waits for the lock of another apt.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

import trio
from pydantic import StringConstraints

from svc_common.errors import ServiceError
from svc_webhost.launcher import ServiceName

PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]{1,99}$", max_length=100)]

_SOURCES: Final = re.compile(
    r"nginx|libnginx-.*|php[0-9.]*|php-.*|mariadb(-[0-9.]+)?|postgresql(-[0-9]+|-common)?|knot|openssh|openssl|restic|git"
    r"|gunicorn|nodejs|python-uvicorn|python3\.[0-9]+|wordpress|libxml2|curl|zlib"
)
_SECURITY: Final = "Debian-Security:"
"""The label of Debian's archive of security updates, in apt's list of a version's sources."""
_LINE: Final = re.compile(r"Inst (?P<name>\S+) \[(?P<old>\S+)\] \((?P<new>\S+) (?P<origins>.*) \[\S+\]\)")
_UPDATES_ALONE: Final = ("--only-upgrade", "--no-install-recommends", "install")
_LOOK_SECONDS: Final = 60.0
_REFRESH_SECONDS: Final = 600.0
_INSTALL_SECONDS: Final = 3600.0
_OLD: Final = re.compile(r" /(usr|lib|bin|sbin)\S* \(deleted\)$", re.MULTILINE)

QUIET: Final = {"DEBIAN_FRONTEND": "noninteractive", "APT_LISTCHANGES_FRONTEND": "none", "NEEDRESTART_SUSPEND": "1"}
APT_GET: Final = ("/usr/bin/apt-get", "-o", "DPkg::Lock::Timeout=600")
KEEP: Final = ("--force-confdef", "--force-confold")
_LOCKED: Final = re.compile(r"Unable to lock|Could not get lock|#db-lock")
"""Found in the last line of apt's or dpkg's output, which becomes the error of the failed program."""
_AGAIN_SECONDS: Final = 5.0
_TRIES: Final = 60


class PackageError(Exception):
    """apt or dpkg failed; the message is its output."""


@dataclass(frozen=True)
class PackageUpdate:
    """`held`: the administrator has put it on hold."""

    name: str
    installed: str
    available: str
    security: bool
    held: bool = False


class Packages(Protocol):
    """Methods with `run` raise what it raises; the others raise `PackageError`."""

    async def updates(self) -> list[PackageUpdate]:
        """The updates in the package lists that were fetched last, within apt's preferences."""
        ...

    async def versions(self) -> Mapping[str, str]:
        """The installed version of each managed package, by name."""
        ...

    async def held(self) -> frozenset[str]: ...

    async def hold(self, name: str, held: bool) -> None: ...

    async def refresh(self, run: RunProgram) -> None:
        """Fetch the package lists. Raises if any of them could not be fetched."""
        ...

    async def install(self, updates: Sequence[PackageUpdate], run: RunProgram) -> None: ...

    async def outdated(self, processes: Mapping[ServiceName, int]) -> frozenset[ServiceName]:
        """The services among `processes` (main pid by name) whose processes still run from files that were replaced."""
        ...


class DebianPackages:
    """The server's own packages. All methods may be repeated."""

    async def updates(self) -> list[PackageUpdate]:
        known = await self._known()
        if not known:
            return []
        simulate = ("--simulate", "-o", "Debug::NoLocking=1", "--ignore-hold", *_UPDATES_ALONE, *sorted(known))
        return updates_in(await _said(*APT_GET, *simulate), {name for name, (_, held) in known.items() if held})

    async def versions(self) -> Mapping[str, str]:
        return {name: version for name, (version, _) in (await self._known()).items()}

    async def held(self) -> frozenset[str]:
        return frozenset(name for name, (_, held) in (await self._known()).items() if held)

    async def hold(self, name: str, held: bool) -> None:
        await _said("/usr/bin/apt-mark", "hold" if held else "unhold", name)

    async def refresh(self, run: RunProgram) -> None:
        await run_unlocked(run, (*APT_GET, "--error-on=any", "update"), _REFRESH_SECONDS)

    async def install(self, updates: Sequence[PackageUpdate], run: RunProgram) -> None:
        """First finishes what an earlier, interrupted installation has left undone."""
        await configure_rest(run, _INSTALL_SECONDS)
        options = (word for option in KEEP for word in ("-o", f"Dpkg::Options::={option}"))
        wanted = (f"{update.name}={update.available}" for update in updates)
        command = (*APT_GET, "-y", "--no-remove", *options, *_UPDATES_ALONE, *wanted)
        await run(command, seconds=_INSTALL_SECONDS, environment=QUIET)

    async def outdated(self, processes: Mapping[ServiceName, int]) -> frozenset[ServiceName]:
        return await trio.to_thread.run_sync(_outdated, dict(processes))

    async def _known(self) -> dict[str, tuple[str, bool]]:
        shown = "${db:Status-Abbrev}\t${Package}\t${source:Package}\t${Version}\n"
        return managed(await _said("/usr/bin/dpkg-query", "--show", "--showformat", shown))


def managed(listed: str) -> dict[str, tuple[str, bool]]:
    """The managed packages in dpkg's list `listed`: by name, the version and whether the package is on hold."""
    found = {}
    for line in listed.splitlines():
        status, name, source, version = line.split("\t")
        if status[1:2] == "i" and _SOURCES.fullmatch(source):
            found[name] = (version, status.startswith("h"))
    return found


def updates_in(simulated: str, held: Iterable[str] = ()) -> list[PackageUpdate]:
    """The changes that apt would make, from lines like `Inst nginx [1.22-1] (1.22-2 Debian-Security:12/stable-security
    [amd64])`."""
    held = frozenset(held)
    matches = (_LINE.match(line) for line in simulated.splitlines())
    found = {
        match["name"]: PackageUpdate(
            match["name"], match["old"], match["new"], _SECURITY in match["origins"], match["name"] in held
        )
        for match in matches
        if match is not None
    }
    return [found[name] for name in sorted(found)]


def _outdated(processes: dict[ServiceName, int]) -> frozenset[ServiceName]:
    return frozenset(name for name, pid in processes.items() if _runs_old(pid))


def _runs_old(pid: int, read: Callable[[Path], str] = Path.read_text) -> bool:
    """Whether the process runs from replaced files. dpkg replaces files by renaming: a running program keeps the old
    files, which then have no name."""
    try:
        return _OLD.search(read(Path(f"/proc/{pid}/maps"))) is not None
    except OSError:
        return False  # The process has ended; its successor runs the new files.


async def _said(*command: str) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **QUIET}
    with trio.move_on_after(_LOOK_SECONDS):
        ended = await trio.run_process(
            command, check=False, capture_stdout=True, stderr=subprocess.STDOUT, env=environment
        )
        said = ended.stdout.decode(errors="replace")
        if ended.returncode != 0:
            last = next((line for line in reversed(said.splitlines()) if line.strip()), "nothing")
            raise PackageError(f"{Path(command[0]).name} ended with exit status {ended.returncode}: {last}")
        return said
    raise PackageError(f"{Path(command[0]).name} took longer than {_LOOK_SECONDS:g} seconds")


class RunProgram(Protocol):
    """Runs a program to its end. Raises if it fails, with the last line of its output."""

    async def __call__(
        self,
        command: Sequence[str],
        *,
        seconds: float,
        environment: Mapping[str, str] | None = None,
        read: Callable[[list[str]], Awaitable[None]] | None = None,
    ) -> None: ...


async def configure_rest(run: RunProgram, seconds: float) -> None:
    """Finish what an earlier, interrupted installation has left undone."""
    await run_unlocked(run, ("/usr/bin/dpkg", *KEEP, "--configure", "-a"), seconds)


async def run_unlocked(run: RunProgram, command: Sequence[str], seconds: float) -> None:
    """Run a program once the lock is free: for dpkg, and for apt's lists, which do not wait for the lock themselves."""
    for left in reversed(range(_TRIES)):
        try:
            await run(command, seconds=seconds, environment=QUIET)
            return
        except ServiceError as error:
            if not left or _LOCKED.search(error.message) is None:
                raise
        await trio.sleep(_AGAIN_SECONDS)
