"""The SQL of a release: all statements of its tree, with the numbers of its migrations.

    python -m tools.statements RELEASE [ROOT]

adds its numbers to RELEASES, which a service uses when it returns to that release, and writes all of it as JSON, for
tests/store/test_release_before.py of later releases. Sources are read and not imported. A statement is a string that
starts like one. A constant of the same tree inside of it is substituted; if it contains anything else (a list of
columns made by a function), the statement is left out and counted: one in ten.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PACKAGES = ("actors/svc_actors", "svc", "http/svc_http", "console/svc_console", "nodeagent/svc_webhost")
MIGRATIONS = Path("actors/svc_actors/store/migrations")
RELEASES = MIGRATIONS / "releases.json"
_BEGINS = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH)\s")


@dataclass
class Statements:
    """`known` are complete; `partly` is the number of others."""

    known: set[str] = field(default_factory=set)
    partly: int = 0


@dataclass
class _Module:
    tree: ast.Module

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        found = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                found[node.target.id] = node.value
        return found

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        return {
            alias.asname or alias.name: (node.module, alias.name)
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module is not None
            for alias in node.names
        }


class _Tree:
    def __init__(self, root: Path) -> None:
        self.modules: dict[str, _Module] = {}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                parts = path.relative_to((root / package).parent).with_suffix("").parts
                name = ".".join(parts).removesuffix(".__init__")
                self.modules[name] = _Module(ast.parse(path.read_text()))

    def text(self, module: str, node: ast.expr) -> str | None:
        """The value of an expression made of constants; None if it contains anything else."""
        match node:
            case ast.Constant(value=str() as value):
                return value
            case ast.JoinedStr(values=values):
                return self._joined([self.text(module, value) for value in values])
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.text(module, value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([self.text(module, left), self.text(module, right)])
            case ast.Name(id=name):
                return self._named(module, name)
        return None

    def _named(self, module: str, name: str) -> str | None:
        found = self.modules.get(module)
        if found is None:
            return None
        if name in found.constants:
            return self.text(module, found.constants[name])
        if name in found.imported:
            return self._named(*found.imported[name])
        return None

    @staticmethod
    def _joined(parts: list[str | None]) -> str | None:
        whole = [part for part in parts if part is not None]
        return "".join(whole) if len(whole) == len(parts) else None


def statements_of(root: Path) -> Statements:
    """Of the tree whose repository has its root here."""
    tree, found = _Tree(root), Statements()
    for name, module in tree.modules.items():
        within = {
            id(part)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.JoinedStr | ast.BinOp)
            for part in ast.walk(node)
            if part is not node
        }
        for node in ast.walk(module.tree):
            if id(node) in within or not isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                continue
            first = next((part for part in ast.walk(node) if isinstance(part, ast.Constant)), None)
            if first is None or not isinstance(first.value, str) or not _BEGINS.match(first.value):
                continue
            text = tree.text(name, node)
            if text is None:
                found.partly += 1
            else:
                found.known.add(text)
    return found


def release(name: str, root: Path) -> dict[str, object]:
    """`migrations`: the newest number of each component; `left_out`: how many statements are missing from these."""
    found = statements_of(root)
    newest = {
        folder.name: max(int(file.name[:4]) for file in folder.glob("*.sql"))
        for folder in sorted((root / MIGRATIONS).iterdir())
        if folder.is_dir() and any(folder.glob("*.sql"))
    }
    return {"release": name, "migrations": newest, "left_out": found.partly, "statements": sorted(found.known)}


def releases(found: Mapping[str, object], root: Path) -> dict[str, object]:
    """How many migrations each release has, including `release`."""
    known: dict[str, object] = json.loads((root / RELEASES).read_text())
    return {**known, str(found["release"]): found["migrations"]}


if __name__ == "__main__":
    _root = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parents[1]
    _found = release(sys.argv[1], _root)
    _releases = json.dumps(releases(_found, _root), indent=1) + "\n"
    (_root / RELEASES).write_text(_releases)
    sys.stdout.write(json.dumps(_found, indent=1) + "\n")
