"""Where the content of an archive is placed in the site's folder, and where its links then lead. Pure functions.

    the document root                   public/
    others in its application's folder  next to public/, under their own names, so that `../vendor` still works
    other folders of the same home      likewise, but in private/ if the site has an application's folder
    wp-config.php above the root        next to public/ as well, where WordPress looks for it

Nothing is placed in the folder that the import itself uses in the site: what was unpacked there was judged.

A link is kept if its target is imported with the same site, and else left out: no link leads out of a site.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from typing import Final

from svc_webhost.archives.model import FoundSite

ASIDE: Final = "private/.svc-import"
"""The folder in a site that contains its unpacked files, dumps and certificates until they are used."""
_OWN: Final = frozenset({"public", "private", "tmp", "releases", "shared", "logs"})
"""Folders of a site that have a fixed meaning."""
MOVED: Final = _OWN - {"private", "tmp", "logs"}
"""The site's folders into which an application's folder of the same name is not placed. `tmp` and `logs` are not among
them: frameworks write caches and logs into `../tmp` and `../logs`, and look for them there."""


def below(folder: str, path: str) -> str | None:
    """The part of a path after a folder; empty for the folder itself."""
    if not folder:
        return path
    if path == folder:
        return ""
    return path[len(folder) + 1 :] if path.startswith(f"{folder}/") else None


def prefixes(path: str) -> list[str]:
    """The path and the folders above it, the outermost first."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def outermost(folders: Collection[str]) -> list[str]:
    """The folders that lie within none of the others."""
    known = frozenset(folders)
    return [each for each in folders if not any(above in known for above in prefixes(each)[:-1])]


def placed_at(site: FoundSite, path: str) -> str | None:
    """The place of a path of the archive, relative to the site's folder; None if the path is not imported with the
    site."""
    placed = _placed_at(site, path)
    return None if placed is None or below(ASIDE, placed) is not None else placed


def _placed_at(site: FoundSite, path: str) -> str | None:
    if any(below(other, path) is not None for other in site.without):
        return None
    if path == site.wordpress and below(site.root, path) is None:
        return "wp-config.php"
    rest = below(site.root, path)
    if rest is not None:
        return f"public/{rest}".rstrip("/")
    rest = None if site.application is None else below(site.application, path)
    if rest:
        return f"private/{rest}" if rest.split("/", 1)[0] in MOVED else rest
    for folder in site.home:
        rest = below(folder, path)
        if rest is not None:
            return f"{name_in_site(site, folder)}/{rest}".rstrip("/")
    return None


def name_in_site(site: FoundSite, folder: str) -> str:
    """The name in the site of a folder of the home."""
    name = folder.rpartition("/")[2]
    if site.application is not None:
        # Next to the document root is the application's folder, which may have a folder of the same name.
        return f"private/{name}"
    return f"private/{name}" if name in _OWN and name != "private" else name


def link_target(site: FoundSite, path: str, target: str) -> str | None:
    """The new target of the link at `path`; None: its target is not imported."""
    placed = placed_at(site, path)
    if placed is None:
        return None
    old = target_in_archive(site, path, target)
    new = None if old is None else placed_at(site, old)
    if new is None:
        return None
    relative = posixpath.relpath(new, posixpath.dirname(placed))
    if not target.startswith("/") and posixpath.normpath(posixpath.join(posixpath.dirname(placed), target)) == new:
        return target
    return relative


def target_in_archive(site: FoundSite, path: str, target: str) -> str | None:
    """The entry of the archive to which the link at `path` leads; None: it leads out of the account."""
    if target.startswith("/"):
        rest = None if site.old_home is None else below(site.old_home.rstrip("/"), posixpath.normpath(target))
        if rest is None:
            return None
        return f"{site.home_in_archive}/{rest}".strip("/")
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return None if joined.startswith("..") else joined
