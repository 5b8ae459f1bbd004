"""Further releases of the panel that is installed on a Debian with systemd: made of its own files, signed, offered."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.support.package import release_key
from tests.support.systemd_root import SystemdRoot
from tools.release_archive import make_release

INCOMING = "/opt/svc-panel/incoming"
_PACKAGE = "usr/lib/svc/panel"


def offer_release(server: SystemdRoot, version: str, changed: dict[str, str]) -> None:
    """A release that has `changed` at the ends of these files, which are made where they are not there."""
    tree = server.folder.parent / f"release-{version}"
    subprocess.run(["cp", "--archive", "--link", str(server.folder / _PACKAGE), str(tree)], check=True)
    [metadata] = tree.glob("svc-*.dist-info/METADATA")
    _replace(metadata, re.sub(r"(?m)^Version: .*$", f"Version: {version}", metadata.read_text(), count=1))
    for name, end in changed.items():
        path = tree / name
        _replace(path, (path.read_text() if path.exists() else "") + end)
    make_release(tree, server.folder / INCOMING.lstrip("/"), version, release_key(), level=0)
    shutil.rmtree(tree)


def _replace(path: Path, content: str) -> None:
    """The file alone: it is one with the installed one."""
    path.unlink(missing_ok=True)
    path.write_text(content)
