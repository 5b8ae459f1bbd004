"""Style, types, import rules and words: the checks that run no test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.testing.processes import Processes

_BIN: Final = Path(sys.executable).parent
_PRETTIER: Final = 'cd http/dashboard && exec node node_modules/prettier/bin/prettier.cjs --check "src/**/*.ts" "*.mjs"'
CHECKS: Final[dict[str, tuple[str | Path, ...]]] = {
    "ruff check": (_BIN / "ruff", "check", "."),
    "ruff format": (_BIN / "ruff", "format", "--check", "."),
    "mypy": (_BIN / "mypy",),
    "lint-imports": (_BIN / "lint-imports",),
    "prettier": ("sh", "-c", _PRETTIER),
    "words": (sys.executable, "-m", "tools.testing.words"),
}


def failed(processes: Processes, environment: Mapping[str, str]) -> list[str]:
    """The names of the failed checks; all of them are run."""
    names = []
    path = {"PATH": f"{_BIN}:{environment.get('PATH', '')}"}
    for name, command in CHECKS.items():
        pid = processes.start([str(word) for word in command], {**environment, **path})
        ended: dict[int, int] = {}
        while not ended and not processes.cut_by:
            ended = processes.ended(5)
        if processes.cut_by:
            break
        if ended[pid] != 0:
            names.append(name)
    return names
