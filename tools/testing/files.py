"""The files of a test run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
RUN: Final = ROOT / "build" / "tests"
"""Of the last run: a folder for each lane, and the report."""
REPORT: Final = RUN / "report.txt"
COLLECTED: Final = RUN / "collected.json"
TIMES: Final = ROOT / "tests" / "times.toml"
FLAKY: Final = ROOT / "tests" / "flaky.toml"
WORDS: Final = ROOT / "tests" / "words.toml"
