"""Commands made from the registry: one for each operation, its flags from the request model.

A field that holds an id takes a name as well. A command can wait for the task or job that its operation starts. A
destructive command asks first, unless `--yes` or the confirmation itself is given. A creation that can be repeated
safely sends an idempotency key of its own, so that a lost connection creates nothing twice.
"""

from __future__ import annotations

import math
import re
import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import asyncclick as click

from svc.cli import transfer
from svc.cli.description import Kind, OperationDescription, Parameter
from svc.cli.download import download
from svc.cli.failures import Exit, Failure
from svc.cli.naming import NAME_FIELDS, is_id, pages, resolve
from svc.cli.output import columns, show
from svc.cli.parameters import NONE, flag_of, needs_confirmation, outer_list, parameters
from svc.cli.session import Session, narrow
from svc.cli.shapes import shaped, shortened
from svc.cli.terminal import say
from svc.cli.work import started_by

if TYPE_CHECKING:
    from svc.cli.client import Client

SHOWN_ONCE = ("password", "token", "secret")


class OperationCommand(click.Command):
    """One operation of the registry as a command. Its flags are built only when the command is run or its help is
    shown: building the flags of all operations would take a quarter of the time of a command line."""

    def __init__(self, operation: OperationDescription) -> None:
        @click.pass_obj
        async def run(session: Session, /, **given: Any) -> None:
            session = narrow(session, given)
            try:
                await _carry_out(session, operation, given)
            except Failure as failure:
                raise _in_words_of_flags(failure, operation) from failure

        super().__init__(
            operation.words[-1],
            callback=run,
            help=f"{operation.summary.rstrip('.')}.",
        )
        self._operation = operation
        del self.params  # remove click's own empty attribute: the property below replaces it

    @cached_property
    def params(self) -> list[click.Parameter]:  # type: ignore[override]  # click's is an attribute, as this becomes one
        return parameters(self._operation)


async def _carry_out(session: Session, operation: OperationDescription, given: dict[str, Any]) -> None:
    wait_timeout = given.pop("wait_timeout", None)
    waits = given.pop("wait", False) or wait_timeout is not None
    yes, everything = given.pop("yes", False), given.pop("all_pages", False)
    file, to, found_in = (given.pop(name, None) for name in ("upload_file", "download_to", "found_in"))
    values = {name: _plain(value) for name, value in given.items() if value is not None and value != ()}
    async with session.client() as client:
        await _resolve_names(session, client, operation, values, found_in)
        await _read_secrets(operation, values)
        for parameter in operation.parameters:
            if parameter.listed and parameter.name in values:
                values[parameter.name] = [part for given in values[parameter.name] for part in given.split(",")]
        if needs_confirmation(operation):
            await _confirm(client, operation, values, yes)
        for parameter in operation.parameters:
            if parameter.preset is not None:
                values.setdefault(parameter.name, parameter.preset)
        if operation.parameter("idempotency_key") is not None:
            values.setdefault("idempotency_key", f"svc-{uuid.uuid4()}")
        in_path = {name: values.pop(name) for name in list(values) if "{" + name + "}" in operation.path}
        path = operation.path.format(**in_path)
        if operation.presentation == "file":
            await transfer.download(client, path, values, to)
        elif operation.in_parts:
            await download(client, path, values, to)
        elif everything:
            found = [row async for row in pages(client, path, values)]
            shown = shaped(found) if session.style.for_reading else found
            show(shown, session.style, columns=columns(operation.columns))
        elif operation.method == "GET":
            answer = await client.call("GET", path, query=values)
            shown = shaped(answer) if session.style.for_reading else answer
            show(shown, session.style, columns=columns(operation.columns))
        else:
            if operation.upload:
                answer = await transfer.upload(client, operation.method, path, file)
            else:
                answer = await client.call(operation.method, path, body=values)
            await _report(session, client, operation, answer, waits, wait_timeout)


