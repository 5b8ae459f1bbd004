"""Removes a folder with its content, as root, whatever a customer has put into it.

`shutil.rmtree` was rejected. A customer creates 100,000 nested folders within seconds. rmtree calls itself once a level
and holds a descriptor for each: it ends with a RecursionError, which is not an OSError and so not covered by its
`ignore_errors`, and the site could never be deleted. Here few descriptors are held: a folder that lies too deep is
first moved up (`confined.tree.remove`, which the helpers use too). Every step starts from the descriptor of the parent
folder; links are removed and never followed.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from svc_webhost.confined.tree import held, remove

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path | str, *, ignore_errors: bool = False) -> None:
    """Remove what is at `path`: a folder, a file or a link; a missing path is fine. `ignore_errors`: what cannot be
    removed stays. Raises OSError otherwise. Blocks."""
    path = Path(path)
    # Links are followed in the path of the parent, because that is the panel's own folder. The customer controls only
    # the name and what is below it.
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
        # Removed entry by entry, so that deep folders are moved up into this folder and not next to it: if the core is
        # killed meanwhile, the next removal finds them.
        for each in os.listdir(folder):
            with suppress(OSError) if ignore_errors else nullcontext():
                remove(folder, os.fsencode(each))
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)
