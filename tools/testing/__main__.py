"""`tools/test` without names of tests: checks, lanes, the report. `tools/test --help` lists the options."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence

from tools.testing import checks, lanes, results, words
from tools.testing.dealing import Share, deal, shares_of_system, slow_beside_system
from tools.testing.files import COLLECTED, FLAKY, REPORT, ROOT, RUN, TIMES
from tools.testing.flaky import ledger
from tools.testing.lanes import Lane
from tools.testing.processes import Processes, processes
from tools.testing.report import Report
from tools.testing.times import Kind, Times

_LANES = 3
"""On two cores: most of the time a lane waits for guests and servers."""
_LONGEST_SECONDS = 85 * 60
"""CI ends a run after ninety minutes, without a report."""
_FEW_FILES = 4
"""They are over before a second worker has collected them."""

Parts = Callable[[Report, Processes, dict[str, str]], None]


def main(arguments: Sequence[str]) -> int:
    # The help is in tools/test, which prints it before anything is installed.
    parser = argparse.ArgumentParser(prog="tools/test", add_help=False, allow_abbrev=False)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--fast", action="store_true")
    what.add_argument("--changed", nargs="?", const="", metavar="REVISION")
    what.add_argument("--times", action="store_true")
    what.add_argument("--words", action="store_true")
    parser.add_argument("--lanes", type=int, default=_LANES)
    asked = parser.parse_args(arguments)
    if asked.times:
        return refresh_times()
    if asked.words:
        return words.main(lower=True)
    if asked.changed is not None:
        return run_changed(asked.changed)
    return run_all(asked.lanes, fast=asked.fast)


def run_all(number: int, *, fast: bool) -> int:
    """The checks; then the tests that need no host, on two cores; then the lanes of system tests.

    A failed unit test does not end the run: one run should report everything that it can find.

    Slow unit tests, which mostly wait, run during those lanes if they can, or with `fast` during the other unit
    tests."""
    times = Times.read(TIMES)
    slow = [file for file in (times.slow(Kind.UNIT) if fast else slow_beside_system(times)) if (ROOT / file).exists()]
    unit = Lane(
        "unit",
        RUN / "unit",
        # Each worker takes over tests that another would run late.
        ("-n", "2", "--dist", "worksteal", "-m", "not system"),
        without=slow,
        collected=COLLECTED,
        shown=True,
        may_be_empty=True,
    )

    def parts(report: Report, ran: Processes, environment: dict[str, str]) -> None:
        report.checks = checks.failed(ran, environment)
        if report.checks or ran.cut_by:
            return
        first = [unit]
        if fast and slow:
            share = Share()
            deal(((file, Kind.UNIT) for file in slow), times, [share])
            first.append(_lane("slow", share))
        report.lanes += first
        lanes.run(first, ran, environment)
        if fast or ran.cut_by:
            return
        if not COLLECTED.exists():
            report.left_out = "the system tests, and the unit tests that run beside them"
            return
        kinds = {file: [Kind(kind) for kind in found] for file, found in json.loads(COLLECTED.read_text()).items()}
        shares = shares_of_system(kinds, times, number)
        second = [_lane(f"system-{n}", share, shown=n == 1) for n, share in enumerate(shares, 1) if share.files]
        report.lanes += second
        lanes.run(second, ran, environment)

    return reported(parts)


def run_changed(revision: str) -> int:
    """The tests without hosts that the differences from a revision can reach."""
    # imported only here: it reads every module of product and tests
    from tools.testing.changed import Tree, changed_files

    revision, files = changed_files(ROOT, revision)
    selection = Tree(ROOT).reached(files)
    print(f"{len(files)} files have changed since {revision}", *selection.text(), sep="\n", flush=True)
    if not selection.run:
        return 0
    workers = ("-n", "2", "--dist", "worksteal") if len(selection.run) > _FEW_FILES else ()
    lane = Lane("changed", RUN / "changed", workers, only={file: [Kind.UNIT] for file in selection.run}, shown=True)
    lane.may_be_empty = True  # a file may hold system tests alone

    def parts(report: Report, ran: Processes, environment: dict[str, str]) -> None:
        report.lanes.append(lane)
        lanes.run([lane], ran, environment)

    return reported(parts)


def _lane(name: str, share: Share, *, shown: bool = False) -> Lane:
    return Lane(name, RUN / name, only=share.files, expected=share.seconds, shown=shown)


def reported(parts: Parts) -> int:
    """Run `parts`, which fill in the report; print it whatever happens, and leave no process behind if interrupted."""
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    environment = lanes.seeded(os.environ)
    report = Report(ledger=ledger(FLAKY), seed=environment[lanes.SEED])
    with processes() as ran:
        signal.alarm(_LONGEST_SECONDS)
        parts(report, ran, environment)
        signal.alarm(0)
        if ran.cut_by:
            report.cut_by = ran.cut_by.name
        report.killed = ran.stop()
    for lane in report.lanes:
        if lane.log.exists():
            print(f"\n==> {lane.name}\n{lane.log.read_text(errors='replace')}")
    text = report.text()
    REPORT.write_text(text + report.outputs(), errors="backslashreplace")
    print(text, end="", flush=True)
    return 0 if report.passed else 1


def refresh_times() -> int:
    """Write tests/times.toml from the measurements of the last run."""
    found = [result for path in sorted(RUN.glob("*/results-1.jsonl")) for result in results.read(path)]
    if not found:
        print("tools/test --times: no run has left anything in build/tests; run tools/test first", file=sys.stderr)
        return 1
    existing = (str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    times = Times.read(TIMES) if TIMES.exists() else Times()
    TIMES.write_text(times.refreshed(found, existing).written())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
