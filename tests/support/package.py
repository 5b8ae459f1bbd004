"""The Debian package of the controller as tools/package builds it."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def controller_package() -> Path:
    """Built once a test process: tests that install it are of one group (`xdist_group`), since it is built in place."""
    built = subprocess.run(["tools/package"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stderr
    return ROOT / built.stdout.split()[-1]
