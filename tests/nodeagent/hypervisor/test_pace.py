"""A guest that uses its disk goes before its backup, and one that rests costs the backup nothing."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from svc_nodeagent.hypervisor.backups.pace import BUSY_SHARE, BackupThrottle


async def worked(waits: float | None, seconds: float) -> float:
    """The time that so much work takes beside a guest whose requests wait for such a part of the time."""
    begun = trio.current_time()

    async def waited() -> float | None:
        return None if waits is None else (trio.current_time() - begun) * waits

    pace, done = BackupThrottle(waited), 0.0
    while done < seconds:
        await trio.sleep(0.01)
        await pace.rest_after_work(0.01)
        done += 0.01
    return trio.current_time() - begun


@pytest.mark.parametrize("waits", [0.02, 0.9, 4.0, None])
async def test_beside_a_guest_that_uses_its_disk_a_small_share_of_the_time_is_worked(
    waits: float | None, autojump_clock: trio.testing.MockClock
) -> None:
    assert 0.85 < await worked(waits, 10) * BUSY_SHARE / 10 < 1.1


async def test_beside_one_that_rests_it_goes_as_fast_as_it_can(autojump_clock: trio.testing.MockClock) -> None:
    assert await worked(0, 10) < 11


async def test_the_less_it_uses_its_disk_the_less_is_rested(autojump_clock: trio.testing.MockClock) -> None:
    assert 30 < await worked(0.005, 10) < 90
