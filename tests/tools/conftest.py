"""The images under test, built once and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.support.image_paths import IMAGES, TOOLS


@pytest.fixture
async def demo_image() -> Path:
    output = IMAGES / "demo.qcow2"
    await trio.run_process([TOOLS / "build-demo", output])
    return output


@pytest.fixture
async def debian_image() -> Path:
    output = IMAGES / "debian-12.qcow2"
    await trio.run_process([TOOLS / "build-debian", output])
    return output
