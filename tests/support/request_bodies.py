"""A request that an operation's model takes, worked out from the model: for tests that call every operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from hypothesis import find, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from svc.registry.operation import Operation
from svc.registry.parameters import path_parameters

_PLAIN = (
    "a",
    "a-name",
    "new.example",
    "somebody@example.net",
    "https://receiver.example/hook",
    "/old",
    "folder/file.txt",
    "0644",
    "644",
    "a" * 64,
    "203.0.113.9",
    "Correct-Horse-42",
    "123456",
    "QUFB",
    "5.0",
    "ssh-ed25519 0",
    "http://0",
    "s0_0",
    "0.php",
)
"""Texts that read well in a failure; a pattern that none of them fits is searched for one that does, which takes each
process of the tests half a second."""

IdOf = Callable[[str], str | None]
"""An object's id by the name of a field, as `site_id`; None where the test has none of that kind."""


_schemas: dict[type[BaseModel], Mapping[str, Any]] = {}


def schema_of(model: type[BaseModel]) -> Mapping[str, Any]:
    """Its JSON schema, made once a process: some tests ask for that of every operation, time and again."""
    if model not in _schemas:
        _schemas[model] = model.model_json_schema()
    return _schemas[model]


def request_body(operation: Operation[Any, Any, Any], id_of: IdOf) -> dict[str, Any]:
    """The fields that have to be given, beside those of the path; those for an id also where it may be left out."""
    schema = schema_of(operation.request)
    in_path = path_parameters(operation.route.path)
    body = {}
    for name, member in schema.get("properties", {}).items():
        if name in in_path:
            continue
        if name in schema.get("required", ()) or (_is_id(member) and id_of(name) is not None):
            body[name] = _value(member, schema.get("$defs", {}), name, id_of)
    return body


def _is_id(schema: Mapping[str, Any]) -> bool:
    return any(choice.get("format") == "uuid" for choice in (schema, *schema.get("anyOf", ())))


def _value(schema: Mapping[str, Any], models: Mapping[str, Any], name: str, id_of: IdOf) -> Any:
    if "$ref" in schema:
        return _value(models[schema["$ref"].rpartition("/")[2]], models, name, id_of)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _value(schema[choice][0], models, name, id_of)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer" | "number":
            return max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case "array":
            several = max(1, schema.get("minItems", 0))
            return [_value(schema["items"], models, name, id_of) for _ in range(several)]
        case "object":
            members = schema.get("properties", {})
            return {each: _value(members[each], models, each, id_of) for each in schema.get("required", ())}
        case "string":
            return _text(schema, name, id_of)
    return None


def _text(schema: Mapping[str, Any], name: str, id_of: IdOf) -> str:
    match schema.get("format"):
        case "uuid":
            return id_of(name) or "00000000-0000-4000-8000-000000000000"
        case "ipv4":
            return "203.0.113.9"
        case "ipv6":
            return "2001:db8::9"
        case "date-time":
            return "2026-11-22T12:00:00Z"
    return fitting(schema.get("pattern", ".+"), schema.get("minLength", 1), schema.get("maxLength", 1000))


@cache
def fitting(pattern: str, shortest: int, longest: int) -> str:
    """A text that fits, the same each time."""
    for text in _PLAIN:
        if re.search(pattern, text) and shortest <= len(text) <= longest:
            return text
    fits = st.from_regex(pattern, fullmatch=True).filter(lambda text: shortest <= len(text) <= longest)
    return find(fits, lambda text: True, settings=settings(database=None, derandomize=True))
