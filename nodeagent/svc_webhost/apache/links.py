"""Symbolic links of a site through which visitors reach a folder at another address than its own.

For such an address Apache reads the .htaccess files of the link's target. nginx goes by the address alone: a folder
that the panel denies is open to visitors through the link. Paths are from the site's home.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

_PUBLIC = PurePosixPath("public")


class Link(NamedTuple):
    """`leads`: the folder that the link leads to."""

    path: PurePosixPath
    leads: PurePosixPath


def reachable(links: Iterable[tuple[str, str]]) -> list[Link]:
    """The links that visitors can follow, also through other links. Each is given with the folder that it leads to."""
    all_ = [Link(PurePosixPath(path), PurePosixPath(leads)) for path, leads in links]
    # Sorted by the folder that contains each link, so that links of the same folder are next to each other; `after`
    # skips links that were handled already. So each link is looked at once, however long the chains of links are.
    order = sorted(range(len(all_)), key=lambda number: _key(all_[number].path))
    keys = [_key(all_[number].path) for number in order]
    after = list(range(len(order) + 1))
    found: list[Link] = []
    seen, folders = {_PUBLIC}, [_PUBLIC]
    while folders:
        new: list[int] = []
        for folder in folders:
            place = _next(after, bisect_left(keys, _key(folder)))
            while place < len(order) and keys[place].startswith(_key(folder)):
                new.append(order[place])
                after[place] = place + 1
                place = _next(after, place)
        found += [all_[number] for number in sorted(new)]
        folders = list(dict.fromkeys(leads for number in sorted(new) if (leads := all_[number].leads) not in seen))
        seen.update(folders)
    return found


def _key(path: PurePosixPath) -> str:
    """The prefix that all paths below this one have, and this path itself with a slash at its end."""
    return f"{path}/" if path.parts else ""


def _next(after: list[int], place: int) -> int:
    """The first free place from this one on; shortens the way to it for the next call."""
    end = place
    while after[end] != end:
        end = after[end]
    while after[place] != end:
        after[place], place = end, after[place]
    return end


class SiteLinks:
    """Links of a site, asked for each of its folders."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = [(_key(link.path), _key(link.leads)) for link in links]

    def around(self, folder: PurePosixPath) -> str | None:
        """A link from elsewhere into the folder, or a link from anywhere to the folder itself or one of its ancestors:
        through such a link the folder's content has another address."""
        here = _key(folder)
        for path, leads in self._links:
            if here.startswith(leads) or (leads.startswith(here) and not path.startswith(here)):
                return path.removesuffix("/")
        return None
