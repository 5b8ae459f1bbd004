"""A folder for controllers that are lost and restored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the database's own account gets to, whatever other tests do to their folders."""
    with tempfile.TemporaryDirectory(prefix="svc-restore-") as path:
        yield Path(path)
