"""Releases of the panel beside one another, small and made for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from svc_actors.panel.releases.own import OwnRelease
from svc_webhost.releases.layout import Releases

MAKER: Final = Ed25519PrivateKey.from_private_bytes(bytes([1] * 32))
RUNNING: Final = "1.0.0-" + 12 * "a"


def release_tree(folder: Path, *, check: str = "exit 0") -> Path:
    """What a release consists of, as far as it is looked at here. Its own `check` does what is told."""
    program = folder / "bin" / "svc"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'panel check' ] || exit 9\n{check}\n")
    program.chmod(0o755)
    migrations = folder / "svc_actors" / "store" / "migrations"
    migrations.mkdir(parents=True)
    (migrations / "releases.json").write_text('{"0.9.0": {}}')
    return folder


def installed_release(folder: Path) -> OwnRelease:
    """A panel of the release RUNNING, which trusts MAKER, and where nobody tries what is ordered."""
    releases = Releases(folder / "opt", folder / "package")
    for each in (folder / "package", releases.folder(RUNNING), releases.incoming):
        each.mkdir(parents=True)
    releases.switch(RUNNING)
    return OwnRelease(releases, RUNNING, "1.0.0", "1.0.0", "amd64", "this-boot", (MAKER.public_key(),), nobody)


async def nobody() -> None:
    """The program that switches is not started."""
