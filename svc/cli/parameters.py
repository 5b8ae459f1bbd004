"""The flags of a generated command, from the description of its operation.

A field `image_id` becomes the flag `--image` (or `--image-id`), which takes an id or a name. If the request also has a
field `image` for the name, that field gets no flag of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import asyncclick as click
from asyncclick.shell_completion import CompletionItem

from svc.cli.description import Kind, OperationDescription, Parameter
from svc.cli.failures import Failure
from svc.cli.naming import NAME_FIELDS
from svc.cli.profiles import Choice, choose, tls_context
from svc.cli.session import Session, session_parameters

_COMPLETION_SECONDS = 2.0


def parameters(operation: OperationDescription) -> list[click.Parameter]:
    made: list[click.Parameter] = []
    for name in operation.positional:
        parameter = operation.parameter(name)
        assert parameter is not None, f"{operation.name} has no field {name}"
        made.append(
            click.Argument(
                [name],
                required=parameter.required,
                type=_type(parameter),
                nargs=-1 if parameter.many else 1,
                metavar=None if parameter.choices else _place(parameter),
            )
        )
    if operation.upload:
        made.append(click.Argument(["upload_file"], metavar="FILE", type=click.Path(exists=True, path_type=Path)))
    options = [
        option(parameter)
        for parameter in operation.parameters
        if parameter.name not in operation.positional and not _needs_no_flag(operation, parameter)
    ]
    options += _further(operation)
    taken = {flag for option in options for flag in option.opts}
    return [*made, *options, *session_parameters(taken)]


def _place(parameter: Parameter) -> str:
    """How the usage line shows a positional argument, as click does by default: in brackets if it is optional."""
    name = metavar(parameter)
    return (name if parameter.required else f"[{name}]") + ("..." if parameter.many else "")


def option(parameter: Parameter) -> click.Option:
    flags = _flags(parameter)
    required = parameter.required and not parameter.secret and parameter.name != "confirm"
    if parameter.kind is Kind.BOOLEAN:
        flag = flags[0]
        return click.Option(
            [f"{flag}/--no-{flag[2:]}", parameter.name], default=None, required=required, help=_help(parameter)
        )
    return click.Option(
        [*flags, parameter.name],
        type=_type(parameter),
        multiple=parameter.many,
        required=required,
        metavar=None if parameter.choices else metavar(parameter),
        help=_help(parameter),
    )


def outer_list(inner: str) -> str:
    """The list of the resources that contain a nested list: `/sites` for `/sites/{id}/domains`."""
    return inner.partition("/{")[0]


def needs_confirmation(operation: OperationDescription) -> bool:
    """Whether the command cannot be undone, and so asks for confirmation unless `--yes` is given."""
    return operation.method == "DELETE" or operation.parameter("confirm") is not None or operation.confirm


def flag_of(parameter: Parameter) -> str:
    return _flags(parameter)[0]


def _flags(parameter: Parameter) -> list[str]:
    """The flags of a parameter: the short form first, then the field's full name if it differs."""
    own = "--" + parameter.name.replace("_", "-")
    if parameter.kind is not Kind.ID:
        return [own]
    friendly = own.removesuffix("-ids").removesuffix("-id")
    return [own] if friendly in (own, "--") else [friendly, own]


def _needs_no_flag(operation: OperationDescription, parameter: Parameter) -> bool:
    """Whether a field needs no flag, because the flag of its id field is used for both, because the path sets it (and
    takes precedence over the body), or because the code that downloads a file in parts sets it."""
    by_path = parameter.name == "site_id" and (operation.path.startswith("/sites/{id}") or operation.inner_list)
    by_part = operation.in_parts and parameter.name in ("offset", "limit", "version")
    return bool(by_path) or by_part or operation.parameter(f"{parameter.name}_id") is not None


def metavar(parameter: Parameter) -> str:
    if parameter.names is not None and parameter.name == "id":
        return parameter.names.rpartition("/")[2].rstrip("s").upper()
    if parameter.names is not None:
        return parameter.name.removesuffix("_ids").removesuffix("_id").upper()
    if parameter.kind is Kind.TEXT:
        return parameter.name.upper() if not parameter.secret or parameter.document else "SECRET"
    words = {Kind.INTEGER: "N", Kind.NUMBER: "X", Kind.JSON: "JSON", Kind.PAIRS: "NAME=VALUE,..."}
    return words.get(parameter.kind, parameter.name.upper())


def _help(parameter: Parameter) -> str | None:
    said = [parameter.help.rstrip(".") + "."] if parameter.help else []
    if parameter.names is not None:
        said.append("Its name or id.")
    if parameter.document:
        said.append("`-` reads it from standard input.")
    elif parameter.secret:
        said.append("`-` asks for it, or reads it from standard input.")
    if parameter.many:
        said.append("Several with commas." if parameter.listed else "May be repeated.")
    if parameter.emptiable or parameter.kind is Kind.PAIRS:
        said.append("`none` clears it.")
    if parameter.default:
        said.append(f"[default: {parameter.default}]")
    return " ".join(said) or None


