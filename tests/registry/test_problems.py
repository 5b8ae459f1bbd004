"""What a caller is told of a malformed request: the field as they wrote it, and words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import httpx
import pytest
from pydantic import Field, TypeAdapter, ValidationError

from svc.controller.catalogue import controller_registry
from svc.controller.images import ImageCreateRequest
from svc.controller.realm import REALM
from svc.identity.fields import Name, Text
from svc.registry.operation import Model, Request
from svc.registry.parameters import Parameters
from svc.registry.principal import Access, Principal, Role
from svc.registry.problems import explained
from svc.registry.registry import Entry, authorise
from svc_common.errors import ErrorCode, ServiceError
from tests.support.example_service import operation

REGISTRY = controller_registry()
MALFORMED: tuple[Any, ...] = (
    *("", " ", "x" * 20_000, "\u202e", "no", "https://", "ftp://h/", "%zz://", "10.0.0.1/8", "fe80::1%e", "2026-13"),
    *(5, -1, 10**12, 10**400, 1.5, None, True, [], ["", 5], [["x"]], {}, {"name": 5, "cidr": "10.0.0.1/8"}),
)
INSIDE = re.compile(r"Input|String|Value error|validator|function|\[|\]|\^|\\|json|isinstance|IPv4Network|Pydantic|seq")


async def refusal(entry: Entry[Any], parameters: Parameters) -> ServiceError | None:
    try:
        await entry.reader.read(parameters)
    except ServiceError as error:
        return error
    return None


def malformed(entry: Entry[Any]) -> Iterator[tuple[str, Parameters]]:
    path = {name: "x" for name in entry.reader.in_path}
    for field in entry.reader.others:
        for value in MALFORMED:
            if not entry.reader.in_query:
                yield field, Parameters(path=path, body=partial(given, {field: value}))
            elif isinstance(value, str):
                yield field, Parameters(path=path, query=[(field, value)])


async def given(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize("entry", list(REGISTRY.entries()), ids=lambda entry: entry.operation.name)
async def test_a_malformed_field_is_named_and_told_in_words_and_the_validators_inside_is_not(entry: Entry[Any]) -> None:
    known = set(entry.operation.request.model_fields)

    for field, parameters in malformed(entry):
        error = await refusal(entry, parameters)

        if error is None:
            continue
        assert error.code is ErrorCode.INVALID
        problems = (error.details or {}).get("fields", [])
        assert isinstance(problems, list)
        for problem in problems:
            assert problem["field"].partition(".")[0] in known, problem
            assert not INSIDE.search(problem["problem"]), (field, problem)
            assert problem["problem"] != "is not accepted here", (field, problem)
        names = [problem["field"] for problem in problems]
        assert len(names) == len(set(names)), names


async def test_an_unknown_field_of_the_query_is_refused_whatever_the_method(toys: httpx.AsyncClient) -> None:
    for method, path in (("GET", "/toys?colour=red"), ("PUT", "/toys/x?size=3"), ("DELETE", "/toys?all=true")):
        body = {"size": 1} if method == "PUT" else None
        answer = await toys.request(method, path, headers={"Authorization": "Bearer administrator,admin"}, json=body)

        assert answer.status_code == 400, (path, answer.text)
        [problem] = answer.json()["error"]["details"]["fields"]
        assert problem["problem"] == "unknown field"


@pytest.mark.parametrize(
    ("access", "words"), [(Access.STAFF, "staff and administrators"), (Access.ADMINISTRATOR, "administrators")]
)
def test_who_is_refused_for_their_role_is_told_who_may(access: Access, words: str) -> None:
    customer = Principal(user_id=UUID(int=1), email="ada", role=Role.CUSTOMER, scopes=None)

    with pytest.raises(ServiceError, match=f"^This is for {words} only.$"):
        authorise(operation(access=access), customer, REALM)


@pytest.mark.parametrize("data", [{"kind": "a"}, {"kind": "a", "size": "x"}, {"kind": "b", "size": "x"}])
def test_a_field_inside_of_a_union_is_named_without_the_branch(data: dict[str, Any]) -> None:
    class A(Model):
        kind: Literal["a"]
        size: int

    class B(Model):
        kind: Literal["b"]
        size: int

    class Asked(Request):
        data: Annotated[A | B, Field(discriminator="kind")]
        more: Annotated[A | B, Field(discriminator="kind")] | None = None

    for given in ({"data": data}, {"data": {"kind": "a", "size": 1}, "more": data}):
        with pytest.raises(ValidationError) as caught:
            Asked.model_validate(given)

        assert explained(caught.value, Asked).message.startswith(f"{[*given][-1]}.size: ")


def test_a_contradiction_between_fields_names_one_of_them() -> None:
    with pytest.raises(ValidationError) as caught:
        ImageCreateRequest.model_validate(
            {"slug": "s", "name": "n", "distribution": "d", "release": "1", "login_user": "u", "source": "file"}
            | {"digest": "0" * 64}
        )

    error = explained(caught.value, ImageCreateRequest)

    assert error.details == {
        "fields": [{"field": "digest", "problem": "must be left out with source file: the file is sent afterwards"}]
    }


@pytest.mark.parametrize("name", ["new\nline", "turned \u202eemoc.elpmaxe", "bell\u0007", "marked\u200f", " ", ""])
def test_a_name_is_one_line_that_reads_as_it_is_written(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(name)


def test_a_name_may_be_in_any_script() -> None:
    for name in ("Zoë & Søn", "株式会社", "\u05d7\u05d1\u05e8\u05d4", "👩\u200d🚀"):
        assert TypeAdapter(Name).validate_python(name) == name


def test_a_note_may_have_lines_and_may_not_turn_text_around() -> None:
    assert TypeAdapter(Text).validate_python("one\n\ttwo") == "one\n\ttwo"
    with pytest.raises(ValidationError):
        TypeAdapter(Text).validate_python("x\u2066y")


NOT_SHOWN = frozenset(
    {
        "password",
        "set_password",
        "token",
        "csr",
        "public_key",
        "ssh_keys",
        "email",
        "confirm",
        "user_data",
        "secret_key",
    }
)
"""Texts that no list shows: the password policy, the parser of keys, a comparison or the guest judges them."""


@pytest.mark.parametrize(
    "entry",
    [entry for entry in REGISTRY.entries() if entry.operation.mutates and not entry.reader.in_query],
    ids=lambda entry: entry.operation.name,
)
async def test_no_text_that_is_kept_holds_marks_that_turn_it_around(entry: Entry[Any]) -> None:
    path = {name: str(UUID(int=1)) for name in entry.reader.in_path}

    for field in set(entry.reader.others) - NOT_SHOWN - {"idempotency_key"}:
        error = await refusal(entry, Parameters(path=path, body=partial(given, {field: "a\u202eb"})))

        assert error is not None, field
        assert error.details is not None
        named = [problem["field"] for problem in cast(list[dict[str, str]], error.details["fields"])]
        assert field in named, named
