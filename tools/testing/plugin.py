"""The pytest plugin of a lane: runs the tests that the lane was dealt, and writes the result of each.

It is loaded by `-p tools.testing.plugin` and reads its orders from the JSON file that SVC_TESTS_LANE names; the workers
of pytest-xdist see the same environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

LANE: Final = "SVC_TESTS_LANE"
_KIND: Final = "kind"


def kind_of(item: pytest.Item) -> str:
    if item.get_closest_marker("system") is None:
        return "unit"
    return "isolated" if any(item.get_closest_marker(marker) for marker in ("isolated", "own_host")) else "host"


@dataclass(frozen=True)
class Lane:
    results: Path
    """Gets a line for each phase of a test."""
    only: dict[str, list[str]] | None = None
    """The kinds of tests to run of each file; all when there is none."""
    without: list[str] = field(default_factory=list)
    """Files whose unit tests another lane has."""
    collected: Path | None = None
    """Gets the kinds of tests that each file holds, whether or not they run here."""
    outputs: bool = False
    """Whether tests that pass are written with what they printed."""

    @classmethod
    def read(cls, path: Path) -> Lane:
        told: dict[str, Any] = json.loads(path.read_text())
        told["results"] = Path(told["results"])
        told["collected"] = Path(told["collected"]) if told.get("collected") else None
        return cls(**told)

    def has(self, file: str, kind: str) -> bool:
        if self.only is not None:
            return kind in self.only.get(file, ())
        return kind != "unit" or file not in self.without


class Plugin:
    def __init__(self, lane: Lane, worker: str | None) -> None:
        self._lane = lane
        self._worker = worker
        self._process = os.getpid()

    # Before -m deselects anything.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._lane.collected and self._worker in (None, "gw0"):
            found: dict[str, set[str]] = {}
            for item in items:
                found.setdefault(_file(item.nodeid), set()).add(kind_of(item))
            self._lane.collected.write_text(json.dumps({file: sorted(kinds) for file, kinds in sorted(found.items())}))
        left_out = [item for item in items if not self._lane.has(_file(item.nodeid), kind_of(item))]
        if left_out:
            dropped = set(left_out)
            items[:] = [item for item in items if item not in dropped]
            config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.user_properties.append((_KIND, kind_of(item)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A worker that died has reported no properties.
        kind = next((value for name, value in report.user_properties if name == _KIND), "unit")
        self._write(report, str(kind), str(report.when), report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported counts as a failed test."""
        if report.failed:
            self._write(report, "unit", "collect", 0.0)

    def _write(self, report: pytest.TestReport | pytest.CollectReport, kind: str, when: str, seconds: float) -> None:
        # Each result also arrives in the process that started pytest-xdist's workers, or tests on their own host.
        if self._worker is not None or self._process != os.getpid():
            return
        line = {
            "test": report.nodeid,
            "kind": kind,
            "when": when,
            "outcome": report.outcome,
            "seconds": round(seconds, 3),
            "output": _output(report, when) if report.failed or self._lane.outputs else "",
        }
        with self._lane.results.open("a") as results:
            results.write(json.dumps(line) + "\n")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _output(report: pytest.TestReport | pytest.CollectReport, when: str) -> str:
    parts = [f"--- {when}: {report.outcome}\n"]
    if report.longrepr is not None:
        parts.append(f"{report.longreprtext}\n")
    # Each report repeats the sections of the phases before it.
    parts += [f"[{name}]\n{text}\n" for name, text in report.sections if name.endswith(when)]
    return "".join(parts)


def pytest_configure(config: pytest.Config) -> None:
    if told := os.environ.get(LANE):
        worker = getattr(config, "workerinput", {}).get("workerid")
        config.pluginmanager.register(Plugin(Lane.read(Path(told)), worker), "svc-lane")
