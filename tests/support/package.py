"""The Debian packages as tools/package builds them."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def packages() -> dict[str, Path]:
    """By their names. Built once a test process, in place: the tests that install them run in one."""
    built = subprocess.run(["tools/package"], cwd=ROOT, check=False, capture_output=True, text=True, timeout=900)
    assert built.returncode == 0, built.stderr
    built_files = [ROOT / word for word in built.stdout.split() if word.endswith(".deb")]
    return {path.name.partition("_")[0]: path for path in built_files}
