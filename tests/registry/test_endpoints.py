"""Every endpoint of the specification's tables is answered.

`specified_endpoints.md` is the specification's section Endpoints, word for word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from svc.controller.catalogue import controller_registry

TABLES = Path(__file__).with_name("specified_endpoints.md").read_text()

BY_ID = {
    ("PATCH", "/plans"): "/plans/{}",
    ("DELETE", "/plans"): "/plans/{}",
    ("PATCH", "/users"): "/users/{}",
    ("DELETE", "/tokens"): "/tokens/{}",
}
"""Methods that the specification lists with a collection's path, and that are about one thing of it."""

NO_OPERATIONS = frozenset({("WS", "/console/ws/{}")})
"""A websocket, which is no operation: tests/console has it."""


def specified() -> Iterator[tuple[str, str]]:
    """Method and path of each row, parameters as `{}`."""
    for line in TABLES.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 2 or not cells[1].startswith("/"):
            continue
        path = re.sub(r"{\w+}", "{}", cells[1].partition("?")[0])
        for method in cells[0].split(", "):
            yield method, BY_ID.get((method, path), path)


def answered() -> set[tuple[str, str]]:
    return {
        (operation.route.method.value, re.sub(r"{\w+}", "{}", operation.route.path))
        for operation in controller_registry()
    }


def test_the_copy_of_the_tables_is_whole() -> None:
    assert len(list(specified())) == 139


def test_every_specified_endpoint_answers() -> None:
    assert set(specified()) - answered() - NO_OPERATIONS == set()
