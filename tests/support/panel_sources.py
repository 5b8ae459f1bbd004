"""The modules that act on the panel's server, for tests that hold all of them to a rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import svc_actors.panel
import svc_webhost


def panel_sources() -> Iterator[tuple[str, Path]]:
    """The name of each module, such as svc_webhost/nginx/render.py, and its file."""
    for package, above in ((svc_webhost, 1), (svc_actors.panel, 2)):
        folder = Path(package.__path__[0])
        for path in folder.rglob("*.py"):
            yield str(path.relative_to(folder.parents[above - 1])), path
