"""Figures with goals of their own, without a peer to compare with: the results of the panel's benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

MESSAGES: Final = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Figure:
    """`goal`: the highest acceptable value; None for a figure that is shown for what it explains."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    higher_is_better: bool = False

    @property
    def met(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.higher_is_better else self.value <= self.goal


def show(figures: Sequence[Figure], load: float) -> None:
    """`load`: the machine's load when the run started."""
    MESSAGES.print(f"load when it began: {load:.1f}", style="dim")
    table = Table(box=None, pad_edge=False)
    for heading in ("figure", "measured", "unit", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("measured", "goal") else "left")
    for figure in figures:
        goal = "" if figure.goal is None else f"{'>=' if figure.higher_is_better else '<='} {figure.goal:g}"
        verdict = "" if figure.goal is None else "met" if figure.met else "missed"
        table.add_row(figure.name, f"{figure.value:,.3g}", figure.unit, goal, verdict)
    Console(highlight=False).print(table)
