"""What a test measured, and no test asserts: how long an outage lasted, say. A run lists all of them at its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator

_MARK = "figure: "


def report_figure(text: str) -> None:
    """On standard output, by which it reaches the run from another process of pytest-xdist too."""
    sys.stdout.write(f"{_MARK}{text}\n")


def figures_of(output: str) -> Iterator[str]:
    for line in output.splitlines():
        if line.startswith(_MARK):
            yield line.removeprefix(_MARK)
