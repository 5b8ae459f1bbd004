"""What a request can say: no command, no text without bounds, nothing that the model does not name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from svc.panel.catalogue import panel_registry

PARSED = frozenset({"uuid", "date-time", "ipv4", "ipv6"})
"""Formats of texts that the model reads into a value of another type."""
COMMAND_FIELDS = frozenset({"command", "cmd", "shell", "script", "args", "argv", "exec"})
Place = tuple[str, ...]


def texts(schema: Mapping[str, Any], models: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every text below a JSON schema with where it is, names of free members too."""
    if "$ref" in schema:
        yield from texts(models[schema["$ref"].rpartition("/")[2]], models, place)
        return
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from texts(choice, models, place)
    if schema.get("type") == "string":
        yield place, schema
    for name, member in schema.get("properties", {}).items():
        yield from texts(member, models, (*place, name))
    if isinstance(items := schema.get("items"), dict):
        yield from texts(items, models, (*place, "[]"))
    for member in schema.get("prefixItems", ()):
        yield from texts(member, models, (*place, "[]"))
    free = schema.get("additionalProperties")
    if isinstance(free, dict):
        yield from texts(free, models, (*place, "*"))
        yield (*place, "name of *"), {"type": "string", **schema.get("propertyNames", {})}


def is_bounded(text: Mapping[str, Any]) -> bool:
    if "enum" in text or "const" in text or text.get("format") in PARSED:
        return True
    if text.get("format") == "password":
        return "maxLength" in text  # Read by a parser of its own, and never shown.
    return "pattern" in text and "maxLength" in text


def all_texts() -> Iterator[tuple[str, Place, Any]]:
    for operation in panel_registry():
        schema = operation.request.model_json_schema()
        for place, text in texts(schema, schema.get("$defs", {})):
            yield operation.name, place, text


def test_every_text_has_a_pattern_or_a_choice_and_a_length() -> None:
    without = [(name, place) for name, place, text in all_texts() if not is_bounded(text)]

    assert without == []


def test_no_field_takes_a_command() -> None:
    """The arguments of a scheduled task stand alone: a list, below an interpreter of a closed choice."""
    named = {(name, place) for name, place, _ in all_texts() if COMMAND_FIELDS & set(place)}

    assert {(name, place) for name, place in named if not name.startswith("schedule.")} == set()
    assert {place for _, place in named} <= {("args", "[]")}


def test_no_number_and_no_list_is_without_bounds() -> None:
    """A list as long as the body allows, or a number past what the database holds, is refused by its model."""
    without = []
    for operation in panel_registry():
        schema = operation.request.model_json_schema()
        for place, bound in unbounded(schema, schema.get("$defs", {})):
            without.append((operation.name, place, bound))

    assert without == []


def unbounded(schema: Mapping[str, Any], models: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, str]]:
    if "$ref" in schema:
        yield from unbounded(models[schema["$ref"].rpartition("/")[2]], models, place)
        return
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from unbounded(choice, models, place)
    match schema.get("type"):
        case "array" if "maxItems" not in schema:
            yield place, "maxItems"
        case "integer" | "number" if not {"maximum", "exclusiveMaximum"} & schema.keys() and "enum" not in schema:
            yield place, "maximum"
    if isinstance(items := schema.get("items"), dict):
        yield from unbounded(items, models, (*place, "[]"))
    for name, member in schema.get("properties", {}).items():
        yield from unbounded(member, models, (*place, name))
