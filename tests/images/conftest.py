"""The images under test, built once and kept: in $SVC_IMAGES, or in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from tests.images.guest import TOOLS


def images() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SVC_IMAGES") or Path(cache) / "svc" / "images")


@pytest.fixture
async def demo_image() -> Path:
    output = images() / "demo.qcow2"
    await trio.run_process([TOOLS / "build-demo", output])
    return output


@pytest.fixture
async def debian_image() -> Path:
    output = images() / "debian-12.qcow2"
    await trio.run_process([TOOLS / "build-debian", output])
    return output
