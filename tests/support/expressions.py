"""Regular expressions of a module, and texts on which each would take long if it were not linear."""

from __future__ import annotations

import ast
import importlib
import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

_SEARCHING: Final = frozenset({"search", "finditer", "findall", "sub", "subn", "split"})
_CALLS: Final = _SEARCHING | {"match", "fullmatch", "compile"}
_WHOLE: Final = frozenset({"WANTED", "MARKED", "CONFIGURATIONS"})
"""Of formats of archives: names are compared with them as a whole (`archives.reading`)."""
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})
_MANY: Final = 100
"""A part that may stand there so often is one that may stand there without an end."""
_LETTERS: Final = "a1A_-./ " + string.printable
_CATEGORIES: Final = {"SPACE": r"\s", "DIGIT": r"\d", "WORD": r"\w"}

Parsed = Sequence[tuple[Any, Any]]
"""As `re` has parsed an expression: operations and their arguments."""


class Expression(NamedTuple):
    """`searched`: it is tried at each place of a text."""

    pattern: re.Pattern[Any]
    searched: bool

    def tried(self, text: str) -> None:
        given: Any = text if isinstance(self.pattern.pattern, str) else text.encode("latin-1")
        if self.searched:
            for _ in self.pattern.finditer(given):
                pass
        else:
            self.pattern.match(given)
            self.pattern.fullmatch(given)


def expressions(module: str) -> Iterator[Expression]:
    """Those of a module, also those that stand in a call of `re` as they are."""
    loaded = importlib.import_module(module)
    tree = ast.parse(Path(str(loaded.__file__)).read_text())
    used: dict[str, set[str]] = {}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "matching":
            used.setdefault(ast.unparse(call.args[0]), set()).add("fullmatch")
        owner, method = call.func.value, call.func.attr
        if not isinstance(owner, ast.Name):
            continue
        if owner.id != "re":
            used.setdefault(owner.id, set()).add(method)
        elif method in _CALLS and isinstance(call.args[0], ast.Constant):
            flags = re.MULTILINE if "MULTILINE" in ast.unparse(call) else re.NOFLAG
            yield Expression(re.compile(call.args[0].value, flags), method in _SEARCHING)
    for name, value in vars(loaded).items():
        if isinstance(value, re.Pattern):
            methods = used.get(name, set())
            # Given to another function, it may be searched for there.
            yield Expression(value, bool(methods & _SEARCHING) or not (methods or name in _WHOLE))


def pumps(pattern: re.Pattern[Any]) -> set[tuple[str, str]]:
    """For each part that is repeated: a text that leads to it, and what is repeated. Also that part with all before it,
    which is what is tried again and again where a text is searched."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    parser: Any = importlib.import_module("re._parser")
    found: set[tuple[str, str]] = set()
    _walk(parser.parse(source, pattern.flags & (re.MULTILINE | re.DOTALL | re.IGNORECASE)), "", found)
    return found


def _walk(node: Parsed, before: str, found: set[tuple[str, str]]) -> None:
    for operation, argument in node:
        if str(operation) in _REPEATS and argument[1] > _MANY:
            for part in {_sample(argument[2]), *_blanks(argument[2])} - {""}:
                found.update({(before, part), ("", before + part)})
        for inner in _inside(str(operation), argument):
            _walk(inner, before, found)
        before += _sample([(operation, argument)])


def _sample(node: Parsed) -> str:
    """A short text that these parts match."""
    return "".join(_sample_of(str(operation), argument) for operation, argument in node)


def _sample_of(name: str, argument: Any) -> str:
    if name == "LITERAL":
        return chr(argument)
    if name == "IN":
        return next((letter for letter in _LETTERS if _fits(argument, letter)), "")
    if name == "NOT_LITERAL":
        return next(letter for letter in _LETTERS if ord(letter) != argument)
    if name == "ANY":
        return "a"
    if name in _REPEATS:
        return _sample(argument[2]) * int(argument[0])
    inside = _inside(name, argument)
    return _sample(inside[0]) if inside else ""


def _inside(name: str, argument: Any) -> list[Parsed]:
    if name in _REPEATS:
        return [argument[2]]
    if name == "SUBPATTERN":
        return [argument[3]]
    if name == "ATOMIC_GROUP":
        return [argument]
    return list(argument[1]) if name == "BRANCH" else []


def _blanks(node: Parsed) -> Iterator[str]:
    """Those that one repetition may be: expressions for blanks often stand side by side."""
    for operation, argument in node:
        for blank in (" ", "\n"):
            if str(operation) == "ANY" or (str(operation) == "IN" and _fits(argument, blank)):
                yield blank


def _fits(members: Parsed, letter: str) -> bool:
    negated = any(str(operation) == "NEGATE" for operation, _ in members)
    return any(_is_of(str(operation), argument, letter) for operation, argument in members) is not negated


def _is_of(name: str, argument: Any, letter: str) -> bool:
    if name == "LITERAL":
        return ord(letter) == int(argument)
    if name == "RANGE":
        low, high = argument
        return int(low) <= ord(letter) <= int(high)
    if name == "CATEGORY":
        _, *negated, kind = str(argument).split("_")
        found: bool = re.match(_CATEGORIES[str(kind)], letter) is not None
        return not found if negated else found
    return False
