"""Commands made from the registry: one for each operation, its flags from the request model.

A field that holds an id takes a name as well. An operation that answers with a task can be waited for. A destructive
one, known by its `confirm` field, asks first, unless `--yes` or the confirmation itself is given.
"""

from __future__ import annotations

import json
import math
import sys
import types
import typing
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import asyncclick as click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from svc.cli import tasks
from svc.cli.failures import Exit, Failure
from svc.cli.naming import COLLECTIONS, resolve
from svc.cli.output import show
from svc.cli.session import Session, narrow, session_options
from svc.registry.operation import Method, Operation, Presentation

AnyOperation = Operation[Any, Any, Any]

COLUMNS = {
    "/vms": ("id", "name", "status", "node_name", "primary_ip", "vcpus", "memory_mib", "disk_gib"),
    "/nodes": ("id", "name", "state", "mode", "location", "seen_at"),
    "/tasks": ("id", "op", "status", "resource_name", "progress", "created_at"),
    "/images": ("id", "slug", "name", "enabled", "size_bytes"),
    "/activity": ("at", "actor", "operation", "target_name", "outcome"),
}


def add_commands(root: click.Group, operations: Iterable[AnyOperation]) -> None:
    for operation in operations:
        if operation.presentation is Presentation.EVENT_STREAM:
            continue
        *groups, name = operation.command.words
        group = root
        for word in groups:
            found = group.commands.get(word)
            if found is None:
                found = click.Group(word, help=f"Commands for {word}.")
                group.add_command(found)
            assert isinstance(found, click.Group)
            group = found
        group.add_command(_command(name, operation))


def _command(name: str, operation: AnyOperation) -> click.Command:
    @click.pass_obj
    async def run(session: Session, /, **given: Any) -> None:
        waits = given.pop("wait", False)
        timeout = given.pop("wait_timeout", None)
        session = narrow(session, given)
        if given.pop("yes", False) and "confirm" in operation.request.model_fields:
            given["_confirmed"] = True
        await _carry_out(session, operation, given, waits, timeout)

    command = click.Command(name, callback=run, help=operation.summary, params=_parameters(operation))
    return session_options(command)


def _parameters(operation: AnyOperation) -> list[click.Parameter]:
    parameters: list[click.Parameter] = []
    fields = operation.request.model_fields
    for field_name in operation.command.positional:
        parameters.append(click.Argument([field_name], required=fields[field_name].is_required()))
    for field_name, field in fields.items():
        if field_name not in operation.command.positional:
            parameters.append(_option(field_name, field))
    if "confirm" in fields:
        parameters.append(click.Option(["--yes", "-y"], is_flag=True, help="Do it without asking."))
    if operation.mutates:
        parameters.append(click.Option(["--wait/--no-wait"], default=False, help="Wait until the task has ended."))
        parameters.append(click.Option(["--wait-timeout"], type=float, metavar="SECONDS", help="Give up waiting then."))
    return parameters


def _option(field_name: str, field: FieldInfo) -> click.Option:
    kind, many = _kind(field.annotation)
    flag = "--" + field_name.replace("_", "-")
    help_text = field.description or (f"A name or an id ({field_name})." if field_name in COLLECTIONS else None)
    if kind is bool:
        return click.Option([f"{flag}/--no-{field_name.replace('_', '-')}", field_name], default=None, help=help_text)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        choice = click.Choice([member.value for member in kind])
        return click.Option([flag, field_name], type=choice, multiple=many, help=help_text)
    if kind in (int, float):
        return click.Option([flag, field_name], type=kind, multiple=many, help=help_text)
    if kind is dict:
        return click.Option([flag, field_name], type=_Json(), metavar="JSON", help=help_text)
    return click.Option([flag, field_name], multiple=many, help=help_text)


class _Json(click.ParamType[Any]):
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)


def _kind(annotation: Any) -> tuple[Any, bool]:
    """What a flag of this annotation takes, and whether it may be repeated. What has members of its own is JSON."""
    origin = typing.get_origin(annotation)
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    if origin in (typing.Union, types.UnionType):
        return _kind(arguments[0]) if len(arguments) == 1 else (str, False)
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin in (list, tuple, set, frozenset):
        inner, _ = _kind(arguments[0]) if arguments else (str, False)
        return (dict, False) if inner is dict else (inner, True)
    if origin is dict or (isinstance(annotation, type) and hasattr(annotation, "model_fields")):
        return dict, False
    return annotation, False


async def _carry_out(
    session: Session, operation: AnyOperation, given: dict[str, Any], waits: bool, timeout: float | None
) -> None:
    confirmed = given.pop("_confirmed", False)
    values = {name: _plain(value) for name, value in given.items() if value is not None and value != ()}
    async with session.client() as client:
        path = operation.route.path
        collection = path.split("/{")[0]
        for name, value in list(values.items()):
            where = COLLECTIONS.get(name) or (
                collection if name == "id" and path.startswith(collection + "/{id}") else None
            )
            if where is not None and isinstance(value, str) and _has_list(where):
                values[name] = await resolve(client, where, value)
        if "confirm" in operation.request.model_fields and "confirm" not in values:
            values["confirm"] = await _confirmation(client, operation, collection, values, given, confirmed)
        _check(operation, values)
        in_path = {name: values.pop(name) for name in list(values) if "{" + name + "}" in path}
        reads = operation.route.method is Method.GET
        answer = await client.call(
            operation.route.method.value,
            path.format(**in_path),
            query=values if reads else None,
            body=None if reads else values,
        )
        if waits and (task_id := task_of(answer)):
            answer = await tasks.wait(client, task_id, timeout=math.inf if timeout is None else timeout)
    show(answer, session.style, columns=COLUMNS.get(path, ()))


def task_of(answer: Any) -> str | None:
    """The task an answer starts: the answer itself, or what it holds as `task` or `task_id`."""
    if not isinstance(answer, dict):
        return None
    if "op" in answer and "progress" in answer:
        return str(answer["id"])
    if isinstance(answer.get("task"), dict):
        return str(answer["task"]["id"])
    return str(answer["task_id"]) if answer.get("task_id") else None


async def _confirmation(
    client: Any,
    operation: AnyOperation,
    collection: str,
    values: dict[str, Any],
    given: dict[str, Any],
    confirmed: bool,
) -> str:
    """The name that the API wants repeated: typed by the person, or filled in for `--yes`."""
    thing = await client.call("GET", f"{collection}/{values['id']}")
    name = str(thing["name"])
    if confirmed:
        return name
    if not sys.stdin.isatty():
        raise Failure(Exit.INVALID, f"{' '.join(operation.command.words)} needs a confirmation", "give --yes")
    typed: str = await click.prompt(
        f"This cannot be undone. Type {name} to go on", err=True, default="", show_default=False
    )
    if typed != name:
        raise Failure(Exit.INVALID, "the name did not match; nothing was done")
    return name


def _check(operation: AnyOperation, values: dict[str, Any]) -> None:
    """Say what is wrong before anything is sent, in the words of the flags."""
    try:
        operation.request.model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "the command"
        raise Failure(Exit.INVALID, f"{where}: {first['msg']}") from None


def _has_list(collection: str) -> bool:
    return collection in COLLECTIONS.values()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
