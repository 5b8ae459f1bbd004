"""Every endpoint of the specification's tables is answered by an operation that says what it gives, that the table of
the authorisation tests names, and that some test calls for what it does.

`specified_endpoints.md` is the specification's section Endpoints, word for word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from svc.controller.catalogue import controller_registry
from svc.registry.openapi import document
from svc.registry.operation import Operation
from tests.controller.authority.test_every_operation import ACCESS
from tests.registry.calls_of_tests import calls_of_tests, calls_shape

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

Shape = tuple[str, str]
"""Method and path, its parameters as `{}`."""


def specified() -> Iterator[Shape]:
    for line in TABLES.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) < 2 or not cells[1].startswith("/"):
            continue
        path = re.sub(r"{\w+}", "{}", cells[1].partition("?")[0])
        for method in cells[0].split(", "):
            yield method, BY_ID.get((method, path), path)


ANSWERED: dict[Shape, Operation[Any, Any, Any]] = {
    (operation.route.method.value, re.sub(r"{\w+}", "{}", operation.route.path)): operation
    for operation in controller_registry()
}
ENDPOINTS = sorted(set(specified()) - NO_OPERATIONS)


def test_the_copy_of_the_tables_is_whole() -> None:
    assert len(list(specified())) == 139


def test_every_specified_endpoint_answers() -> None:
    assert set(ENDPOINTS) - ANSWERED.keys() == set()


def test_every_specified_endpoint_says_what_it_takes_and_gives() -> None:
    paths = document(controller_registry())["paths"]

    for endpoint in ENDPOINTS:
        operation = ANSWERED[endpoint]
        described = paths[operation.route.path][operation.route.method.value.lower()]
        parameters = {each["name"] for each in described.get("parameters", ()) if each["in"] == "path"}
        assert parameters == set(re.findall(r"{(\w+)}", operation.route.path)), endpoint
        successes = [answer for code, answer in described["responses"].items() if code.startswith(("2", "3"))]
        assert successes, endpoint
        assert operation.response is None or all(answer["content"] for answer in successes), endpoint


def test_every_specified_endpoint_is_among_those_whose_authority_is_tested() -> None:
    assert {endpoint for endpoint in ENDPOINTS if ANSWERED[endpoint].name not in ACCESS} == set()


@pytest.fixture(scope="module")
def calls() -> frozenset[str]:
    return calls_of_tests(Path(__file__).parents[1])


def test_every_specified_endpoint_is_called_by_a_test_of_what_it_does(calls: frozenset[str]) -> None:
    def called(endpoint: Shape) -> bool:
        operation = ANSWERED[endpoint]
        handler = f"{operation.handler.__module__}.{operation.handler.__name__}"
        return bool({operation.name, handler} & calls) or any(calls_shape(call, *endpoint) for call in calls)

    assert [endpoint for endpoint in ENDPOINTS if not called(endpoint)] == []
