"""The page that says how an operation is added is true."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-an-operation.md").read_text()
OF_RESET = re.compile(
    r"\bVmReset\b|\"vm\.reset\"|\bOrder\.RESET\b|\bRESET = |\b(self|machines|_?guests|domain)\.reset\b"
)


def test_a_node_operation_stands_in_the_files_that_the_page_names_and_nowhere_else() -> None:
    named = {path for path in re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)}

    found = {
        str(path.relative_to(ROOT))
        for folder in ("svc", "actors", "nodeagent", "http/svc_http", "console")
        for path in (ROOT / folder).rglob("*.py")
        if OF_RESET.search(path.read_text())
    }

    assert found == named
    assert len(named) <= 5


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:svc|actors|nodeagent|tests|docs)/[\w/.-]+)`", PAGE)

    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
