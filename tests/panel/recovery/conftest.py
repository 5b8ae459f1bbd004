"""A server that is backed up, and the database of a new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from svc_webhost.accounts import SiteAccount
from tests.conftest import Cluster
from tests.support.lost_server import Hosting
from tests.support.restic import RecordedRestic


@pytest.fixture
def restic() -> RecordedRestic:
    return RecordedRestic()


@pytest.fixture
def hosting(monkeypatch: pytest.MonkeyPatch, restic: RecordedRestic) -> Hosting:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    return Hosting(restic)


@pytest.fixture
def new_url(database_cluster: Cluster) -> str:
    """The database of a server that was just installed."""
    return database_cluster.fresh_database("svc_panel_template")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where backups are copied to; it outlives the server."""
    return tmp_path / "disk"
