"""Removes a folder with all that is in it, as root, however somebody else has filled it.

A tenant makes 100,000 folders in each other within seconds. `shutil.rmtree` calls itself once a level and holds a
descriptor for each: it ends with a RecursionError, which is no OSError, so that its `ignore_errors` does not cover it
either, and the site could never be deleted. Here a few descriptors are held, and what lies too deep is first moved up
(`confined.tree.remove`, which the helpers use as well). Every step is taken from the descriptor of the folder above;
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
    """Nothing is at `path` afterwards; a link there is removed, and nothing there is fine. `ignore_errors`: what cannot
    be removed stays. Raises OSError otherwise. Blocks."""
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
        # What is moved up comes to lie in this folder, so that nothing is left beside it where this is cut short.
        for each in os.listdir(folder):
            with suppress(OSError) if ignore_errors else nullcontext():
                remove(folder, os.fsencode(each))
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)
