"""Deal test files to lanes that end at the same time.

The longest file goes first, each to the lane with the least work so far. The result is at most a third above the best
possible (Graham's bound), and much nearer with many small files. A file is never split: its tests may share a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tools.testing.times import Kind, Times

WITH_ACCOUNTS: Final = (
    "tests/panel/",
    "tests/system/panel/",
    "tests/faults/test_panel_database_outages.py",
    "tests/webhost/",
    "tests/tools/test_panel_run.py",
)
"""Prefixes of files whose tests run programs as the accounts of sites. Every panel starts with the same account number,
and ends whatever an account runs. Two concurrent system tests would end each other's programs; unit tests end none, but
those that touch the sites' files would be ended by a concurrent system test."""


@dataclass
class Share:
    """The files of one lane, each with the kinds of its tests that this lane runs."""

    files: dict[str, list[Kind]] = field(default_factory=dict)
    seconds: int = 0

    def add(self, file: str, kind: Kind, seconds: int) -> None:
        self.files.setdefault(file, []).append(kind)
        self.seconds += seconds


def deal(files: Iterable[tuple[str, Kind]], times: Times, shares: Sequence[Share]) -> None:
    """Add the files to the shares, which may have some already."""
    for file, kind in sorted(files, key=lambda one: (-times.of(*one), one)):
        min(shares, key=lambda share: share.seconds).add(file, kind, times.of(file, kind))


def slow_beside_system(times: Times) -> list[str]:
    """Files of slow unit tests that can wait while system tests run."""
    return [file for file in times.slow(Kind.UNIT) if not file.startswith(WITH_ACCOUNTS)]


def shares_of_system(collected: Mapping[str, Iterable[Kind]], times: Times, lanes: int) -> list[Share]:
    """System tests and slow unit tests; the first lane has all those that share this host's libvirt.

    `collected`: the kinds of tests in each file."""
    slow = set(slow_beside_system(times))
    shares = [Share() for _ in range(lanes)]
    anywhere = []
    for file, kinds in sorted(collected.items()):
        for kind in kinds:
            if kind is Kind.HOST:
                shares[0].add(file, kind, times.of(file, kind))
            elif kind is not Kind.UNIT and file.startswith(WITH_ACCOUNTS):
                shares[-1].add(file, kind, times.of(file, kind))
            elif kind is Kind.ISOLATED or file in slow:
                anywhere.append((file, kind))
    deal(anywhere, times, shares)
    return shares
