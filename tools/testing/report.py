"""The one report of a run: printed last, even if the run was interrupted, and stored with the output of flaky tests."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tools.testing.flaky import Entry, unknown
from tools.testing.lanes import Lane
from tools.testing.results import Result

_SLOWEST = 10
_REASON_LINES = 3
_WIDEST = 200
_LEAF = re.compile(r"[\s|]+[\w.]+(Error|Exception|Failure|Interrupt|Timeout)\b")
"""How a group of exceptions starts the text of one of them."""


@dataclass
class Report:
    lanes: list[Lane] = field(default_factory=list)
    ledger: Sequence[Entry] = ()
    seed: str = ""
    """The seed of faults, as the environment gives it."""
    cut_by: str = ""
    killed: Sequence[str] = ()
    """Processes that had to be killed when the run was interrupted."""
    checks: Sequence[str] = ()
    """The checks that failed."""
    left_out: str = ""
    """Parts that were not started, since something before them failed."""

    @property
    def flaky(self) -> list[str]:
        """Tests that only passed at their second attempt and are not in the ledger."""
        return unknown((one.first.test for lane in self.lanes for one in lane.repeated if one.passed), self.ledger)

    @property
    def passed(self) -> bool:
        return not (self.cut_by or self.checks or self.flaky) and all(lane.passed for lane in self.lanes)

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def outputs(self) -> str:
        """Of both attempts of repeated tests."""
        return "".join(
            f"\n{'=' * 88}\n{one.first.test}\n{_attempt('First', one.first)}{_attempt('Second', one.second)}"
            for lane in self.lanes
            for one in lane.repeated
        )

    def _lines(self) -> Iterator[str]:
        yield "=" * 40 + " report " + "=" * 40
        if self.cut_by:
            yield f"CUT OFF by {self.cut_by}"
        yield from (f"check FAILED: {check}" for check in self.checks)
        results = [result for lane in self.lanes for result in _last(lane)]
        counted = Counter(result.outcome for result in results)
        numbers = f"{counted['passed']} passed, {counted['failed']} failed, {counted['skipped']} skipped"
        yield f"{numbers}; faults drawn by SVC_FAULT_SEED={self.seed}"
        for lane in self.lanes:
            expected = "" if lane.expected is None else f", expected {lane.expected / 60:.1f}"
            state = "passed" if lane.passed else "cut off" if lane.status is None else f"FAILED (pytest: {lane.status})"
            yield f"  {lane.name:<10} {lane.seconds / 60:5.1f} min{expected}: {state}"
        for result in results:
            if result.outcome == "failed":
                yield f"FAILED {result.test}"
                yield from _reason(result)
        yield from (f"CUT OFF in {result.test}" for result in results if not result.outcome)
        if self.left_out:
            yield f"NOT RUN: {self.left_out}"
        yield from self._repeated()
        yield from _slowest([result for lane in self.lanes for result in lane.results()])
        yield from (f"killed: {command}" for command in self.killed)
        yield "PASSED" if self.passed else "FAILED"

    def _repeated(self) -> Iterator[str]:
        flaky = self.flaky
        for lane in self.lanes:
            for one in lane.repeated:
                if one.second and one.second.outcome == "skipped":
                    yield f"FAILED {one.first.test}: skipped at the second attempt"
                if one.passed:
                    known = "not in tests/flaky.toml" if one.first.test in flaky else "in tests/flaky.toml"
                    yield f"FLAKY  {one.first.test}: passed at the second attempt only; {known}"
                    yield from _reason(one.first)
        if any(lane.repeated for lane in self.lanes):
            yield "Both outputs of what was repeated are in build/tests/report.txt."


def _reason(result: Result) -> list[str]:
    """The failure in few lines, for places where only the report is kept. pytest marks them with an E, except in a
    group of exceptions, of which the last one named says most."""
    lines = result.output.splitlines()
    marked = [number for number, line in enumerate(lines) if line.startswith("E ")]
    named = [number for number, line in enumerate(lines) if _LEAF.match(line)]
    begin = (marked[:1] or named[-1:] or [0])[0]
    return [f"    {line.lstrip(' |')[:_WIDEST]}" for line in lines[begin : begin + _REASON_LINES]]


def _last(lane: Lane) -> list[Result]:
    """Each test once, by its last completed attempt."""
    latest: dict[str, Result] = {}
    for attempt in range(1, lane.attempt + 1):
        for result in lane.results(attempt):
            if result.outcome or result.test not in latest:
                latest[result.test] = result
    return list(latest.values())


def _attempt(which: str, result: Result | None) -> str:
    return f"{which} attempt, {result.seconds:.0f} s\n{result.output}\n" if result else f"{which} attempt: none\n"


def _slowest(results: list[Result]) -> Iterator[str]:
    seconds: defaultdict[str, float] = defaultdict(float)
    for result in results:
        seconds[result.file] += result.seconds
    if seconds:
        yield "The slowest files:"
    for file, took in sorted(seconds.items(), key=lambda one: -one[1])[:_SLOWEST]:
        yield f"  {took:6.0f} s  {file}"
