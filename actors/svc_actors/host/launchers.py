"""Chooses this server's launcher."""

from __future__ import annotations

from pathlib import Path

from svc_actors.host.folders import HostFolders
from svc_actors.host.launcher_keeper import KeeperLauncher
from svc_actors.host.launcher_systemd import SystemdLauncher

_SYSTEMD = Path("/run/systemd/system")
"""Exists if and only if systemd is the first process: sd_booted(3)."""


def launcher_of(folders: HostFolders, *, systemd: Path = _SYSTEMD) -> KeeperLauncher | SystemdLauncher:
    return SystemdLauncher() if systemd.is_dir() else KeeperLauncher(folders)
