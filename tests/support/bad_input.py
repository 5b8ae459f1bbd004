"""Every text of an operation's request in turn replaced by one that nobody means: made from the request's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from svc.registry.operation import Operation
from svc.registry.parameters import path_parameters
from tests.support.request_bodies import IdOf, request_body, schema_of

TEXTS: Mapping[str, str] = {
    "option": "-oProxyCommand=id",
    "line breaks": "a\r\nX-Owned: 1\nroot:x:0:0::/:/bin/sh",
    "NUL": "a\x00b",
    "quotes": "a'\"`\\;--",
    "shell": "$(touch /tmp/owned)|`id`;&",
    "parents": "../../../../etc/passwd",
    "absolute": "/etc/shadow",
    "lone surrogate": "a\ud800b",
    "right to left": "a\u202egpj.exe",
    "homoglyph": "\u0430dmin\u0456stration.example",
    "control": "\x1b]0;owned\x07\x7f",
    "format": "%s%n{0.__class__}{{7*7}}",
    "nothing": "",
    "too long": "a" * 900_000,
}
"""By what is wrong with each."""

Schema = Mapping[str, Any]


def bad_bodies(operation: Operation[Any, Any, Any], id_of: IdOf, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of a text and the body in which `text` stands for it; everything else is as the model wants it."""
    schema = schema_of(operation.request)
    models = schema.get("$defs", {})
    good = request_body(operation, id_of)
    in_path = path_parameters(operation.route.path)
    for name, member in schema.get("properties", {}).items():
        if name not in in_path:
            for place, value in _bad(member, models, name, text):
                yield place, good | {name: value}


def _bad(schema: Schema, models: Schema, place: str, text: str) -> Iterator[tuple[str, Any]]:
    if "$ref" in schema:
        yield from _bad(models[schema["$ref"].rpartition("/")[2]], models, place, text)
        return
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _bad(choice, models, place, text)
    match schema.get("type"):
        case "string":
            yield place, text
        case "array":
            for below, value in _bad(schema.get("items", {}), models, f"{place}[]", text):
                yield below, [value]
        case "object":
            yield from _bad_object(schema, models, place, text)


def _bad_object(schema: Schema, models: Schema, place: str, text: str) -> Iterator[tuple[str, Any]]:
    members = schema.get("properties", {})
    good = {
        name: _good(member, models)
        for name, member in members.items()
        if name in schema.get("required", ()) or "const" in member
    }
    for name, member in members.items():
        if "const" not in member:
            for below, value in _bad(member, models, f"{place}.{name}", text):
                yield below, good | {name: value}
    if isinstance(free := schema.get("additionalProperties"), dict):
        yield f"{place} (name)", {text: _good(free, models)}
        for below, value in _bad(free, models, f"{place}.*", text):
            yield below, {"A": value}


def _good(schema: Schema, models: Schema) -> Any:
    if "$ref" in schema:
        return _good(models[schema["$ref"].rpartition("/")[2]], models)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _good(schema[choice][0], models)
    match schema.get("type"):
        case "integer" | "number":
            return max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case "array":
            return [_good(schema["items"], models)]
        case "object":
            return {name: _good(schema["properties"][name], models) for name in schema.get("required", ())}
        case _:
            return {"ipv4": "203.0.113.9", "ipv6": "2001:db8::9"}.get(schema.get("format", ""), "www.example.net")
