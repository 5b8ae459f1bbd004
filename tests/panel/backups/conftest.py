"""A panel whose sites are backed up by a restic that the tests play."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from svc_actors.store import Database
from svc_webhost.accounts import SiteAccount
from tests.support.restic import RecordedRestic
from tests.support.site_backups import Backed, open_backed


@pytest.fixture
def restic() -> RecordedRestic:
    return RecordedRestic()


@pytest.fixture
async def world(
    panel_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restic: RecordedRestic
) -> AsyncIterator[Backed]:
    if os.geteuid() != 0:  # Who cannot make accounts has the sites' files as themselves.
        monkeypatch.setattr(SiteAccount, "uid", property(lambda account: os.geteuid()))
    async with open_backed(panel_database, tmp_path, restic) as world:
        yield world
