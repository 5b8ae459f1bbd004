"""Parsers of what tenants, visitors and other hosts write are held to two rules: the core, which serves everybody,
imports none of them, and each of their expressions is linear. What they do with the worst texts is tried in
`test_worst_texts`.
"""

from __future__ import annotations

import ast
import importlib
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import svc
import svc_actors
import svc_http
import svc_webhost
from tests.support.expressions import Expression, expressions, pumps

HOST = Path(svc_webhost.__file__).parent
FOREIGN = (
    *sorted(f"svc_webhost.{path.parent.name}.{path.stem}" for path in (HOST / "apache").glob("[a-z]*.py")),
    *sorted(f"svc_webhost.{path.parent.name}.{path.stem}" for path in (HOST / "archives").glob("[a-z]*.py")),
    *sorted(f"svc_webhost.{path.parent.name}.{path.stem}" for path in (HOST / "confined").glob("[a-z]*.py")),
    *sorted(f"svc_webhost.{path.parent.name}.{path.stem}" for path in (HOST / "htaccess").glob("[a-z]*.py")),
    *(f"svc_webhost.staging.{name}" for name in ("addresses", "phpserialize", "rewrite")),
)
"""Modules for what tenants, visitors and other hosts write. What is put into one of these folders is held to both rules
below: the core imports nothing of it but what stands in `TAKEN`, and its expressions are linear."""

CONFINED_PROGRAM = HOST / "confined" / "__main__.py"

TAKEN: dict[str, set[str | None] | None] = {
    # Values and calls of the system, no parser: values are made by the core, or come back from a helper as JSON.
    "svc_webhost.archives.model": None,
    "svc_webhost.confined.protocol": None,
    "svc_webhost.confined.kernel": None,
    "svc_webhost.confined.room": None,
    "svc_webhost.confined.tree": {"held", "remove"},
    "svc_webhost.archives.fetched": {"dump_path"},
    # Where the program lies that is started.
    "svc_webhost.staging.rewrite": {None},
    # What PHP itself says of its extensions.
    "svc_webhost.archives.extensions": {"extension_names"},
    "svc_webhost.htaccess.verdicts": None,
    # Paths, one at a time, which the kernel or the parser of the archive has bounded.
    "svc_webhost.archives.placing": None,
    # Of a crontab's line, at most 1,000 characters of it, when a plan is shown.
    "svc_webhost.archives.crontab": {"NoTaskError", "Task", "typed"},
    # An address of at most 2,000 characters.
    "svc_webhost.confined.pages": {"path_of"},
}
"""What the core takes of these modules beside constants, and why it may; None: all of it."""
ALSO_LINEAR = ("svc_actors.panel.accounts.traffic", "svc_webhost.apps.releases", "svc_webhost.log_files")
"""Modules of the core that read lines of visitors or of sites' programs, each bounded in length and number."""


def may_take(module: str, name: str | None) -> bool:
    """`name` None: the module itself."""
    if name is not None and name.isupper():
        return not isinstance(getattr(importlib.import_module(module), name), re.Pattern)
    names = TAKEN.get(module, set())
    return names is None or name in names


def imports(path: Path) -> Iterator[tuple[str, str | None]]:
    """Modules, and what is taken of them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from package import module` takes a module as well.
            yield from ((node.module, alias.name) for alias in node.names)
            yield from ((f"{node.module}.{alias.name}", None) for alias in node.names)


def test_the_core_imports_no_parser_of_foreign_text() -> None:
    packages = [
        Path(package.__file__).parent for package in (svc, svc_actors, svc_http, svc_webhost) if package.__file__
    ]
    parsers = {HOST.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in FOREIGN}
    core = {path for package in packages for path in package.rglob("*.py")} - parsers - {CONFINED_PROGRAM}

    taken = {
        (str(path.relative_to(path.parents[len(path.parts) - 4])), module, name)
        for path in core
        for module, name in imports(path)
        if module in FOREIGN and not may_take(module, name)
    }

    assert len(core) > 400
    assert taken == set()


PUMPED = tuple(1 << bits for bits in range(10, 17))
TOO_LONG = 0.15
"""Seconds of a processor for one text of at most 64 KiB, of which a linear expression takes some thousandths."""


@pytest.mark.parametrize("module", [*FOREIGN, *ALSO_LINEAR])
def test_each_expression_over_foreign_text_is_linear(module: str) -> None:
    slow = {
        (each.pattern.pattern, before, part)
        for each in expressions(module)
        for before, part in pumps(each.pattern)
        if takes_long(each, before, part)
    }

    assert slow == set()


def takes_long(expression: Expression, before: str, part: str) -> bool:
    """Texts become longer step by step, so that one that is not linear is found before it takes minutes."""
    for size in PUMPED:
        text = before + part * (size // len(part))
        for end in ("", "\x01"):
            try:
                with at_most(TOO_LONG):
                    expression.tried(text + end)
            except TooLongError:
                return True
    return False


class TooLongError(Exception):
    pass


@contextmanager
def at_most(limit: float) -> Iterator[None]:
    """Seconds of the processor; `re` looks for signals while it matches."""

    def end(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize(
    ("written", "searched"),
    [
        (r"<([A-Za-z]+)(?:\s+(.*?))?\s*>\s*$", False),
        (r"\s*(?:[0-9]*|&)>>?", True),
        (r"([A-Z_0-9]+)='([^']*)'", True),
        (r"(?:\w+\.)*\w*(?:Error|Exception)\b", True),
        (r"(?:a+)+b", False),
        (r"\[[^\]]*\]", True),
    ],
)
def test_an_expression_that_is_not_linear_is_found(written: str, searched: bool) -> None:
    expression = Expression(re.compile(written), searched)

    # Of the second kind even a short text would take years.
    assert any(takes_long(expression, before, part) for before, part in pumps(expression.pattern))
