"""How much is done to a service: enough to find what broke, or with --full as much as docs/faults.md promises.

Kills at full length are two tests, with other seeds, of some minutes each.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Extent:
    kills: int
    orders: int
    outages: int
    failovers: int
    flapping_seconds: float
    flapping_machines: int
    machines: int
    """On simulated hosts that lose their power."""
    guests: int
    """On a real one."""


@pytest.fixture
def extent(request: pytest.FixtureRequest) -> Extent:
    if request.config.getoption("--full"):
        return Extent(
            kills=100,
            orders=500,
            outages=20,
            failovers=20,
            flapping_seconds=60.0,
            flapping_machines=200,
            machines=1_000,
            guests=20,
        )
    return Extent(
        kills=4, orders=50, outages=3, failovers=2, flapping_seconds=5.0, flapping_machines=20, machines=60, guests=4
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", (41, 42) if metafunc.config.getoption("--full") else (41,))
