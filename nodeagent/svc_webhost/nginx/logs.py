"""Rotates nginx's large logs and deletes the oldest: `access.log`, `access.log.1`, ...

nginx keeps writing to the renamed file until it is reloaded, so no line is lost. The requests between two rounds, plus
(`KEPT` + 1) x `LARGEST`, limit the bytes of a site's log. Logs of its programs are limited when they are written
(`log_writer`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from svc_webhost.log_writer import LARGEST, make_room, numbered

_OF_NGINX: Final = ("access.log", "error.log")


def rotate(logs: Path) -> int:
    """Rename the large logs in this folder. Returns how many logs need a reload of nginx, including those renamed
    earlier and not reopened since. Blocks."""
    try:
        for path in (logs / name for name in _OF_NGINX):
            if path.exists() and path.stat().st_size >= LARGEST:
                make_room(path)
                path.replace(numbered(path, 1))
        return sum(numbered(logs / name, 1).exists() and not (logs / name).exists() for name in _OF_NGINX)
    except FileNotFoundError:
        return 0  # The site was deleted meanwhile; if not, the next call tries again.