async def _report(
    session: Session,
    client: Client,
    operation: OperationDescription,
    answer: Any,
    waits: bool,
    wait_timeout: float | None,
) -> None:
    """Print the answer to an order, and wait for the work that the order started. The answer is printed even if the
    work fails or `wait_timeout` passes, since it may contain a secret that is shown only once."""
    work = started_by(answer)
    failure: Failure | None = None
    if waits and work is not None:
        from svc.cli import following

        try:
            ended = await following.follow(client, work, timeout=math.inf if wait_timeout is None else wait_timeout)
            answer = await _brought_up_to_date(client, answer, ended)
            following.check(work, ended)
        except Failure as error:
            failure = error
    if session.style.for_reading and operation.name == "node.bootstrap":
        say(f"Run this as root on the new host, before {answer['expires_at'][:16].replace('T', ' ')} UTC:\n")
        show(answer["command"], session.style)
        return
    show(shortened(answer) if session.style.for_reading else answer, session.style)
    if isinstance(answer, Mapping):
        for name in SHOWN_ONCE:
            if answer.get(name):
                say(f"This {name} is shown only now: save it.", style="yellow")
    if failure is not None:
        raise failure
    if work is not None and not waits and sys.stderr.isatty():
        say(f"follow it with `svc {work.kind.noun} watch {work.id}`", style="dim")


async def _brought_up_to_date(client: Client, answer: Any, ended: dict[str, Any]) -> Any:
    if "progress" in answer:
        return ended
    changed = dict(answer)
    if isinstance(answer.get("task"), Mapping):
        changed["task"] = ended
    if isinstance(answer.get("vm"), Mapping):
        changed["vm"] = await client.call("GET", f"/vms/{answer['vm']['id']}")
    return changed


async def _resolve_names(
    session: Session,
    client: Client,
    operation: OperationDescription,
    values: dict[str, Any],
    found_in: str | None,
) -> None:
    for parameter in operation.parameters:
        given = values.get(parameter.name)
        if given is None:
            continue
        if parameter.names is None:
            if parameter.kind is Kind.ID and parameter.name == "id" and not is_id(given):
                values["id"] = await _found_inside(session, client, operation, given, found_in)
            continue
        listing = session.listing(parameter.names)
        # The list is nested in another resource, as `/sites/{id}/sftp` is. The name of that resource was resolved to
        # its id before.
        listing = replace(listing, path=listing.path.format(**values))
        if isinstance(given, list):
            values[parameter.name] = [await resolve(client, listing, one) for one in given]
        else:
            values[parameter.name] = await resolve(client, listing, given)


async def _found_inside(
    session: Session, client: Client, operation: OperationDescription, given: str, found_in: str | None
) -> str:
    """The id of an entry of a nested list, such as a schedule of a site. The user must also name the resource that
    contains the list."""
    if operation.inner_list is None:
        raise Failure(Exit.INVALID, f"{given!r} is not an id, and names are not accepted here")
    listing, outer = session.listing(operation.inner_list), outer_list(operation.inner_list)
    if found_in is None:
        thing = outer.strip("/").removesuffix("s")
        hint = f"say which with --{thing}; `svc {' '.join(listing.words)} {thing.upper()}` shows them"
        raise Failure(Exit.INVALID, f"{given!r} is not an id, and its name is only unique within its {thing}", hint)
    owner = await resolve(client, session.listing(outer), found_in)
    # Resources without a name are identified by the first column of their list, for example a redirect by its path.
    names = (*NAME_FIELDS, *listing.columns[:1])
    return await resolve(client, replace(listing, path=listing.path.format(id=owner)), given, names)


async def _read_secrets(operation: OperationDescription, values: dict[str, Any]) -> None:
    """Replace each `-` by a secret: typed without echo at a terminal, or else read from standard input (the next line,
    or all of it for a document). A required secret that was not given is asked for."""
    for parameter in operation.parameters:
        given = values.get(parameter.name)
        if parameter.secret and (given == "-" or (given is None and parameter.required)):
            values[parameter.name] = await _secret(parameter)


