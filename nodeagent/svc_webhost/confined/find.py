"""Finds files of one name in a tree, with their content; the entries visited, matches and bytes read are limited."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from svc_webhost.confined.protocol import TEMPORARY, FileError
from svc_webhost.confined.tree import MAX_DEPTH, Tree, held, translate_errors

_MOST_SEEN = 500_000
"""The most folders and files that are looked at."""
_MOST_FOUND = 500
_MOST_BYTES = 4 << 20
_MOST_TOLD = 100 << 10
"""The most characters in paths of folders, and in links: each found file is compared with all of them."""


@dataclass(frozen=True)
class SearchResult:
    """`texts`: path and start of each file, with U+FFFD for bytes that are not UTF-8. `complete` is False if a limit
    ended the search, or a file could not be read. `folders`: folders with files of the other names, and which; None if
    not all are known. `links`: links to folders of the tree, with their targets."""

    texts: list[tuple[str, str]]
    complete: bool
    folders: dict[str, list[str]] | None
    links: list[tuple[str, str]]


def find(tree: Tree, name: str, most_bytes: int, also: Sequence[str]) -> SearchResult:
    """Find files called `name`, and folders with files of the names `also`. Links are not followed."""
    texts: list[tuple[str, str]] = []
    folders_with: dict[str, list[str]] = {}
    links: dict[str, tuple[int, int]] = {}
    places: dict[tuple[int, int], str] = {}
    seen = size = told_of = 0
    complete = True
    with held(tree.open_folder("")) as top, translate_errors(""):
        for folder, folders, files, here in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            folders[:] = sorted(each for each in folders if os.fsencode(each) != TEMPORARY)
            seen += len(folders) + len(files)
            if folder.count("/") >= MAX_DEPTH:
                # fwalk recurses and holds a descriptor for each level, so deeper folders are skipped, and the result is
                # not complete.
                complete = complete and not folders
                folders.clear()
            if seen > _MOST_SEEN or len(texts) >= _MOST_FOUND or size > _MOST_BYTES:
                complete = False
                break
            place = os.path.normpath(folder)
            places[_identity(os.fstat(here))] = place
            for each in folders:
                if (identity := _linked(each, here)) is not None:
                    links[os.path.normpath(os.path.join(folder, each))] = identity
            there = [each for each in also if each in files]
            if there and told_of <= _MOST_TOLD:
                told_of += len(place)
                folders_with[place] = there
            if name in files:
                path = os.path.normpath(os.path.join(folder, name))
                try:
                    text = beginning(tree, path, most_bytes + 1)
                except FileError:
                    complete = False
                    continue
                complete = complete and len(text) <= most_bytes
                size += len(text)
                texts.append((path, text[:most_bytes].decode(errors="replace")))
    leading = [(link, places[identity]) for link, identity in links.items() if identity in places]
    few_links = sum(len(link) + len(place) for link, place in leading) <= _MOST_TOLD
    # With links, the list of folders is not returned: files that are found in a linked folder cannot be assigned to the
    # folder that contains the link.
    known = complete and not links and told_of <= _MOST_TOLD
    return SearchResult(texts, complete and few_links, folders_with if known else None, leading if few_links else [])


def beginning(tree: Tree, path: str, length: int) -> bytes:
    """The start of a file. Raises `FileError`."""
    with held(tree.open_file(path)) as file, translate_errors(path):
        return os.pread(file, length, 0)


def _linked(name: str, folder: int) -> tuple[int, int] | None:
    """The folder that a link leads to; None if it is not a link, or its target cannot be seen."""
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return _identity(os.stat(name, dir_fd=folder))
    except OSError:
        return None
    return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
