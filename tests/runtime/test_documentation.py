"""docs/actors.md promises nothing that no test holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMISES = (ROOT / "docs/actors.md").read_text().split("## What is guaranteed")[1].split("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PROMISES.splitlines()
    if line.startswith("| ") and not line.startswith("| | |")
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_promise_names_tests_that_exist(row: list[str]) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[-1])

    assert named, f"no test is named for {row[0]}"
    for path, test in named:
        file = ROOT / path if "/" in path else ROOT / "tests/runtime" / path
        assert test in functions_of(file), f"{path} has no {test}"


def functions_of(file: Path) -> set[str]:
    body = ast.parse(file.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
