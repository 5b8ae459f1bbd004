"""Logs of nginx that have grown large get another name, and the oldest go: `access.log`, `access.log.1`, ...

nginx goes on in the renamed file until it is reloaded, so no line is lost. What a site can fill with them is bounded by
what it is asked between two looks, and (`KEPT` + 1) x `LARGEST` a log. Those of its programs are bounded where they are
written (`log_writer`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from svc_actors.host.log_writer import LARGEST, make_room, numbered

_OF_NGINX: Final = ("access.log", "error.log")


def rotate(logs: Path) -> int:
    """Rename what is large in this folder. Gives how many logs, for which nginx has to be reloaded: also those that
    were renamed before, and not begun anew since. Blocks."""
    try:
        for path in (logs / name for name in _OF_NGINX):
            if path.exists() and path.stat().st_size >= LARGEST:
                make_room(path)
                path.replace(numbered(path, 1))
        return sum(numbered(logs / name, 1).exists() and not (logs / name).exists() for name in _OF_NGINX)
    except FileNotFoundError:
        return 0  # The site was deleted meanwhile; were it not, the next call would find what is to be done.
