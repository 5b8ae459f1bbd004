"""What leaves a nursery of Trio is a group: an `except` that names an error does not catch it there.

So no named error is caught around a bare `open_nursery`. A child takes its error out itself, or whoever waits asks
`refusal_in`, or the nursery is one of `background_nursery`, which lets the error of its body leave as itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("svc", "actors", "http", "console", "nodeagent")
CATCH_GROUPS = {"BaseExceptionGroup", "ExceptionGroup", "BaseException", "Exception"}


def functions_within(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below, without those of functions that are defined there: they run elsewhere."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from functions_within(child)


def opens_a_nursery(statements: list[ast.stmt]) -> bool:
    nodes = [each for statement in statements for each in (statement, *functions_within(statement))]
    return any(
        isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Attribute)
        and item.context_expr.func.attr == "open_nursery"
        for node in nodes
        if isinstance(node, ast.AsyncWith)
        for item in node.items
    )


def names_of(handlers: list[ast.ExceptHandler]) -> set[str]:
    found: set[str] = set()
    for handler in handlers:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        found |= {ast.unparse(kind).rpartition(".")[2] for kind in kinds if kind is not None}
    return found


def suppressed(node: ast.With | ast.AsyncWith) -> set[str]:
    """By `suppress(SomeError)`."""
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    return {
        ast.unparse(argument).rpartition(".")[2]
        for call in calls
        if ast.unparse(call.func).endswith("suppress")
        for argument in call.args
    }


def caught_in_vain(source: str) -> list[int]:
    """The lines of blocks that name an error which would come to them in a group."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try):
            named = names_of(node.handlers)
        elif isinstance(node, ast.With | ast.AsyncWith):
            named = suppressed(node)
        else:
            continue
        if named - CATCH_GROUPS - {"Cancelled"} and opens_a_nursery(node.body):
            lines.append(node.lineno)
    return lines


def test_no_named_error_is_caught_around_a_bare_nursery() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for tree in TREES
        for path in sorted((ROOT / tree).rglob("*.py"))
        for line in caught_in_vain(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("async def f():\n try:\n  async with trio.open_nursery() as n:\n   pass\n except OSError:\n  pass", [2]),
        ("async def f():\n try:\n  if x:\n   async with trio.open_nursery():\n    pass\n except (A, B):\n  y", [2]),
        ("async def f():\n with suppress(a.B):\n  async with trio.open_nursery() as n:\n   pass", [2]),
        ("async def f():\n try:\n  async with trio.open_nursery() as n:\n   pass\n except ExceptionGroup:\n  pass", []),
        ("async def f():\n try:\n  async with trio.open_nursery() as n:\n   pass\n finally:\n  pass", []),
        ("async def f():\n async with trio.open_nursery() as n:\n  try:\n   pass\n  except OSError:\n   pass", []),
    ],
)
def test_what_is_found(source: str, lines: list[int]) -> None:
    assert caught_in_vain(source) == lines