async def _secret(parameter: Parameter) -> str | dict[str, str | None]:
    if parameter.document:
        return _pairs(parameter) if parameter.kind is Kind.PAIRS else _document(parameter)
    if sys.stdin.isatty():
        asked = parameter.name.replace("_", " ").capitalize()
        typed: str = await click.prompt(asked, hide_input=True, confirmation_prompt=True, err=True)
        return typed
    line = sys.stdin.readline()
    if not line:
        raise Failure(Exit.INVALID, f"{flag_of(parameter)}: nothing on standard input")
    return line.rstrip("\r\n")


def _pairs(parameter: Parameter) -> dict[str, str | None]:
    """One NAME=VALUE a line; a NAME alone is null. Blank lines and lines that start with # are skipped."""
    lines = [line for line in _document(parameter).splitlines() if line.strip() and not line.startswith("#")]
    return {name: value if equals else None for name, equals, value in (line.partition("=") for line in lines)}


def _document(parameter: Parameter) -> str:
    text = sys.stdin.read()
    if not text:
        raise Failure(Exit.INVALID, f"{flag_of(parameter)}: nothing on standard input")
    return text


async def _confirm(client: Client, operation: OperationDescription, values: dict[str, Any], yes: bool) -> None:
    """Ask the user to confirm, and add the confirmation to `values` in the form that the API expects."""
    parameter = operation.parameter("confirm")
    if parameter is not None and parameter.name in values:
        return
    what = " ".join(operation.words)
    if parameter is None or parameter.kind is Kind.BOOLEAN:
        if not yes:
            _need_terminal(what)
            if not click.confirm(f"{what}: continue?", err=True):
                raise Failure(Exit.INVALID, "nothing was done")
        if parameter is not None:
            values[parameter.name] = True
        return
    thing = await client.call("GET", f"{operation.list_path}/{values['id']}")
    name = next(str(thing[field]) for field in NAME_FIELDS if thing.get(field))
    if not yes:
        _need_terminal(what)
        typed = await click.prompt(f"{what}: type {name} to continue", err=True, default="", show_default=False)
        if typed != name:
            raise Failure(Exit.INVALID, "that is not its name; nothing was done")
    values[parameter.name] = name


def _need_terminal(what: str) -> None:
    if not sys.stdin.isatty():
        raise Failure(Exit.INVALID, f"{what} needs a confirmation; nothing was done", "give --yes")


def _in_words_of_flags(failure: Failure, operation: OperationDescription) -> Failure:
    """The refusal with the flags that the user typed in place of the names of the request's fields."""
    hint = _flags_for_fields(failure.hint, operation) if failure.hint else None
    problems: list[str] = []
    for field, problem in failure.fields.items():
        name, _, rest = field.partition(".")
        parameter = operation.parameter(name)
        if parameter is None:
            return failure
        flag = name.upper() if name in operation.positional else flag_of(parameter)
        problems.append(f"{flag}{'.' + rest if rest else ''}: {problem}")
    message = "\n     ".join(problems) or failure.message
    return Failure(Exit(failure.exit_code), message, hint, request_id=failure.request_id)


def _flags_for_fields(text: str, operation: OperationDescription) -> str:
    for parameter in operation.parameters:
        if parameter.kind is Kind.BOOLEAN:
            text = re.sub(rf"\b{parameter.name}: true\b", flag_of(parameter), text)
        if "_" in parameter.name:
            text = re.sub(rf"(?<![-\w]){parameter.name}\b", flag_of(parameter), text)
    return text


def _plain(value: Any) -> Any:
    if value is NONE:
        return None
    return [one for one in value if one is not NONE] if isinstance(value, tuple) else value
