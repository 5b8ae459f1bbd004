"""Files of one name in a tree, with what they hold: bounded in how much is looked at, found and read."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from svc_actors.host.confined.protocol import TEMPORARY, FileError, Find
from svc_actors.host.confined.tree import MAX_DEPTH, Tree, held, told

_MOST_SEEN = 500_000
"""Folders and files."""
_MOST_FOUND = 500
_MOST_BYTES = 4 << 20
_MOST_TOLD = 100 << 10
"""Characters of the paths of folders, and of links, which a header has room for."""


def find(tree: Tree, request: Find) -> tuple[dict[str, Any], bytes]:
    """Their paths and texts, bytes that are no UTF-8 as U+FFFD. Not `complete` where a bound ended the search, or one
    of them could not be read. Links are not followed; those that lead to folders of the tree are told."""
    found: list[dict[str, str]] = []
    folders_with: dict[str, list[str]] = {}
    links: dict[str, tuple[int, int]] = {}
    places: dict[tuple[int, int], str] = {}
    seen = size = told_of = 0
    complete = True
    with held(tree.open_folder(request.path)) as top, told(request.path):
        for folder, folders, files, here in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            folders[:] = sorted(name for name in folders if os.fsencode(name) != TEMPORARY)
            seen += len(folders) + len(files)
            if folder.count("/") >= MAX_DEPTH:
                # fwalk calls itself, and holds a descriptor, for each level.
                complete = complete and not folders
                folders.clear()
            if seen > _MOST_SEEN or len(found) >= _MOST_FOUND or size > _MOST_BYTES:
                complete = False
                break
            places[_identity(os.fstat(here))] = os.path.normpath(os.path.join(request.path, folder))
            for name in folders:
                if (identity := _linked(name, here)) is not None:
                    links[os.path.normpath(os.path.join(request.path, folder, name))] = identity
            also = [name for name in request.also if name in files]
            if also and told_of <= _MOST_TOLD:
                place = os.path.normpath(os.path.join(request.path, folder))
                told_of += len(place)
                folders_with[place] = also
            if request.name in files:
                path = os.path.normpath(os.path.join(request.path, folder, request.name))
                try:
                    with held(tree.open_file(path)) as file:
                        text = os.pread(file, request.most_bytes + 1, 0)
                except FileError:
                    complete = False
                    continue
                complete = complete and len(text) <= request.most_bytes
                size += len(text)
                found.append({"path": path, "text": text[: request.most_bytes].decode(errors="replace")})
    leading = [(link, places[identity]) for link, identity in links.items() if identity in places]
    told_of_links = sum(len(link) + len(place) for link, place in leading)
    # What a linked folder has is not known to be of that folder.
    known = complete and not links and told_of <= _MOST_TOLD
    answer = {
        "complete": complete and told_of_links <= _MOST_TOLD,
        "folders": folders_with if known else None,
        "links": leading if told_of_links <= _MOST_TOLD else [],
    }
    return answer, json.dumps(found, ensure_ascii=True).encode()


def _linked(name: str, folder: int) -> tuple[int, int] | None:
    """The folder that a link leads to; None: it is no link, or leads to nothing that can be seen."""
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            return _identity(os.stat(name, dir_fd=folder))
    except OSError:
        return None
    return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
