"""The benchmarks: what is compared with what, and the goal for it. Each module returns rows; one run prints them
all."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """One comparison: our figure and the peer's, in the same unit, medians of one interleaved run."""

    name: str
    ours: float
    peer: float
    unit: str
    goal: float
    higher_is_better: bool

    @property
    def ratio(self) -> float:
        return self.ours / self.peer
