"""Debian's packages of what the panel drives: which have updates, and how those come in.

Managed is what is built from the sources in `_SOURCES`: nginx, PHP, the database servers, the name server, SSH, and
what they and the panel's jobs are made of. Packages of one source are updated together, as Debian builds them.

apt is called with argument lists and asks nothing: configuration files that somebody changed stay (confold), packages
that are held stay (apt refuses to change them), nothing is removed, and the lock that another apt holds is waited for.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

import trio
from pydantic import StringConstraints

from svc_actors.host.apt import APT_GET, KEEP, QUIET, RunProgram, configure_rest, run_unlocked
from svc_actors.host.launcher import ServiceName

PackageName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]{1,99}$", max_length=100)]

_SOURCES: Final = re.compile(
    r"nginx|libnginx-.*|php[0-9.]*|php-.*|mariadb(-[0-9.]+)?|postgresql(-[0-9]+|-common)?|knot|openssh|openssl|restic|git"
    r"|gunicorn|nodejs|python-uvicorn|python3\.[0-9]+|wordpress|libxml2|curl|zlib"
)
_SECURITY: Final = "Debian-Security:"
"""The label of Debian's archive of security updates, as apt shows where a version is from."""
_LINE: Final = re.compile(r"Inst (?P<name>\S+) \[(?P<old>\S+)\] \((?P<new>\S+) (?P<origins>.*) \[\S+\]\)")
_UPDATES_ALONE: Final = ("--only-upgrade", "--no-install-recommends", "install")
_LOOK_SECONDS: Final = 60.0
_REFRESH_SECONDS: Final = 600.0
_INSTALL_SECONDS: Final = 3600.0
_OLD: Final = re.compile(r" /(usr|lib|bin|sbin)\S* \(deleted\)$", re.MULTILINE)


class PackageError(Exception):
    """apt or dpkg did not say what there is; the message is what it wrote."""


@dataclass(frozen=True)
class PackageUpdate:
    """`held`: it is kept as it is by the administrator's word."""

    name: str
    installed: str
    available: str
    security: bool
    held: bool = False


class Packages(Protocol):
    """What is given `run` raises what that raises; the others `PackageError`."""

    async def updates(self) -> list[PackageUpdate]:
        """As the package lists have them that were fetched last, within what apt's preferences allow."""
        ...

    async def versions(self) -> Mapping[str, str]:
        """Of every managed package that is installed."""
        ...

    async def held(self) -> frozenset[str]: ...

    async def hold(self, name: str, held: bool) -> None: ...

    async def refresh(self, run: RunProgram) -> None:
        """Fetch the package lists. Raises where any of them could not be fetched."""
        ...

    async def install(self, updates: Sequence[PackageUpdate], run: RunProgram) -> None: ...

    async def outdated(self, processes: Mapping[ServiceName, int]) -> frozenset[ServiceName]:
        """Of these services those that run from files that are not installed any more."""
        ...


class DebianPackages:
    """The server's own. All may be repeated."""

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
        """What an earlier installation that was ended half-way has left undone is done first."""
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
    """Version and whether it is held, by name, of what dpkg lists."""
    found = {}
    for line in listed.splitlines():
        status, name, source, version = line.split("\t")
        if status[1:2] == "i" and _SOURCES.fullmatch(source):
            found[name] = (version, status.startswith("h"))
    return found


def updates_in(simulated: str, held: Iterable[str] = ()) -> list[PackageUpdate]:
    """What apt would change: a line `Inst nginx [1.22-1] (1.22-2 Debian-Security:12/stable-security [amd64])` each."""
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
    """dpkg replaces files by renaming: what runs keeps the ones before, which have no name any more."""
    try:
        return _OLD.search(read(Path(f"/proc/{pid}/maps"))) is not None
    except OSError:
        return False  # It has ended; what follows it is new.


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
