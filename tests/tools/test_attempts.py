"""What `tools/attempts.py` tells of tests that fail once, and of those that fail again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_ATTEMPTS = Path(__file__).parents[2] / "tools" / "attempts.py"
_ONCE = """
import pathlib, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_one(number):
    mark = pathlib.Path(f"{{__file__}}.{{number}}")
    there = mark.exists()
    mark.touch()
    assert there
"""
Run = Callable[[], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, str(_ATTEMPTS), "part"]
    return lambda: subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)


def test_all_tests_of_three_files_that_fail_once_are_tried_again_and_named(tmp_path: Path, run: Run) -> None:
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(_ONCE.format(tests=4))

    done = run()

    assert done.returncode == 0, done.stdout
    assert "FLAKY, to be mended:" in done.stdout
    assert done.stdout.rpartition("FLAKY")[2].count("::test_one[") == 12


def test_failures_in_more_files_are_no_accident(tmp_path: Path, run: Run) -> None:
    for name in "abcdefg":
        (tmp_path / f"test_{name}.py").write_text(_ONCE.format(tests=1))

    done = run()

    assert done.returncode == 1
    assert "Second attempt" not in done.stdout


def test_what_fails_twice_fails_the_part(tmp_path: Path, run: Run) -> None:
    (tmp_path / "test_a.py").write_text("def test_one():\n    assert False\n")

    done = run()

    assert done.returncode == 1
    assert "Second attempt" in done.stdout
    assert "FLAKY" not in done.stdout
