"""Links of a site by which visitors come to a folder by another address than its own.

Of such an address Apache reads the .htaccess files of where the link leads. nginx goes by the address alone: what the
panel was told to keep from visitors at a folder is open to them by the link. Paths are from the site's home.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

_PUBLIC = PurePosixPath("public")


class Link(NamedTuple):
    """`leads`: the folder."""

    path: PurePosixPath
    leads: PurePosixPath


def reachable(links: Iterable[tuple[str, str]]) -> list[Link]:
    """Those that visitors can follow, also by way of others. Each is given with the folder that it leads to."""
    left = [Link(PurePosixPath(path), PurePosixPath(leads)) for path, leads in links]
    seen = [_PUBLIC]
    found: list[Link] = []
    while new := [link for link in left if any(link.path.is_relative_to(folder) for folder in seen)]:
        found += new
        seen += [link.leads for link in new]
        left = [link for link in left if link not in new]
    return found


def link_around(folder: PurePosixPath, links: Sequence[Link]) -> str | None:
    """One that leads into the folder from elsewhere, or to it or what it lies in, from wherever: what is in the folder
    has another address by it."""
    for link in links:
        inside = link.path.is_relative_to(folder)
        if folder.is_relative_to(link.leads) or (link.leads.is_relative_to(folder) and not inside):
            return str(link.path)
    return None
