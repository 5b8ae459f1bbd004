"""Which operations the tests call: read off their sources, since a call that a test makes is one that it looks at.

A test calls an operation by its name (`api("vm.start", ...)`), by its handler (`site.call(nodes.update_node, ...)`), or
by method and path (`client.post(f"/vms/{vm}/start")`, `client.call("POST", ...)`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

OF_ALL_OPERATIONS = ("registry", "controller/authority", "panel/authority", "panel/specification", "http/pages")
"""Tests that name operations without looking at what each does."""

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_NAME = re.compile(r"[a-z_]+(\.[a-z_]+)+")


def calls_of_tests(folder: Path) -> frozenset[str]:
    """Names of operations, handlers as `module.function`, and `METHOD path` with `{}` for what a test puts in."""
    sources = (
        source
        for source in folder.rglob("test_*.py")
        if not source.relative_to(folder).as_posix().startswith(OF_ALL_OPERATIONS)
    )
    return frozenset(call for source in sources for call in _calls(ast.parse(source.read_text())))


def calls_shape(call: str, method: str, path: str) -> bool:
    """Whether `call` is of this method and path. What a test puts in at the beginning may be more than one part of the
    path; of the rest something is always said."""
    said, _, asked = call.partition(" ")
    if said != method or not re.search(r"/[a-z]", asked):
        return False
    rest = asked.removeprefix("{}")
    pattern = (".+" if rest != asked else "") + re.escape(rest).replace(r"\{\}", "[^/]+")
    return re.fullmatch(pattern, path.replace("{}", "x")) is not None


def _calls(tree: ast.Module) -> Iterator[str]:
    modules = dict(_modules(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{modules[node.value.id]}.{node.attr}"
        if isinstance(node, ast.Call):
            yield from _called(node)


def _modules(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a name of the file stands for, if it is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"


def _called(node: ast.Call) -> Iterator[str]:
    function = getattr(node.func, "attr", getattr(node.func, "id", "")).upper()
    texts = [text for argument in node.args if (text := _text(argument)) is not None]
    methods = [function] if function in _METHODS else [text for text in texts if text in _METHODS]
    for text in texts:
        if _NAME.fullmatch(text):
            yield text
        for method in methods:
            if "/" in text:
                yield f"{method} {text.partition('?')[0].removeprefix('/api/v1')}"


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None
