"""Readers of the event stream who never read: dropped, and no burden to those who do.

How long the others wait beside them is not asserted.
"""

from __future__ import annotations

import pytest
import trio

from tests.support.load import disturbed_crowd, ended

pytestmark = [pytest.mark.system, pytest.mark.isolated]

GROWTH_MIB = 96
DROPPED_WITHIN = 180.0
"""A busy machine takes longer to fill their connections; a reader that is never dropped is what this finds."""


async def test_those_who_never_read_are_dropped_and_everybody_else_misses_nothing() -> None:
    async with disturbed_crowd() as (api, everybody, disturbance):
        assert disturbance.growth <= GROWTH_MIB
        with trio.fail_after(DROPPED_WITHIN):
            await everybody.flood_until_dropped(api)
            async with trio.open_nursery() as nursery:
                for stream in everybody.sleepers:
                    nursery.start_soon(ended, stream)
