"""Certificates of sites as files that the web server reads as root: a folder for each certificate of a site.

A folder is complete before anything names it, and its content never changes, except to repair damage: a configuration
keeps the exact certificate that it was tested with, even after a rollback.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_common.durable import sync_folder, write_whole
from svc_webhost.tree_removal import remove_tree

KEPT: Final = 3
"""How many certificates are kept per site: the served one, and those that earlier generations of the configuration
name."""


@dataclass(frozen=True)
class CertificatePaths:
    chain: Path
    key: Path


class CertificateFiles:
    """Only root can access `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self, number: int, fingerprint: str) -> CertificatePaths:
        """Paths of a site's certificate. `fingerprint`: SHA-256 of the certificate, in hex."""
        own = self._folder / f"s{number}" / fingerprint
        return CertificatePaths(own / "chain.pem", own / "key.pem")

    def put(self, number: int, fingerprint: str, chain: str, key: bytes) -> CertificatePaths:
        """Write the files. Repeating it changes nothing."""
        paths = self.paths(number, fingerprint)
        if paths.chain.exists() and paths.key.exists():
            os.utime(paths.chain.parent)  # Marks it as one of the newest again.
            return paths
        self._write(paths, chain, key)
        return paths

    def holds(self, number: int, fingerprint: str, chain: str, key: bytes) -> bool:
        """Whether the files exist with exactly this content."""
        paths = self.paths(number, fingerprint)
        try:
            return (paths.chain.read_bytes(), paths.key.read_bytes()) == (chain.encode(), key)
        except OSError:
            return False

    def mend(self, number: int, fingerprint: str, chain: str, key: bytes) -> None:
        """Make the files have exactly this content, whatever happened to them."""
        if not self.holds(number, fingerprint, chain, key):
            self._write(self.paths(number, fingerprint), chain, key)

    def remove(self, number: int) -> None:
        """Remove the certificates of a deleted site."""
        remove_tree(self._folder / f"s{number}", ignore_errors=True)

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove the certificates of all other sites."""
        kept = {f"s{number}" for number in numbers}
        for own in self._folder.glob("s*"):
            if own.name not in kept:
                remove_tree(own, ignore_errors=True)

    def forget_old(self, number: int, served: str) -> None:
        """Call this once the certificate `served` is served: removes all certificates except this one and the newest of
        the others."""
        own = self._folder / f"s{number}"
        others = (path for path in own.iterdir() if path.name != served)
        for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT - 1 :]:
            remove_tree(old, ignore_errors=True)

    def _write(self, paths: CertificatePaths, chain: str, key: bytes) -> None:
        own = paths.chain.parent
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(paths.key, key, mode=0o600)
        write_whole(paths.chain, chain.encode(), mode=0o600)
        sync_folder(own.parent)
        sync_folder(self._folder)
