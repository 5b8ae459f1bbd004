"""A site's folder and account, for tests of what works on its files."""

from __future__ import annotations

import os
from pathlib import Path

from svc_webhost.accounts import SiteAccount
from svc_webhost.confined_client import SiteFolder


def site_folder(above: Path, number: int = 1001) -> SiteFolder:
    """An empty home; of an account of its own where the tests run as root, else of who runs them."""
    home = above / f"s{number}"
    home.mkdir(parents=True, mode=0o710)
    if os.geteuid() != 0:
        return SiteFolder(home, os.geteuid(), os.getegid())
    account = SiteAccount(number)
    os.chown(home, account.uid, account.uid)
    return SiteFolder(home, account.uid, account.uid)


def give(site: SiteFolder, path: str, content: bytes = b"content") -> Path:
    """A file of the site's own."""
    placed = site.path / path
    for folder in reversed(placed.relative_to(site.path).parents[:-1]):
        if not (site.path / folder).exists():
            (site.path / folder).mkdir()
            os.chown(site.path / folder, site.uid, site.gid)
    placed.write_bytes(content)
    os.chown(placed, site.uid, site.gid)
    return placed
