"""What tests the store itself gets a database and connections that nobody has used."""

from __future__ import annotations

from functools import partial

import pytest

from svc_actors.store import Database
from tests.conftest import OpenPool


@pytest.fixture
def database_pool(database_url: str) -> OpenPool:
    return partial(Database.open, database_url)
