from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator

import pytest

from svc_actors.store import Database
from tests.support.panel_pages import PanelPages, panel_with_pages
from tests.support.stack import ROOT


@pytest.fixture(scope="session")
def built_pages() -> None:
    """The pages of this tree, built if they were not."""
    subprocess.run([ROOT / "tools" / "build-dashboard"], check=True)


@pytest.fixture
async def panel(built_pages: None, panel_database: Database) -> AsyncIterator[PanelPages]:
    async with panel_with_pages(panel_database) as pages:
        yield pages
