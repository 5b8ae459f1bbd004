"""Hosts of git repositories, as far as they show their keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from svc_actors.panel.imports.foreign_hosts import HostKey
from svc_actors.panel.jobs import JobRun
from svc_webhost.confined_client import SiteFolder

KEY = HostKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ7Yf7vG1v0l4bLwV4mWm8gqk3xZ0mZb3mO8mCwWc1aB")
OTHER = HostKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBV4mWm8gqk3xZ0mZb3mO8mCwWc1aB")


@dataclass
class GitHosts:
    """They show these keys, at whatever address."""

    shown: list[HostKey] = field(default_factory=lambda: [KEY])
    asked: list[str] = field(default_factory=list)

    async def keys(self, address: str, port: int, uid: int) -> Sequence[HostKey]:
        self.asked.append(f"{address}:{port}")
        return self.shown

    async def fetch(self, run: JobRun, folder: SiteFolder, order: dict[str, Any]) -> None:
        raise AssertionError("no site is fetched")
