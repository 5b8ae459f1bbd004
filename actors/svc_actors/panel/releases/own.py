"""The release of the panel that runs, and what can be done with others beside it."""

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

from svc_actors.host.releases.layout import PACKAGE, Releases, boot_id
from svc_actors.panel.releases.manifest import ReleaseError, keys_of

ROOT: Final = Path("/opt/svc-panel")
PACKAGE_FOLDER: Final = Path("/usr/lib/svc/panel")
SWITCH_UNIT: Final = "svc-panel-switch.service"
_SECONDS: Final = 30.0
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of what the kernel calls a machine."""


@dataclass(frozen=True)
class OwnRelease:
    """`name` and `version` are of what runs; `package` is the version of the Debian package, which brought the units.
    `keys` are whom it trusts; `begin_switch` starts the program that takes up an order, or raises `ReleaseError`."""

    releases: Releases
    name: str
    version: str
    package: str
    architecture: str
    boot: str
    keys: tuple[Ed25519PublicKey, ...]
    begin_switch: Callable[[], Awaitable[None]]


def this_release() -> OwnRelease | None:
    """None where the panel was not installed by its package: there is nothing to switch then."""
    folder = Path(sys.path[0])  # Where /usr/bin/svc has found the release.
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
