"""The registry is closed and consistent, and one declaration gives route, document, command and row."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NoReturn, get_args, get_origin

import asyncclick as click
import httpx
import pytest
from pydantic import BaseModel

from svc.cli.app import build, execute
from svc.cli.description import describe
from svc.cli.output import columns
from svc.controller.catalogue import controller_registry
from svc.controller.realm import REALM
from svc.panel.catalogue import panel_registry
from svc.registry.openapi import document
from svc.registry.operation import Command, Empty, Method, Operation, Presentation, Request, Route
from svc.registry.parameters import Parameters
from svc.registry.registry import InconsistentRegistryError, Registry
from svc.registry.scopes import Scope
from svc_actors.runtime import Draining, MailboxFull
from svc_actors.store import Database
from svc_common.errors import ErrorCode, ServiceError
from svc_http.errors import failure
from tests.registry.test_idempotency import context
from tests.support.example_service import Toy, ToyMakeRequest, operation

REGISTRY = controller_registry()


class Loose(BaseModel):
    id: str


class Defaulted(Request):
    id: str = "x"


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({}, "name"),
        ({"name": "toy.other"}, "route"),
        (
            {"name": "toy.other", "route": Route(Method.GET, "/toys/{other}"), "request": Empty},
            "parameters of the path",
        ),
        ({"name": "toy.other", "route": Route(Method.POST, "/toys/{id}")}, "command"),
        (
            {"name": "toy.other", "route": Route(Method.POST, "/t/{id}"), "command": Command(("toy", "show", "all"))},
            "also a group",
        ),
    ],
)
def test_a_second_declaration_of_the_same_is_refused(second: dict[str, Any], why: str) -> None:
    with pytest.raises(InconsistentRegistryError, match=why):
        Registry([operation(), operation(**second)], REALM)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "show"},
        {"name": "Toy.Show"},
        {"name": "toy.show-all"},
        {"summary": ""},
        {"route": Route(Method.GET, "toys/{id}")},
        {"route": Route(Method.GET, "/toys/{id}/{id}")},
        {"route": Route(Method.GET, "/toys/{ID")},
        {"route": Route(Method.GET, "/toys/{id}", status=404)},
        {"request": Loose},
        {"request": Defaulted},
        {"command": Command(())},
        {"command": Command(("toy",), positional=("nose",))},
        {"mutates": True},
        {"response": dict},
        {"upload": True},
        {"upload": True, "route": Route(Method.PUT, "/toys/{id}"), "request": ToyMakeRequest},
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    Registry([operation()], REALM)
    with pytest.raises(InconsistentRegistryError):
        Registry([operation(**changes)], REALM)


def test_a_route_that_differs_only_in_the_parameters_name_is_the_same_route() -> None:
    class Renamed(Request):
        toy: str

    other = operation(name="toy.other", request=Renamed, route=Route(Method.GET, "/toys/{toy}"))
    with pytest.raises(InconsistentRegistryError, match="route"):
        Registry([operation(), dataclasses.replace(other, command=Command(("toy", "other")))], REALM)


def test_every_operation_is_in_the_openapi_document_and_nothing_else_is() -> None:
    described = {
        (operation["operationId"], method.upper(), path)
        for path, methods in document(REGISTRY)["paths"].items()
        for method, operation in methods.items()
    }
    assert described == {(o.name, o.route.method.value, o.route.path) for o in REGISTRY}


def test_the_name_of_a_schema_does_not_say_in_which_module_it_stands() -> None:
    """Two models of one name would get their modules' names as well, and clients made from the document change with
    every move."""
    documents = [document(controller_registry()), document(panel_registry())]

    assert [name for each in documents for name in each["components"]["schemas"] if "__" in name] == []


def test_the_document_is_the_same_bytes_every_time_and_resolves_its_own_references() -> None:
    text = json.dumps(document(REGISTRY))
    assert text == json.dumps(document(controller_registry()))
    whole = json.loads(text)

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "$ref":
                    target: Any = whole
                    for part in item.removeprefix("#/").split("/"):
                        target = target[part]
                else:
                    check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)

    check(whole)


@pytest.mark.parametrize("operation", list(REGISTRY), ids=lambda operation: operation.name)
def test_every_operation_has_its_command(operation: Operation[Any, Any, Any]) -> None:
    if operation.presentation is Presentation.EVENT_STREAM:
        return
    found: click.Command | None = build(describe(REGISTRY))
    for word in operation.command.words:
        assert isinstance(found, click.Group)
        found = found.commands.get(word)
    assert found is not None
    flags = {parameter.name for parameter in found.params}
    assert set(operation.command.positional) <= flags


async def test_every_operation_has_its_row_in_svc_ops(capsys: pytest.CaptureFixture[str]) -> None:
    await execute(["ops", "--output", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["operation"] for row in rows] == [operation.name for operation in REGISTRY]


async def test_every_operation_answers_at_its_route(toys: httpx.AsyncClient) -> None:
    for path in ("/toys/x", "/toys", "/link/x", "/stream"):
        assert (await toys.get(path)).status_code != 404
    assert (await toys.get("/openapi.json")).json()["paths"].keys() == {
        "/toys/{id}",
        "/toys",
        "/toys/{id}/file",
        "/link/{id}",
        "/stream",
    }


def rows_of(response: Any) -> type[BaseModel]:
    """The model of one row of a list or a page."""
    if get_origin(response) is None:
        response = response.model_fields["items"].annotation
    row: type[BaseModel] = get_args(response)[0]
    return row


@pytest.mark.parametrize("name", [operation.name for operation in REGISTRY if operation.command.columns])
def test_the_columns_of_a_list_are_fields_of_its_rows(name: str) -> None:
    for column in columns(REGISTRY[name].command.columns):
        row: Any = rows_of(REGISTRY[name].response)
        for part in column.path.split("."):
            assert part in row.model_fields, f"{name}: {column.path}"
            of = row.model_fields[part].annotation
            row = next((one for one in get_args(of) if one is not type(None)), of)


@pytest.mark.parametrize("undelivered", [MailboxFull("Toy:x", 256), Draining("Toy:x")], ids=repr)
async def test_an_order_that_its_actor_did_not_take_is_unavailable_and_names_nothing_internal(
    database: Database, undelivered: Exception
) -> None:
    async def refuse(*_: object) -> NoReturn:
        raise undelivered

    registry = Registry([operation(handler=refuse)], REALM)
    with pytest.raises(ServiceError) as refused:
        await registry.execute("toy.show", context(database), Parameters(path={"id": "x"}))
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert "nothing was done" in refused.value.message
    assert "Toy" not in f"{refused.value.message} {refused.value.hint}"
    assert (b"retry-after", b"1") in failure(refused.value, REALM.failures)[2]


def test_no_operation_takes_a_command_string_or_leaves_its_scope_to_chance() -> None:
    for declared in REGISTRY:
        assert not {"command", "cmd", "shell", "exec"} & set(declared.request.model_fields), declared.name
        if declared.mutates:
            assert declared.scope is not Scope.READ, declared.name


def test_scopes_contain_what_they_say() -> None:
    assert REALM.scopes.closed([Scope.ADMIN]) == set(Scope)
    assert REALM.scopes.closed([Scope.WRITE]) == {Scope.WRITE, Scope.READ}
    assert REALM.scopes.closed([Scope.PROVISION]) == {Scope.PROVISION}
    assert Toy(id="x", size=1).note is None
