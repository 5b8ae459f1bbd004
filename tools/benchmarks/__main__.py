"""Run the benchmarks and print a row for each: ours, the peer's, the ratio, the goal, and whether it is met.

A missed goal does not fail the run: the figure is what it is, and docs/performance.md says why. Some
are runs of their own, with options (`tools/bench scale --help`): they take minutes, and print more than ratios.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from dataclasses import asdict

import structlog
from rich.console import Console
from rich.table import Table

from tools.benchmarks import Ratio

MODULES = {
    "store": ("B10",),
    "http": ("B1", "B4"),
    "machines": ("B2", "B3"),
    "machine_backups": ("B20", "B21", "B22"),
    "webhooks": ("B9",),
}

OWN_RUNS = ("scale", "soak", "hosting", "noise")


def met(row: Ratio) -> bool:
    return row.ratio >= row.goal if row.higher_is_better else row.ratio <= row.goal


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if sys.argv[1:2] and sys.argv[1] in OWN_RUNS:
        importlib.import_module(f"tools.benchmarks.{sys.argv[1].replace('-', '_')}").main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="tools/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="B1", help="only these; all when left out")
    parser.add_argument("--json", action="store_true", help="rows as JSON on standard output")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - {name for names in MODULES.values() for name in names}:
        own = f"runs of their own: {', '.join(OWN_RUNS)}"
        parser.error(f"no benchmark of that name: {', '.join(sorted(unknown))} ({own})")
    rows: list[Ratio] = []
    try:
        measure(arguments.names, rows)
    finally:  # if one fails, the results of those before it are still printed
        show(rows, as_json=arguments.json)


def measure(wanted: list[str], rows: list[Ratio]) -> None:
    messages = Console(stderr=True, highlight=False)
    cores = os.sched_getaffinity(0)
    for module, names in MODULES.items():
        if wanted and not set(wanted) & set(names):
            continue
        messages.print(f"measuring {', '.join(names)} ...", style="dim")
        os.sched_setaffinity(0, cores)  # some use one core, so that the programs they drive have the other
        rows += importlib.import_module(f"tools.benchmarks.{module}").measure()


def show(rows: list[Ratio], *, as_json: bool) -> None:
    if as_json:
        json.dump([asdict(row) | {"ratio": row.ratio, "met": met(row)} for row in rows], sys.stdout, indent=2)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("benchmark", "ours", "peer", "unit", "ratio", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("ours", "peer", "ratio", "goal") else "left")
    for row in rows:
        goal = f"{'>=' if row.higher_is_better else '<='} {row.goal:g}"
        verdict = "met" if met(row) else "missed"
        table.add_row(row.name, f"{row.ours:,.4g}", f"{row.peer:,.4g}", row.unit, f"{row.ratio:.2f}", goal, verdict)
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
