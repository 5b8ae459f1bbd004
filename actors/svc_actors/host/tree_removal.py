"""Removes a folder with its content, as root, whatever a tenant has put into it.

A tenant can nest 100,000 folders within seconds. `shutil.rmtree` recurses once per level and holds a descriptor for
each: it ends with a RecursionError, which is not an OSError, so that its `ignore_errors` does not cover it either, and
the site could never be deleted. Here only a few descriptors are held, and folders that are too deep are first moved up
(`confined.tree.remove`, which the helpers use as well). Every step is taken from the descriptor of the parent folder;
links are removed and never followed.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from svc_actors.host.confined.tree import held, remove

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path | str, *, ignore_errors: bool = False) -> None:
    """Remove `path`, if it exists; a link is removed, not followed. `ignore_errors`: entries that cannot be removed
    stay, otherwise raises OSError. Blocks."""
    path = Path(path)
    with suppress(OSError) if ignore_errors else nullcontext():
        try:
            opened = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with held(opened) as parent:
            _remove(parent, path.name, ignore_errors=ignore_errors)


def _remove(parent: int, name: str, *, ignore_errors: bool) -> None:
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        return
    with held(folder):
        # Deep folders are moved up into this one, so that an interruption leaves nothing outside of it.
        for each in os.listdir(folder):
            with suppress(OSError) if ignore_errors else nullcontext():
                remove(folder, os.fsencode(each))
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)
