"""The measured seconds of each file's tests, stored in tests/times.toml, for dealing files to lanes.

A file may hold tests of several kinds, so its times are stored by kind. `tools/test --times` writes the file anew from
the last run; an unlisted file counts as a default.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tools.testing.results import Result


class Kind(StrEnum):
    """Where a test may run."""

    UNIT = "unit"
    """Anywhere, beside anything."""
    ISOLATED = "isolated"
    """A system test in namespaces or on a host of its own: beside anything, one at a time in its lane."""
    HOST = "host"
    """A system test that shares this host's libvirt: only one at a time."""


_DEFAULTS: Final = {Kind.UNIT: 1, Kind.ISOLATED: 15, Kind.HOST: 30}
_SLOW_SECONDS: Final = 20
"""Unit tests of a file that takes longer mostly wait, for deadlines and back-off, so they go to a lane."""

_HEADER: Final = """\
# Seconds that the tests of a file take, by which `tools/test` deals files to lanes that end together.
# Written by `tools/test --times` from the last run.
"""


@dataclass(frozen=True)
class Times:
    seconds: Mapping[Kind, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Times:
        listed = tomllib.loads(path.read_text())
        return cls({Kind(kind): files for kind, files in listed.items()})

    def of(self, file: str, kind: Kind) -> int:
        return self.seconds.get(kind, {}).get(file, _DEFAULTS[kind])

    def slow(self, kind: Kind) -> list[str]:
        return sorted(file for file, seconds in self.seconds.get(kind, {}).items() if seconds >= _SLOW_SECONDS)

    def refreshed(self, results: Iterable[Result], existing: Iterable[str]) -> Times:
        """With new measurements replacing the old; deleted files are dropped."""
        measured: defaultdict[Kind, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        for result in results:
            measured[Kind(result.kind)][result.file] += result.seconds
        there = set(existing)
        return Times(
            {
                kind: {
                    file: max(1, round(seconds))
                    for file, seconds in sorted({**self.seconds.get(kind, {}), **measured[kind]}.items())
                    if file in there and (kind is not Kind.UNIT or round(seconds) > _DEFAULTS[kind])
                }
                for kind in Kind
            }
        )

    def written(self) -> str:
        """As TOML, sorted, so that a refresh is a short diff."""
        tables = (
            f"[{kind}]\n" + "".join(f'"{file}" = {seconds}\n' for file, seconds in sorted(self.seconds[kind].items()))
            for kind in Kind
            if self.seconds.get(kind)
        )
        return _HEADER + "\n" + "\n".join(tables)
