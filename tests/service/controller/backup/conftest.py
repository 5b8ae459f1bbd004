"""A folder for controllers that are lost and restored."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from svc.service.controller.backup import age


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the database's own account gets to, whatever other tests do to their folders."""
    with tempfile.TemporaryDirectory(prefix="svc-restore-") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess at a passphrase costs milliseconds, not a second: what that is worth is a matter of `test_age`."""
    monkeypatch.setattr(age, "WORK_FACTOR", 10)
