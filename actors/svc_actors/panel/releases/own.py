"""The running release of the panel, and access to the other installed ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from platform import machine
from typing import Final

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from svc_actors.panel.releases.manifest import ReleaseError, keys_of
from svc_webhost.releases.layout import PACKAGE, Releases, boot_id

ROOT: Final = Path("/opt/svc-panel")
PACKAGE_FOLDER: Final = Path("/usr/lib/svc/panel")
SWITCH_UNIT: Final = "svc-panel-switch.service"
_SECONDS: Final = 30.0
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's architecture names for the kernel's machine types."""


@dataclass(frozen=True)
class OwnRelease:
    """`name` and `version` are those of the running release; `package` is the version of the Debian package, which
    installed the units. `keys` are the keys that it trusts; `begin_switch` starts the program that carries out an
    order, or raises `ReleaseError`."""

    releases: Releases
    name: str
    version: str
    package: str
    architecture: str
    boot: str
    keys: tuple[Ed25519PublicKey, ...]
    begin_switch: Callable[[], Awaitable[None]]


def this_release() -> OwnRelease | None:
    """The running release; None if the panel was not installed from its package: then it cannot switch releases."""
    folder = Path(sys.path[0])  # The folder in which /usr/bin/svc has found the release.
    releases = Releases(ROOT, PACKAGE_FOLDER)
    if folder == PACKAGE_FOLDER:
        name = PACKAGE
    elif folder.parent == releases.releases:
        name = folder.name
    else:
        return None
    return OwnRelease(
        releases,
        name,
        _version(folder),
        _version(PACKAGE_FOLDER),
        _ARCHITECTURES.get(machine(), machine()),
        boot_id(),
        keys_of(folder),
        _start_switch,
    )


def _version(folder: Path) -> str:
    return next(each.version for each in distributions(name="svc", path=[str(folder)]))


async def _start_switch() -> None:
    command = ("systemctl", "start", SWITCH_UNIT)
    with trio.move_on_after(_SECONDS):
        ended = await trio.run_process(command, check=False, capture_stdout=True, stderr=subprocess.STDOUT)
        if ended.returncode != 0:
            raise ReleaseError(f"{SWITCH_UNIT} cannot be started: {ended.stdout.decode(errors='replace').strip()}")
        return
    raise ReleaseError(f"{SWITCH_UNIT} did not start within {_SECONDS:g} seconds")
