"""Every text and every number of the protocol, found by walking its models: what no record could hold never arrives."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from enum import Enum
from functools import partial
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from types import UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

import pytest
from annotated_types import Ge, Gt, Le, Len, MaxLen
from pydantic import AnyUrl, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from svc_nodeagent.protocol import FACTS, EnrolRequest, EnrolResult, OperationResult, Wire
from svc_nodeagent.protocol import frames as frames_module
from svc_nodeagent.protocol.facts import ResultKind
from svc_nodeagent.protocol.frames import DownFrame, UpFrame
from svc_nodeagent.protocol.values import Moment, _a_moment, _storable

PLAIN = (UUID, AnyUrl, IPv4Interface, IPv6Interface, IPv4Network, IPv6Network, bool, type(None))
"""Types with bounds of their own."""
NUL, HALF = "a\x00b", "a\ud800b"


def parts_of(annotation: Any, marks: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each plain type that an annotation is made of, with the marks (bounds, validators) that hold for it."""
    if isinstance(annotation, NewType):
        yield from parts_of(annotation.__supertype__, marks)
    elif get_origin(annotation) is Annotated:
        inner, *own = get_args(annotation)
        flat = [mark for each in own for mark in (each.metadata if isinstance(each, FieldInfo) else [each])]
        yield from parts_of(inner, (*marks, *flat))
    elif get_origin(annotation) in (Union, UnionType):
        for each in get_args(annotation):
            yield from parts_of(each, marks)
    elif get_origin(annotation) in (tuple, dict):
        # Bounds of the whole are not those of its parts.
        for each in get_args(annotation):
            if each is not Ellipsis:
                yield from parts_of(each, ())
    elif get_origin(annotation) is not Literal:
        yield annotation, marks


def all_models() -> dict[str, type[Wire]]:
    found: dict[str, type[Wire]] = {}
    waiting: list[Any] = [UpFrame, DownFrame, EnrolRequest, EnrolResult]
    while waiting:
        for part, _ in parts_of(waiting.pop(), ()):
            if isinstance(part, type) and issubclass(part, Wire) and part.__name__ not in found:
                found[part.__name__] = part
                waiting += [info.annotation for info in part.model_fields.values()]
    return found


MODELS = all_models()


def fields(wanted: type) -> list[Any]:
    """(model, field, marks) of every field, or part of one, of this plain type."""
    return [
        pytest.param(part, marks, id=f"{name}.{field}.{place}")
        for name, model in MODELS.items()
        for field, info in model.model_fields.items()
        for place, (part, marks) in enumerate(parts_of(info.annotation, tuple(info.metadata)))
        if part is wanted
    ]


def test_the_walk_sees_the_whole_protocol() -> None:
    assert len(MODELS) > 100
    assert {model for model in vars(frames_module).values() if isinstance(model, type) and issubclass(model, Wire)} - {
        Wire
    } <= set(MODELS.values())
    for model in MODELS.values():
        for field in model.model_fields.values():
            for part, _ in parts_of(field.annotation, ()):
                known = part in (str, int, float, datetime.datetime, *PLAIN) or issubclass(part, Wire | Enum)
                assert known, f"{model.__name__}: {part}"


@pytest.mark.parametrize(("part", "marks"), fields(str))
def test_no_text_brings_what_a_database_cannot_keep(part: Any, marks: tuple[Any, ...]) -> None:
    assert any(getattr(mark, "func", None) is _storable for mark in marks), "make it of AnyText"
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[part, *marks])
    for said in (partial(adapter.validate_json, json.dumps(NUL)), partial(adapter.validate_python, HALF)):
        try:
            assert said() == "a\ufffdb"
        except ValidationError:
            continue
    with pytest.raises(ValidationError):
        adapter.validate_json('"a\\ud800b"')
    assert (
        any(isinstance(mark, MaxLen | Len) for mark in marks)
        or any("pattern" in repr(mark) for mark in marks)
        or (adapter.validate_python("x" * 100_000) != "x" * 100_000)
    )


@pytest.mark.parametrize(("part", "marks"), [*fields(int), *fields(float)])
def test_every_number_has_two_ends(part: Any, marks: tuple[Any, ...]) -> None:
    assert any(isinstance(mark, Ge | Gt) for mark in marks)
    ends: list[Any] = [mark.le for mark in marks if isinstance(mark, Le)]
    [end] = ends
    assert end <= 2**63 - 1, "PostgreSQL's bigint"
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[part, *marks])
    for beyond in (float(end) * 1.01 + 1, 1e308, 1.7e308, 10**400, float("inf")):
        with pytest.raises(ValidationError):
            adapter.validate_json(json.dumps(int(beyond) if part is int and beyond != float("inf") else beyond))


@pytest.mark.parametrize(("part", "marks"), fields(datetime.datetime))
def test_every_moment_is_one_that_calculations_survive(part: type, marks: tuple[Any, ...]) -> None:
    assert any(getattr(mark, "func", None) is _a_moment for mark in marks), "make it a Moment"


@pytest.mark.parametrize("said", ["0001-01-01T00:00:00", "9999-12-31T23:59:59", "9999-12-31T23:59:59-23:00"])
def test_a_moment_outside_of_time_is_moved_into_it(said: str) -> None:
    moment = TypeAdapter(Moment).validate_json(json.dumps(said))
    assert moment.tzinfo is not None
    for days in (-100_000, 100_000):
        assert moment + datetime.timedelta(days=days)


def test_each_operation_names_a_kind_of_result_that_there_is() -> None:
    kinds = {each.model_fields["kind"].default for each in get_args(get_args(OperationResult)[0])}
    assert kinds == set(get_args(ResultKind))
    assert {facts.answer for facts in FACTS.values()} == kinds, "a kind that nothing answers with goes"
