"""Some of many points at which something may fail, drawn by the seed of the run: over many runs all of them come."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeVar

import pytest

MARK = "drawn"
SEED = "SVC_FAULT_SEED"

Point = TypeVar("Point")


def drawn(points: Sequence[Point], most: int, config: pytest.Config) -> list[Point]:
    """`most` of the points, in their order; all of them with `--full`, or where no more are asked for."""
    if config.getoption("--full") or len(points) <= most:
        return list(points)
    chance = random.Random(seed_of_run(config))
    return [points[index] for index in sorted(chance.sample(range(len(points)), most))]


def seed_of_run(config: pytest.Config) -> str:
    """That of the environment, as a run's report gives it: the second attempt draws the same."""
    if SEED not in os.environ:
        # Workers of one run have to draw the same.
        worker = getattr(config, "workerinput", {}).get("testrunuid")
        os.environ[SEED] = worker or str(random.SystemRandom().getrandbits(20))
    return os.environ[SEED]


def draw_items(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked `drawn(most)` beyond so many of a function, or of all that share `of=name` with it."""
    groups: defaultdict[tuple[int, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker(MARK):
            function = item.nodeid.partition("[")[0]
            groups[mark.args[0], mark.kwargs.get("of", function)].append(item)
    left_out: set[pytest.Item] = set()
    for (most, _), group in groups.items():
        group.sort(key=lambda item: item.nodeid)
        left_out |= set(group) - set(drawn(group, most, config))
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        print(f"\n{len(left_out)} points are left out: {SEED}={seed_of_run(config)} draws the same, --full runs all")
