"""Links of a site by which visitors come to a folder by another address than its own.

Of such an address Apache reads the .htaccess files of where the link leads. nginx goes by the address alone: what the
panel was told to keep from visitors at a folder is open to them by the link. Paths are from the site's home.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

_PUBLIC = PurePosixPath("public")


class Link(NamedTuple):
    """`leads`: the folder."""

    path: PurePosixPath
    leads: PurePosixPath


def reachable(links: Iterable[tuple[str, str]]) -> list[Link]:
    """Those that visitors can follow, also by way of others. Each is given with the folder that it leads to."""
    all_ = [Link(PurePosixPath(path), PurePosixPath(leads)) for path, leads in links]
    # Sorted by what each lies in, those in one folder stand beside each other; `after` skips what was taken, so that
    # each link is looked at once, however long a way leads over others.
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
    """What is beneath the path, and the path itself, begins with it."""
    return f"{path}/" if path.parts else ""


def _next(after: list[int], place: int) -> int:
    """The first place from this one on that was not taken; the way to it is shortened for the next time."""
    end = place
    while after[end] != end:
        end = after[end]
    while after[place] != end:
        after[place], place = end, after[place]
    return end


class Ways:
    """Links of a site, asked for each of its folders."""

    def __init__(self, links: Iterable[Link]) -> None:
        self._links = [(_key(link.path), _key(link.leads)) for link in links]

    def around(self, folder: PurePosixPath) -> str | None:
        """A link that leads into the folder from elsewhere, or to it or what it lies in, from wherever: what is in the
        folder has another address by it."""
        here = _key(folder)
        for path, leads in self._links:
            if here.startswith(leads) or (leads.startswith(here) and not path.startswith(here)):
                return path.removesuffix("/")
        return None
