"""The ledger of tests that may pass at their second attempt only: tests/flaky.toml.

A flaky test is a defect with a name. A test that is not in the ledger fails the run; an entry says since when it is
known and why it may stay. Tests of what must hold under any timing get no second attempt, and no entry.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

NEVER_REPEATED: Final = ("tests/runtime/", "tests/store/", "tests/faults/")
MOST_FILES: Final = 6
"""Failures in more files are no accident. Files rather than tests: tests of one file often share a server, which a
failed one may leave broken."""


@dataclass(frozen=True)
class Entry:
    test: str
    """A folder, a file, or one test."""
    seen: date
    """First."""
    why: str
    """It may stand."""

    def covers(self, test: str) -> bool:
        return test == self.test or test.startswith((f"{self.test}/", f"{self.test}::", f"{self.test}["))


def ledger(path: Path) -> list[Entry]:
    return [Entry(**entry) for entry in tomllib.loads(path.read_text()).get("flaky", ())]


def unknown(tests: Iterable[str], entries: Iterable[Entry]) -> list[str]:
    known = list(entries)
    return [test for test in tests if not any(entry.covers(test) for entry in known)]


def to_repeat(failed: Iterable[str]) -> list[str]:
    """The failed tests of a lane that get a second attempt."""
    repeatable = [test for test in failed if not test.startswith(NEVER_REPEATED)]
    return repeatable if len({test.partition("::")[0] for test in repeatable}) <= MOST_FILES else []
