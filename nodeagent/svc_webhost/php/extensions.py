"""PHP extensions: lists them, and runs Debian's programs that install and enable them.

PHP itself reports an extension that it cannot load when it starts (`prove`): the extension is disabled again before any
site's PHP starts with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import trio
from pydantic import StringConstraints

from svc_webhost.archives.extensions import extension_names
from svc_webhost.packages import APT_GET, QUIET, RunProgram, configure_rest
from svc_webhost.php.pool import program

ExtensionName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_+.-]{0,38}$", max_length=39)]

_APT_SECONDS: Final = 1800.0
_SECONDS: Final = 60.0
_NOT_EXTENSIONS: Final = frozenset({"cgi", "cli", "common", "dev", "fpm", "phpdbg"})
"""Packages with names in this form that contain programs and not extensions."""
_UNLOADABLE: Final = re.compile(r"Unable to load|Fatal error|undefined symbol|Segmentation fault")

ETC: Final = Path("/etc/php")
_VERSION: Final = re.compile(r"[5-9]\.[0-9]")


class ExtensionState(StrEnum):
    ENABLED = "enabled"
    """Every site of the PHP version has the extension."""
    DISABLED = "disabled"
    """The extension is installed, but no site has it."""
    AVAILABLE = "available"
    """Debian has a package of the extension, which is not installed."""


class UnloadableError(Exception):
    """PHP does not start properly with the enabled extensions; the message is its own."""


@dataclass(frozen=True)
class Extension:
    name: str
    enabled: bool
    """Enabled for websites; the command line has a list of its own."""


def installed_versions(etc: Path = ETC) -> list[str]:
    """The installed versions of PHP that have php-fpm, the newest first. Blocks."""
    return sorted(_installed(etc), reverse=True)


def _installed(etc: Path) -> Iterator[str]:
    try:
        names = os.listdir(etc)
    except FileNotFoundError:
        return
    for name in names:
        if _VERSION.fullmatch(name) and (etc / name / "fpm" / "php.ini").is_file() and program(name).is_file():
            yield name


def installed_extensions(version: str, etc: Path = ETC) -> list[Extension]:
    """The installed extensions, sorted by name, without those that are compiled into PHP. Blocks."""
    folder = etc / version
    # The folder contains links such as 20-curl.ini; the number is the order in which extensions are loaded.
    enabled = {path.stem.partition("-")[2] for path in (folder / "fpm" / "conf.d").glob("*.ini")}
    there = {path.stem for path in (folder / "mods-available").glob("*.ini")}
    return [Extension(name, name in enabled) for name in sorted(there)]


class PhpExtensions:
    """The PHP extensions of this server. The methods raise what `run` raises; all may be repeated."""

    async def states(self, version: str) -> dict[str, ExtensionState]:
        """The state of each installed extension and of each available package, by name."""
        installed = await trio.to_thread.run_sync(installed_extensions, version)
        packages = await _packages(version)
        return states(installed, packages)

    async def loaded(self, version: str) -> frozenset[str]:
        """The extensions of the websites' PHP, compiled into it or enabled, by the names of `extension_names`. Raises
        OSError if PHP cannot be run."""
        with trio.move_on_after(_SECONDS):
            said = await trio.run_process(
                (str(program(version)), "-m"), capture_stdout=True, capture_stderr=True, check=False
            )
            return frozenset(extension_names(said.stdout.decode(errors="replace").splitlines()))
        raise TimeoutError(f"PHP {version} did not answer")

    async def install(self, version: str, name: str, run: RunProgram) -> None:
        """Install Debian's package, which enables its extensions. First finishes what an earlier, interrupted
        installation has left undone."""
        await configure_rest(run, _APT_SECONDS)
        command = (*APT_GET, "-y", "--no-install-recommends", "install", f"php{version}-{name}")
        await run(command, seconds=_APT_SECONDS, environment=QUIET)

    async def enable(self, version: str, name: str, run: RunProgram) -> None:
        await run(("/usr/sbin/phpenmod", "-v", version, "-s", "fpm", name), seconds=_SECONDS)

    async def disable(self, version: str, name: str, run: RunProgram) -> None:
        await run(("/usr/sbin/phpdismod", "-v", version, "-s", "fpm", name), seconds=_SECONDS)

    async def prove(self, version: str, run: RunProgram) -> None:
        """Test that PHP loads all enabled extensions. Raises `UnloadableError`."""
        said: list[str] = []

        async def read(lines: list[str]) -> None:
            said.extend(line for line in lines if _UNLOADABLE.search(line))

        await run((str(program(version)), "-m"), seconds=_SECONDS, read=read)
        if said:
            raise UnloadableError(said[0][:500])


def states(installed: Iterable[Extension], packages: Iterable[str]) -> dict[str, ExtensionState]:
    """`packages`: the parts of package names after `php8.2-`."""
    found = dict.fromkeys((name for name in packages if name not in _NOT_EXTENSIONS), ExtensionState.AVAILABLE)
    for each in installed:
        found[each.name] = ExtensionState.ENABLED if each.enabled else ExtensionState.DISABLED
    return dict(sorted(found.items()))


async def _packages(version: str) -> list[str]:
    """Names of packages that are not installed, from apt's lists."""
    prefix = f"php{version}-"
    listed = await trio.run_process(
        ("/usr/bin/apt-cache", "pkgnames", prefix), capture_stdout=True, capture_stderr=True, check=False
    )
    names = (line.removeprefix(prefix) for line in listed.stdout.decode(errors="replace").splitlines())
    folder = Path("/var/lib/dpkg/info")
    return [name for name in names if not (folder / f"{prefix}{name}.list").exists() and "dbgsym" not in name]
