"""Log events are named `area.what_happened`, once each, and docs/logs.md lists all of them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("actors/svc_actors", "svc", "http/svc_http", "console/svc_console", "nodeagent")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NAME = re.compile(r"[a-z]+(_[a-z]+)*\.[a-z]+(_[a-z]+)*")


@cache
def modules_by_event() -> dict[str, set[str]]:
    """Every event that is logged through structlog, or rendered as one, with the modules that do."""
    found = defaultdict(set)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in LEVELS
                    and ast.unparse(node.func.value) in ("log", "_log", "self._log")
                ):
                    found[ast.literal_eval(node.args[0])].add(str(path.relative_to(ROOT)))
                elif isinstance(node, ast.Dict):
                    for key, value in zip(node.keys, node.values, strict=True):
                        named = isinstance(value, ast.Constant) and ast.unparse(key or value) == "'event'"
                        if named and NAME.fullmatch(ast.unparse(value).strip("'")):
                            found[ast.literal_eval(value)].add(str(path.relative_to(ROOT)))
    return found


def test_every_log_event_is_named_alike_and_has_one_meaning() -> None:
    events = modules_by_event()

    assert [name for name in events if not NAME.fullmatch(name)] == []
    assert {name: modules for name, modules in events.items() if len(modules) > 1} == {}


def test_the_page_lists_every_log_event_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "logs.md").read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]

    assert sorted(listed) == sorted(modules_by_event())
