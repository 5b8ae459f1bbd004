"""How often an agent tells its controller that it lives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from svc_nodeagent.connection import Connection
from svc_nodeagent.protocol import Capacity


@dataclass
class SlowHost:
    """Takes `seconds` to say what it has free; `asked` is how often it was asked."""

    seconds: float
    asked: int = 0

    async def capacity(self) -> Capacity:
        self.asked += 1
        await trio.sleep(self.seconds)
        return Capacity(cpus=1, memory_mib=1, memory_free_mib=1, disk_gib=1, disk_free_gib=1, load_1m=0)


@pytest.mark.parametrize("seconds", [0.0, 2.0, 60.0])
async def test_a_heartbeat_comes_once_a_period_however_slow_the_host_is(
    seconds: float, autojump_clock: MockClock
) -> None:
    host, nothing = SlowHost(seconds), cast(Any, None)
    connection = Connection(
        nothing, nothing, cast(Any, host), versions=nothing, hello=nothing, welcomed=nothing, received=nothing
    )

    with trio.move_on_after(59):
        await connection._beat(5.0)

    assert host.asked == 12
