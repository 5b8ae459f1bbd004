"""Lanes: concurrent pytest processes, each with the tests it was dealt, and a second attempt for those that failed.

A machine that stood still for a moment fails nobody's change, and a test that fails twice is a defect. A test that only
passed at the second attempt is a defect too: both outputs are kept, and the ledger decides whether the run passes
(`flaky`).

Why: docs/decisions/0020-tests-and-the-lock-file.md.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.testing import results
from tools.testing.flaky import to_repeat
from tools.testing.plugin import LANE
from tools.testing.processes import Processes
from tools.testing.results import Result
from tools.testing.times import Kind

_FAILED: Final = 1
_NOTHING_TO_RUN: Final = 5
SEED: Final = "SVC_FAULT_SEED"


@dataclass(frozen=True)
class Repeated:
    """A test that failed, and the result of its second attempt."""

    first: Result
    second: Result | None

    @property
    def passed(self) -> bool:
        return self.second is not None and self.second.outcome == "passed"


@dataclass
class Lane:
    name: str
    folder: Path
    arguments: Sequence[str] = ()
    """For pytest, that say which files and how many workers."""
    only: Mapping[str, Sequence[Kind]] | None = None
    without: Sequence[str] = ()
    collected: Path | None = None
    expected: int | None = None
    """Seconds that its files are known to take."""
    shown: bool = False
    """On the terminal as it runs, rather than in its log."""
    may_be_empty: bool = False
    """Whether its files may hold no test that runs here."""
    status: int | None = None
    """Of pytest, once both attempts are over."""
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    attempt: int = 1

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    def results(self, attempt: int = 1) -> list[Result]:
        return results.read(self.folder / f"results-{attempt}.jsonl")

    @property
    def repeated(self) -> list[Repeated]:
        if self.attempt == 1:
            return []
        again = {result.test: result for result in self.results(2)}
        failed = {result.test: result for result in self.results() if result.outcome == "failed"}
        return [Repeated(failed[test], again.get(test)) for test in to_repeat(sorted(failed))]

    @property
    def passed(self) -> bool:
        if any(not one.passed for one in self.repeated):
            return False
        return self.status == 0 or (self.status == _NOTHING_TO_RUN and self.may_be_empty)

    def start(self, processes: Processes, environment: Mapping[str, str]) -> int:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.began = time.monotonic()
        only = None if self.only is None else {file: list(kinds) for file, kinds in self.only.items()}
        told = {"only": only, "without": list(self.without), "collected": self.collected and str(self.collected)}
        files = sorted(self.only) if self.only is not None else ()
        return self._start(processes, environment, told, (*self.arguments, *files))

    def after(self, status: int, processes: Processes, environment: Mapping[str, str]) -> int | None:
        """The process of the second attempt, if there is one; otherwise the lane is over."""
        self.seconds = time.monotonic() - self.began
        if self.attempt == 1 and status == _FAILED:
            failed = results.failed(self.results())
            if again := to_repeat(failed):
                self.attempt = 2
                # a test without a second attempt has failed the lane
                self.status = _FAILED if len(again) < len(failed) else None
                _say(f"{self.name}: second attempt at {len(again)} tests")
                return self._start(processes, environment, {"outputs": True}, again)
        self.status = self.status or status
        return None

    def _start(
        self, processes: Processes, environment: Mapping[str, str], told: Mapping[str, object], tests: Sequence[str]
    ) -> int:
        plan = self.folder / f"lane-{self.attempt}.json"
        plan.write_text(json.dumps({"results": str(self.folder / f"results-{self.attempt}.jsonl"), **told}))
        options = ("-p", "tools.testing.plugin", "-o", f"cache_dir={self.folder}/cache")
        command = [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors"]
        log = None if self.shown else self.log
        return processes.start([*command, *tests], {**environment, LANE: str(plan)}, log)


def seeded(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of lanes, with the seeds that make the second attempt run the same test."""
    return {SEED: str(random.SystemRandom().getrandbits(20)), **environment}


def run(lanes: Sequence[Lane], processes: Processes, environment: Mapping[str, str]) -> bool:
    """Run all of them concurrently, to the end, even if one fails; False if one did or the run was interrupted."""
    running = {lane.start(processes, environment): lane for lane in lanes if not processes.cut_by}
    while running and not processes.cut_by:
        for pid, status in processes.ended(5).items():
            lane = running.pop(pid)
            again = None if processes.cut_by else lane.after(status, processes, environment)
            if again is not None:
                running[again] = lane
            elif not processes.cut_by:
                _say(f"{lane.name}: {'passed' if lane.passed else 'FAILED'} after {lane.seconds:.0f} s")
    for lane in running.values():
        lane.seconds = time.monotonic() - lane.began
    return not processes.cut_by and all(lane.passed for lane in lanes)


def _say(text: str) -> None:
    print(f"\n==> {text}", flush=True)
