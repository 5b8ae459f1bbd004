"""The endpoints of the specification's table, held against the registry: each is answered as it stands there, or is
named here as one to be built."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from svc.panel.catalogue import panel_registry
from svc.panel.realm import REALM
from svc.registry.operation import Operation
from svc.registry.parameters import path_parameters
from svc.registry.principal import Access

TO_BE_BUILT: frozenset[str] = frozenset()
"""What is built leaves this set, which only ever shrinks."""


@dataclass(frozen=True)
class Endpoint:
    """`shape` is method and path with parameters as `{}`; `scopes` each open it."""

    shape: str
    scopes: frozenset[str]
    access: Access

    def __str__(self) -> str:
        return self.shape


def shape(method: str, path: str) -> str:
    return re.sub(r"{\w+}", "{}", f"{method} {path}")


def specified() -> Iterator[Endpoint]:
    for area in tomllib.loads(Path(__file__).with_name("endpoints.toml").read_text()).values():
        scopes, access = frozenset(area["scopes"]), Access(area.get("access", Access.SIGNED_IN))
        for row in area["endpoints"]:
            method, _, path = row.partition(" ")
            for action in area["actions"] if "{action}" in path else [None]:
                yield Endpoint(shape(method, path.replace("{action}", str(action))), scopes, access)


ANSWERED: dict[str, Operation[Any, Any, Any]] = {
    shape(operation.route.method, operation.route.path): operation for operation in panel_registry()
}
STANDING = [endpoint for endpoint in specified() if endpoint.shape in ANSWERED]


def test_the_copy_of_the_table_is_whole() -> None:
    tables = tomllib.loads(Path(__file__).with_name("endpoints.toml").read_text())

    assert sum(len(area["endpoints"]) for area in tables.values()) == 58
    assert len({endpoint.shape for endpoint in specified()}) == 58 - 2 + 8 + 3


def test_every_specified_endpoint_answers_but_for_those_named_as_to_be_built() -> None:
    missing = {endpoint.shape for endpoint in specified()} - ANSWERED.keys()

    assert missing == TO_BE_BUILT


@pytest.mark.parametrize("endpoint", STANDING, ids=str)
def test_an_endpoint_asks_for_the_role_that_the_table_names(endpoint: Endpoint) -> None:
    assert ANSWERED[endpoint.shape].access is endpoint.access


@pytest.mark.parametrize("endpoint", STANDING, ids=str)
def test_an_endpoint_is_opened_by_the_scopes_that_the_table_names_and_changes_for_no_other(endpoint: Endpoint) -> None:
    operation = ANSWERED[endpoint.shape]

    opened_by = {name for name in REALM.scopes.names if REALM.scopes.allows(frozenset({name}), operation)}

    assert opened_by >= endpoint.scopes | {"admin"}
    assert ("read" in opened_by) is not (operation.mutates or operation.secret)
    if operation.mutates:
        assert opened_by == endpoint.scopes | {"admin"}


@pytest.mark.parametrize("endpoint", STANDING, ids=str)
def test_an_endpoint_that_changes_something_is_no_get_and_is_an_operation_of_its_own(endpoint: Endpoint) -> None:
    operation = ANSWERED[endpoint.shape]

    assert operation.mutates is not endpoint.shape.startswith("GET ")
    assert "{action}" not in operation.route.path
    assert all(name in operation.request.model_fields for name in path_parameters(operation.route.path))


def test_a_change_below_a_site_may_name_the_site_in_its_body() -> None:
    without = {
        operation.name
        for operation in panel_registry()
        if operation.mutates
        and operation.route.path.startswith("/sites/{id}")
        and "site_id" not in operation.request.model_fields
    }

    assert without == set()


def test_the_requests_that_the_specification_describes_are_taken_so() -> None:
    registry = panel_registry()

    created = registry["webhook.create"].request.model_fields
    log = registry["job.log"].request.model_fields

    assert {name for name, described in created.items() if described.is_required()} == {"url", "events"}
    assert log["after"].default == 0
    assert set(registry["job.get"].response.model_fields) >= {"id", "kind", "title", "status", "progress", "steps"}
