"""The problems with a request's fields, in words: the one place that translates pydantic's errors.

Invariants: a problem names a field of the request as the caller wrote it, or none; it reveals none of the validator's
internals (union branches, patterns, Python's types) and no value that was sent, since that may be a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from svc_common.errors import ServiceError, invalid

_MAX_PROBLEMS = 20
UNKNOWN_FIELD: Final = "unknown field"

_A_MOMENT: Final = "must be a time with its zone, such as 2026-11-01T00:00:00Z"

_WORDS: Final[Mapping[str, str]] = {
    "extra_forbidden": UNKNOWN_FIELD,
    "missing": "required",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "dict_type": "must be an object that maps names to text",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "uuid_type": "must be an id, which is a UUID",
    "uuid_parsing": "must be an id, which is a UUID",
    "url_type": "must be a URL such as https://example.org/image.qcow2",
    "url_parsing": "must be a URL such as https://example.org/image.qcow2",
    "url_syntax_violation": "must be a URL such as https://example.org/image.qcow2",
    "url_scheme": "must be a URL that starts with http:// or https://",
    "ip_v4_address": "must be an IPv4 address such as 192.0.2.1",
    "ip_v6_address": "must be an IPv6 address such as 2001:db8::1",
    "model_attributes_type": "must be an object",
    "union_tag_not_found": "must say its type",
    "url_too_long": "must be a shorter URL",
    "datetime_type": _A_MOMENT,
    "datetime_parsing": _A_MOMENT,
    "datetime_from_date_parsing": _A_MOMENT,
    "timezone_aware": _A_MOMENT,
}

_BOUNDS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "string_too_short": lambda bound: _at_least(bound["min_length"], "character"),
    "string_too_long": lambda bound: f"must have at most {_count(bound['max_length'], 'character')}",
    "too_short": lambda bound: _at_least(bound["min_length"], "entry"),
    "too_long": lambda bound: f"must have at most {_count(bound['max_length'], 'entry')}",
    "greater_than": lambda bound: f"must be more than {bound['gt']}",
    "greater_than_equal": lambda bound: f"must be at least {bound['ge']}",
    "less_than": lambda bound: f"must be less than {bound['lt']}",
    "less_than_equal": lambda bound: f"must be at most {bound['le']}",
    "enum": lambda bound: f"must be {bound['expected'].replace(chr(39), '')}",
    "literal_error": lambda bound: f"must be {bound['expected'].replace(chr(39), '')}",
    "union_tag_invalid": lambda bound: f"must be of one of the types {_tags(bound['expected_tags'])}",
    "value_error": lambda bound: str(bound["error"]),
}


def _tags(expected: str) -> str:
    """The tags as callers write them, from pydantic's form: `<RecordType.A: 'A'>` for a member of an enum."""
    return re.sub(r"<[^:>]*: ([^>]*)>", r"\1", expected).replace("'", "")


def explained(error: ValidationError, model: type[BaseModel]) -> ServiceError:
    """`invalid`, with one entry a field in `details.fields`; the message is about the first."""
    problems: dict[str, str] = {}
    for entry in error.errors(include_url=False, include_input=False):
        bound = entry.get("ctx", {})
        # Every branch of a union reports the same field, and only the first report is used.
        problems.setdefault(
            bound.get("field") or _field(model, entry["loc"]), _problem(entry["type"], entry["msg"], bound)
        )
    fields = [{"field": field, "problem": problem} for field, problem in problems.items() if field][:_MAX_PROBLEMS]
    field, problem = next(iter(problems.items()))
    message = f"{field}: {problem}" if field else f"The request {problem}."
    return invalid(message, details={"fields": fields} if fields else None)


def _problem(kind: str, message: str, bound: Mapping[str, Any]) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if kind in _BOUNDS:
        return _BOUNDS[kind](bound)
    # Our own messages (`PydanticCustomError`) are shown, pydantic's own are not.
    return message if message.startswith("must ") else "is not accepted here"


def _field(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """The path to a value as the caller wrote it: members of objects and positions in lists, without pydantic's names
    of union branches."""
    parts: list[str] = []
    inside: type[BaseModel] | None = model
    branches: Mapping[object, type[BaseModel]] | None = None
    for part in location:
        if isinstance(part, int):
            parts.append(str(part))
        elif branches is not None:
            inside, branches = branches.get(part), None
        elif inside is not None:
            parts.append(part)
            field = inside.model_fields.get(part)
            inside = _model_of(field.annotation) if field is not None else None
            branches = _branches(field)
    return ".".join(parts)


def _branches(field: FieldInfo | None) -> Mapping[object, type[BaseModel]] | None:
    """The models of a discriminated union by the discriminator's value: pydantic puts that value into the location of
    an error inside a branch."""
    for annotation, discriminator in _unions(field):
        if isinstance(discriminator, str):
            models = [_model_of(branch) for branch in get_args(annotation)]
            return {
                value: model
                for model in models
                if model is not None
                for value in get_args(model.model_fields[discriminator].annotation)
            }
    return None


def _unions(field: FieldInfo | None) -> Iterator[tuple[Any, object]]:
    """The field's annotation, and the annotated types inside of it (as in `Annotated[...] | None`), each with its
    discriminator."""
    if field is None:
        return
    yield field.annotation, field.discriminator
    for part in get_args(field.annotation):
        for note in getattr(part, "__metadata__", ()):
            yield part.__origin__, getattr(note, "discriminator", None)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `Pool`, `Pool | None` or `list[Pool]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _model_of(argument)) is not None), None)


def _at_least(number: int, thing: str) -> str:
    return "must not be empty" if number == 1 else f"must have at least {_count(number, thing)}"


def _count(number: int, thing: str) -> str:
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing.removesuffix('y')}ies" if thing.endswith("y") else f"{number} {thing}s"
