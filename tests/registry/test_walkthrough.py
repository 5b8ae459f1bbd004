"""The page that says how an operation, a field, a list and a target are added is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-an-operation.md").read_text()
SOURCES = ("svc", "actors", "nodeagent", "http/svc_http", "http/dashboard/src", "console")
SUFFIXES = (".py", ".ts", ".sql")

EXAMPLES = {
    "One that acts on a node": (
        r"\bVmReset\b|\"vm\.reset\"|\bOrder\.RESET\b|\bRESET = |\b(self|machines|_?guests|domain)\.reset\b",
        5,
    ),
    "A field of a machine": (r"\brestart_policy\b", 8),
    "A list of a site that the web server serves": (
        r"denied_path|\bDenied(Path|Pattern)|\bStoredDenied|MOST_DENIED|DENIED_PATTERN|_denied_rules|\.denied\b",
        12,
    ),
    "A kind of backup target": (
        r"TargetKind\.S3|BucketSettings|BucketTargetRequest|MachineBucketRequest|BucketPlace|Literal\[\"s3\"\]",
        8,
    ),
}
"""By the heading of its section: what the example is called in the sources, and the most files that may know of it."""


def files_with(pattern: str) -> set[str]:
    """The files of the product where this occurs, but for generated ones and those that judge .htaccess files."""
    return {
        str(path.relative_to(ROOT))
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
        and path.name != "generated.ts"
        and not {"htaccess", "static"} & set(path.relative_to(ROOT).with_suffix("").parts)
        and re.search(pattern, path.read_text())
    }


@pytest.mark.parametrize("section", EXAMPLES)
def test_an_example_is_known_to_the_files_that_the_page_names_and_to_no_other(section: str) -> None:
    pattern, most = EXAMPLES[section]
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)

    named = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)

    assert files_with(pattern) == set(named)
    assert len(named) <= most


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`((?:svc|actors|nodeagent|http|tests|docs)/[\w/.-]+)`", PAGE)

    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
