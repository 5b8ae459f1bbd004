"""The OpenAPI 3.1 document of a registry. Generating it needs no server, and the same registry gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from svc.registry.operation import Model, Presentation, ServicesT
from svc.registry.parameters import path_parameters
from svc.registry.principal import Access
from svc.registry.realm import Failures
from svc.registry.registry import Entry, Registry
from svc.registry.scopes import ScopePolicy
from svc_common.errors import ErrorCode

JsonObject = dict[str, Any]

_REF = "#/components/schemas/{model}"
_CONTENT_TYPES = {
    Presentation.SHELL_SCRIPT: "text/x-shellscript",
    Presentation.EVENT_STREAM: "text/event-stream",
    Presentation.FILE: "application/octet-stream",
}


def document(registry: Registry[ServicesT]) -> JsonObject:
    """The OpenAPI document, as a JSON object. Paths are relative to its one server, `/api/v1`."""
    entries, realm = list(registry.entries()), registry.realm
    codes = _codes_by_status(realm.failures)
    schemas, definitions = _schemas(entries, realm.failures.envelope)
    paths: dict[str, JsonObject] = {}
    for entry in entries:
        route = entry.operation.route
        paths.setdefault(route.path, {})[route.method.value.lower()] = _operation(
            entry, realm.scopes, codes, schemas, definitions
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": realm.title, "version": version("svc")},
        "servers": [{"url": "/api/v1"}],
        "paths": {path: paths[path] for path in sorted(paths)},
        "components": {
            "schemas": {name: definitions[name] for name in sorted(definitions)},
            "responses": {_response_name(status): _failure(named, realm.failures) for status, named in codes.items()},
            "securitySchemes": {
                "session": {"type": "apiKey", "in": "cookie", "name": realm.session_cookie},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    }


_Key = tuple[str, JsonSchemaMode]


def _schemas(
    entries: Iterable[Entry[Any]], envelope: type[Model]
) -> tuple[dict[_Key, JsonObject], dict[str, JsonObject]]:
    """The schemas of all operations, and the definitions that these refer to. All models are passed to pydantic
    together, so that a name stands for one schema in the whole document."""
    inputs: list[tuple[_Key, JsonSchemaMode, TypeAdapter[Any]]] = [
        (("", "serialization"), "serialization", TypeAdapter(envelope))
    ]
    for entry in entries:
        name = entry.operation.name
        inputs.append(((name, "validation"), "validation", TypeAdapter(entry.operation.request)))
        if entry.response is not None:
            inputs.append(((name, "serialization"), "serialization", entry.response))
    keyed = [(key, mode, adapter) for key, mode, adapter in inputs]
    made, top = TypeAdapter.json_schemas(keyed, ref_template=_REF)
    definitions = dict(top.get("$defs", {}))
    schemas = {key: dict(schema) for (key, _), schema in made.items()}
    return _renamed(schemas, definitions)


def _renamed(
    schemas: dict[_Key, JsonObject], definitions: dict[str, JsonObject]
) -> tuple[dict[_Key, JsonObject], dict[str, JsonObject]]:
    """Rename generic models: `Page_Vm_` becomes `PageOfVm`."""
    names = {name: re.sub(r"^(\w+?)_(\w+)_$", r"\1Of\2", name) for name in definitions}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: _ref(item) if key == "$ref" else walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    def _ref(target: str) -> str:
        prefix = _REF.format(model="")
        return prefix + names[target.removeprefix(prefix)]

    return (
        {key: walk(schema) for key, schema in schemas.items()},
        {names[name]: walk(schema) for name, schema in definitions.items()},
    )


def _operation(
    entry: Entry[Any],
    scopes: ScopePolicy,
    statuses: Iterable[int],
    schemas: dict[_Key, JsonObject],
    definitions: dict[str, JsonObject],
) -> JsonObject:
    operation = entry.operation
    request = _resolved(schemas[(operation.name, "validation")], definitions)
    described: JsonObject = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.subject],
        "x-role": operation.access.value,
    }
    parameters = [_parameter(name, "path", request) for name in path_parameters(operation.route.path)]
    if entry.reader.in_query:
        parameters += [_parameter(name, "query", request) for name in entry.reader.others]
    elif operation.upload:
        content = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
        described["requestBody"] = {"required": True, "content": content}
    elif entry.reader.others:
        described["requestBody"] = _body(entry, request)
    if parameters:
        described["parameters"] = parameters
    described["responses"] = _responses(entry, statuses, schemas)
    if operation.access is Access.PUBLIC:
        described["security"] = []
    else:
        described["security"] = [{"session": []}, {"token": []}]
        described["description"] = (
            f"Role: {operation.access.value.replace('_', ' ')}. Scope of a token: {scopes.narrowest(operation)}."
        )
    return described


def _resolved(schema: JsonObject, definitions: dict[str, JsonObject]) -> JsonObject:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    return definitions[str(reference).rpartition("/")[2]]


def _parameter(name: str, place: str, request: JsonObject) -> JsonObject:
    schema = dict(request["properties"][name])
    schema.pop("title", None)
    if place == "query":
        schema = _without_null(schema)
    described: JsonObject = {"name": name, "in": place}
    if text := schema.pop("description", None):
        described["description"] = text
    described["required"] = place == "path" or name in request.get("required", [])
    described["schema"] = schema
    if schema.get("type") == "array":
        described["explode"] = True
    return described


def _without_null(schema: JsonObject) -> JsonObject:
    """The schema without null: a parameter without a value is left out of the query, and the text `null` is no valid
    value."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    if schema.get("default") is not None:
        rest["default"] = schema["default"]
    if not choices:
        return rest if "anyOf" in schema else {**schema, **rest}
    return {**rest, **choices[0]} if len(choices) == 1 else {**rest, "anyOf": choices}


def _body(entry: Entry[Any], request: JsonObject) -> JsonObject:
    required = [name for name in request.get("required", []) if name in entry.reader.others]
    schema: JsonObject = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: request["properties"][name] for name in entry.reader.others},
    }
    if required:
        schema["required"] = required
    return {"required": bool(required), "content": {"application/json": {"schema": schema}}}


def _responses(entry: Entry[Any], statuses: Iterable[int], schemas: dict[_Key, JsonObject]) -> JsonObject:
    operation = entry.operation
    responses: JsonObject = {}
    if operation.presentation is Presentation.REDIRECT:
        responses["303"] = {"description": "Go there.", "headers": {"Location": {"schema": {"type": "string"}}}}
    else:
        for status in sorted({entry.status, *operation.statuses}):
            success: JsonObject = {"description": operation.summary}
            if operation.presentation in _CONTENT_TYPES:
                success["content"] = {_CONTENT_TYPES[operation.presentation]: {"schema": {"type": "string"}}}
            elif entry.response is not None:
                schema = schemas[(operation.name, "serialization")]
                success["content"] = {"application/json": {"schema": schema}}
            responses[str(status)] = success
    for status in statuses:
        responses[str(status)] = {"$ref": f"#/components/responses/{_response_name(status)}"}
    return responses


def _codes_by_status(failures: Failures) -> dict[int, list[ErrorCode]]:
    by_status: dict[int, list[ErrorCode]] = {}
    for code, status in failures.statuses.items():
        by_status.setdefault(status, []).append(code)
    return dict(sorted(by_status.items()))


def _response_name(status: int) -> str:
    return f"Failure{status}"


def _failure(codes: list[ErrorCode], failures: Failures) -> JsonObject:
    return {
        "description": ", ".join(code.value for code in codes),
        "content": {"application/json": {"schema": {"$ref": _REF.format(model=failures.envelope.__name__)}}},
    }