def _further(operation: OperationDescription) -> list[click.Option]:
    """The flags that the command line adds itself."""
    options: list[click.Option] = []
    if operation.inner_list is not None:
        outer = outer_list(operation.inner_list)
        thing = outer.strip("/").removesuffix("s")
        said = f"The {thing} it belongs to, by name or id; its own name is then accepted as well."
        options.append(click.Option([f"--{thing}", "found_in"], type=Name(outer), metavar=thing.upper(), help=said))
    if operation.paged:
        options.append(click.Option(["--all", "all_pages"], is_flag=True, help="Every page."))
    if operation.in_parts:
        options.append(
            click.Option(
                ["-o", "--to", "download_to"],
                type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
                metavar="FILE",
                help="File to write; `-` is standard output. By default its own name in the current folder.",
            )
        )
    if operation.presentation == "file":
        where = click.Path(dir_okay=False, path_type=Path)
        options.append(click.Option(["--to", "download_to"], type=where, metavar="FILE", help="File to write."))
    if needs_confirmation(operation):
        options.append(click.Option(["--yes", "-y"], is_flag=True, help="Do not ask for confirmation."))
    if operation.starts_work:
        options.append(click.Option(["--wait", "-w"], is_flag=True, help="Wait until it has ended."))
        options.append(
            click.Option(
                ["--wait-timeout"],
                type=click.FloatRange(min=0),
                metavar="SECONDS",
                help="Wait no longer than this; the work continues.",
            )
        )
    return options


def _type(parameter: Parameter) -> click.ParamType[Any]:
    return OrNone(_type_of_one(parameter)) if parameter.emptiable else _type_of_one(parameter)


def _type_of_one(parameter: Parameter) -> click.ParamType[Any]:
    if parameter.choices:
        return _Number(parameter.choices) if parameter.kind is Kind.INTEGER else click.Choice(parameter.choices)
    if parameter.names is not None:
        return Name(parameter.names)
    if parameter.kind is Kind.INTEGER:
        return click.INT
    if parameter.kind is Kind.NUMBER:
        return click.FLOAT
    if parameter.kind is Kind.PAIRS:
        return _Pairs()
    return _Json() if parameter.kind is Kind.JSON else click.STRING


class Name(click.ParamType[str]):
    """The name or id of an entry of a list. For shell completion the service is asked, with a short timeout."""

    name = "name"

    def __init__(self, path: str) -> None:
        self._path = path

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        import httpx

        if "{" in self._path:
            return []  # the list is nested in another resource, whose name would have to be looked up first
        given = ctx.find_root().params | ctx.params
        session: Session = ctx.find_root().obj
        # Only the first page of matches is read: reading all of a long list would take too long.
        query: dict[str, str | int] = {"page_size": 200, "q": incomplete} if session.listing(self._path).paged else {}
        try:
            profile = choose(Choice(given.get("session_profile"), given.get("session_url"), given.get("session_token")))
            answer = httpx.get(
                f"{profile.url}/api/v1{self._path}",
                params=query,
                headers={"Authorization": f"Bearer {profile.token}"},
                verify=tls_context(profile),
                timeout=_COMPLETION_SECONDS,
            ).json()
        except (httpx.HTTPError, ValueError, Failure, OSError):
            return []  # an error cannot be shown: the shell is in the middle of the user's line
        rows = answer.get("items", []) if isinstance(answer, dict) else answer
        names = [next((str(row[name]) for name in ("slug", *NAME_FIELDS) if row.get(name)), None) for row in rows]
        return [CompletionItem(name) for name in names if name is not None and name.startswith(incomplete)]


NONE: Final = object()
"""The value for the word `none`."""


class OrNone(click.ParamType[Any]):
    """A value, or the word `none`. A resource named `none` must be given by its id."""

    def __init__(self, inner: click.ParamType[Any]) -> None:
        self._inner = inner
        self.name = inner.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NONE if value == "none" else self._inner.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        return self._inner.shell_complete(ctx, param, incomplete)


class _Number(click.Choice[str]):
    """One of a few whole numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return int(super().convert(str(value), param, ctx))


class _Pairs(click.ParamType[dict[str, str]]):
    name = "pairs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-":
            return value
        pairs = [pair.partition("=") for pair in value.split(",")] if value != "none" else []
        if not all(name and equals for name, equals, _ in pairs):
            self.fail("not NAME=VALUE, with commas between several", param, ctx)
        return {name: text for name, _, text in pairs}


class _Json(click.ParamType[Any]):
    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
