from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from svc_actors.store import Database
from tests.support.panel_pages import PagesTier, PanelPages, pages_tier, panel_with_pages
from tests.support.stack import ROOT


@pytest.fixture(scope="session")
def tier() -> Iterator[PagesTier]:
    # The pages of this tree, built if they were not.
    subprocess.run([ROOT / "tools" / "build-dashboard"], check=True)
    with pages_tier() as started:
        yield started


@pytest.fixture
async def panel(tier: PagesTier, panel_database: Database) -> AsyncIterator[PanelPages]:
    async with panel_with_pages(tier, panel_database) as pages:
        yield pages
