"""The results that a lane's pytest reports for each test: a JSON line a phase, written as it ends, so that none is
lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Result:
    """One test in one attempt."""

    test: str
    kind: str
    outcome: str = ""
    """passed, failed or skipped; empty for a test that was cut off. A failure to set up or to tidy up is one."""
    seconds: float = 0.0
    output: str = ""
    """The failure, and what the test printed and logged; of a first attempt that passed, nothing."""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]


def read(path: Path) -> list[Result]:
    found: dict[str, Result] = {}
    for line in _lines(path):
        phase = json.loads(line)
        result = found.setdefault(phase["test"], Result(phase["test"], phase["kind"]))
        result.seconds += phase["seconds"]
        result.output += phase["output"]
        if phase["outcome"] == "failed" or (phase["outcome"] == "skipped" and not result.outcome):
            result.outcome = phase["outcome"]
        elif phase["when"] == "teardown" and not result.outcome:
            result.outcome = "passed"
    return list(found.values())


def failed(results: Iterable[Result]) -> list[str]:
    return sorted(result.test for result in results if result.outcome == "failed")


def _lines(path: Path) -> Iterator[str]:
    """Complete lines: the last one may be truncated."""
    if path.exists():
        yield from (line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))
