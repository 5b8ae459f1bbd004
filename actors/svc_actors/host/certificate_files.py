"""The certificates of sites as files that the web server reads as root: one folder for each that a site has had.

A folder is whole before anything names it, and what it holds never changes, so that a configuration goes with exactly
the certificate that it was tested with, also when it is returned to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from svc_actors.durable import sync_folder, write_whole

KEPT: Final = 3
"""Of each site: the one that is served, and those that earlier generations of the configuration name."""


@dataclass(frozen=True)
class CertificatePaths:
    chain: Path
    key: Path


class CertificateFiles:
    """`folder` is root's alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self, number: int, fingerprint: str) -> CertificatePaths:
        """Where a site's certificate lies. `fingerprint`: SHA-256 of the certificate, in hex."""
        own = self._folder / f"s{number}" / fingerprint
        return CertificatePaths(own / "chain.pem", own / "key.pem")

    def put(self, number: int, fingerprint: str, chain: str, key: bytes) -> CertificatePaths:
        """Have the files. Repeating it changes nothing."""
        paths = self.paths(number, fingerprint)
        if paths.chain.exists() and paths.key.exists():
            os.utime(paths.chain.parent)  # It is among the newest again.
            return paths
        own = paths.chain.parent
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(paths.key, key, mode=0o600)
        write_whole(paths.chain, chain.encode(), mode=0o600)
        sync_folder(own.parent)
        sync_folder(self._folder)
        return paths

    def remove(self, number: int) -> None:
        """Of a site that is no more."""
        shutil.rmtree(self._folder / f"s{number}", ignore_errors=True)

    def keep_only(self, numbers: Collection[int]) -> None:
        """Remove what there is of other sites."""
        kept = {f"s{number}" for number in numbers}
        for own in self._folder.glob("s*"):
            if own.name not in kept:
                shutil.rmtree(own, ignore_errors=True)

    def forget_old(self, number: int, served: str) -> None:
        """Once the certificate `served` is: remove all but it and the newest of the others."""
        own = self._folder / f"s{number}"
        others = (path for path in own.iterdir() if path.name != served)
        for old in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
