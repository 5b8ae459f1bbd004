"""R11: how long a change takes to 99 in 100 of 900 readers, beside 100 more who never read, and without them."""

from __future__ import annotations

import trio

from tests.support.load import disturbed_crowd
from tools.benchmarks import Ratio


async def _measure() -> list[Ratio]:
    async with disturbed_crowd() as (_, _, found):
        return [
            Ratio("R11 p99 beside readers who never read : without", found.disturbed, found.undisturbed, "s", 2, False)
        ]


def measure() -> list[Ratio]:
    return trio.run(_measure)
