"""The server's versions of PHP, and their extensions: read from Debian's files below /etc/php."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_webhost.php.pool import program

ETC: Final = Path("/etc/php")
_VERSION: Final = re.compile(r"[5-9]\.[0-9]")


@dataclass(frozen=True)
class Extension:
    name: str
    enabled: bool
    """Enabled for websites; the command line has a list of its own."""


def installed_versions(etc: Path = ETC) -> list[str]:
    """Those with php-fpm, the newest first. Blocks."""
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
    """By name. Extensions that are compiled into PHP are not included. Blocks."""
    folder = etc / version
    # The folder contains links such as 20-curl.ini; the number is the order in which extensions are loaded.
    enabled = {path.stem.partition("-")[2] for path in (folder / "fpm" / "conf.d").glob("*.ini")}
    there = {path.stem for path in (folder / "mods-available").glob("*.ini")}
    return [Extension(name, name in enabled) for name in sorted(there)]
