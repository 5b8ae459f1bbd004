"""Files of one name in a tree, with what they hold: bounded in how much is looked at, found and read."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from svc_actors.host.confined.protocol import TEMPORARY, FileError, Find
from svc_actors.host.confined.tree import Tree, held, told

_MOST_SEEN = 500_000
"""Folders and files."""
_MOST_FOUND = 500
_MOST_BYTES = 4 << 20
_MOST_TOLD = 100 << 10
"""Characters of the paths of folders, which a header has room for."""


def find(tree: Tree, request: Find) -> tuple[dict[str, Any], bytes]:
    """Their paths and texts, bytes that are no UTF-8 as U+FFFD. Not `complete` where a bound ended the search, or one
    of them could not be read. Links are not followed."""
    found: list[dict[str, str]] = []
    folders_with: dict[str, list[str]] = {}
    seen = size = told_of = 0
    complete = followed = True
    with held(tree.open_folder(request.path)) as top, told(request.path):
        for folder, folders, files, here in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            folders[:] = sorted(name for name in folders if os.fsencode(name) != TEMPORARY)
            seen += len(folders) + len(files)
            if seen > _MOST_SEEN or len(found) >= _MOST_FOUND or size > _MOST_BYTES:
                complete = False
                break
            # What a linked folder has is not known.
            followed = followed and not (request.also and any(_is_link(name, here) for name in folders))
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
    known = complete and followed and told_of <= _MOST_TOLD
    return {"complete": complete, "folders": folders_with if known else None}, json.dumps(
        found, ensure_ascii=True
    ).encode()


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False
