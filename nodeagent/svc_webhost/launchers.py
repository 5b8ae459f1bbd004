"""Chooses this server's launcher."""

from __future__ import annotations

from pathlib import Path

from svc_webhost.folders import HostFolders
from svc_webhost.launcher_keeper import KeeperLauncher
from svc_webhost.launcher_systemd import SystemdLauncher

_SYSTEMD = Path("/run/systemd/system")
"""Exists if and only if systemd is the first process: sd_booted(3)."""


def launcher_of(folders: HostFolders, *, systemd: Path = _SYSTEMD) -> KeeperLauncher | SystemdLauncher:
    return SystemdLauncher() if systemd.is_dir() else KeeperLauncher(folders)
