"""What the command line knows of the registry: plain data, so that a client command need not load the service itself.

Loading every model of the controller takes longer than most calls. So the description is derived from the registry and
cached in the user's cache folder; it is derived again when any source of the service has changed. Commands are declared
nowhere else.

Why: docs/decisions/0019-command-line.md.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from svc.cli.services import ServiceKind, registry_of
from svc.cli.work import starts_work

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from svc.registry.operation import Operation

PACKAGES = ("svc", "svc_actors", "svc_common", "svc_nodeagent", "svc_webhost")
"""The packages that the registries are loaded from. If any of their sources changes, the cached description is
outdated.
"""
_FORMAT = 10
_LISTED = {"scopes"}
"""Fields whose list is typed as one word separated by commas, as the panel's specification requires."""
_SECRETS = {"password", "set_password", "token"}
_DOCUMENTS = {"private_key", "user_data"}
"""Fields with a secret of several lines."""


class Kind(StrEnum):
    """The kind of value that a parameter takes on the command line. ID: an id, or a name if `names` says in which list
    to look for it. PAIRS: texts by name, as NAME=VALUE separated by commas."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    JSON = "json"
    PAIRS = "pairs"
    ID = "id"


@dataclass(frozen=True)
class Parameter:
    """`names` is the path of the list in which a name is looked up. A `secret` value is neither shown nor stored; a
    `document` is read from all of standard input rather than its next line. `listed`: one word may hold several values,
    separated by commas. `emptiable`: an empty list or null removes the stored value. `preset`: sent if it is left out.
    """

    name: str
    kind: Kind
    many: bool
    listed: bool
    required: bool
    choices: tuple[str, ...]
    secret: bool
    document: bool
    emptiable: bool
    names: str | None
    default: str | None
    preset: bool | None
    help: str | None


@dataclass(frozen=True)
class OperationDescription:
    """One operation. `list_path` is the list that contains the operation's target, `/vms` for `/vms/{id}/start`;
    `inner_list` is the nested list of a target that belongs to another resource, `/sites/{id}/domains` for
    `/domains/{id}`. `starts_work`: the answer is a task or a job, or names one that was started. `in_parts`: the answer
    is one part of a file. `columns`, `confirm`, `hidden` and `about`: see `svc.registry.operation.Command`."""

    name: str
    summary: str
    method: str
    path: str
    words: tuple[str, ...]
    positional: tuple[str, ...]
    columns: tuple[str, ...]
    confirm: bool
    hidden: bool
    about: str | None
    parameters: tuple[Parameter, ...]
    access: str
    scope: str
    mutates: bool
    presentation: str
    upload: bool
    paged: bool
    starts_work: bool
    in_parts: bool
    list_path: str | None
    inner_list: str | None

    def parameter(self, name: str) -> Parameter | None:
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


@dataclass(frozen=True)
class Service:
    """The description of every operation of one service."""

    operations: tuple[OperationDescription, ...]

    def list_at(self, path: str) -> OperationDescription | None:
        return next((found for found in self.operations if found.method == "GET" and found.path == path), None)


def service(environment: Mapping[str, str], kind: ServiceKind = ServiceKind.CONTROLLER) -> Service:
    """The description: from the cache if it matches these sources, else from the registry."""
    cached = _cache_path(environment, kind)
    sources = _fingerprint()
    known = _read(cached, sources)
    if known is None:
        known = describe(registry_of(kind))
        _write(cached, sources, known)
    return known


def describe(operations: Iterable[Operation[Any, Any, Any]]) -> Service:
    operations = tuple(operations)
    lists = {operation.route.path for operation in operations if operation.route.method.value == "GET"}
    things = {
        operation.name.removesuffix(".list"): operation.route.path
        for operation in operations
        if operation.name.endswith(".list")
    }
    return Service(tuple(_described(operation, lists, things) for operation in operations))


def _described(operation: Operation[Any, Any, Any], lists: set[str], things: dict[str, str]) -> OperationDescription:
    path = operation.route.path
    before = path.partition("/{")[0]
    list_path = before if before in lists else None
    fields = operation.request.model_fields
    changes = operation.route.method.value in {"PUT", "PATCH"}

    def names(field_name: str) -> str | None:
        if field_name == "id":
            return list_path
        own = things.get(operation.name.rpartition(".")[0])
        if own is not None and path.startswith(f"{own}/{{{field_name}}}"):
            return own
        return _list_of(field_name.removesuffix("_ids").removesuffix("_id"), things)

    return OperationDescription(
        name=operation.name,
        summary=operation.summary,
        method=operation.route.method.value,
        path=path,
        words=operation.command.words,
        positional=operation.command.positional,
        columns=operation.command.columns,
        confirm=operation.command.confirm,
        hidden=operation.command.hidden,
        about=operation.command.about,
        parameters=tuple(_parameter(name, field, names(name), changes) for name, field in fields.items()),
        access=operation.access.value,
        scope=operation.scope.value,
        mutates=operation.mutates,
        presentation=operation.presentation.value,
        upload=operation.upload,
        paged="page_size" in fields,
        starts_work=operation.route.method.value != "GET"
        and starts_work(set(getattr(operation.response, "model_fields", ()))),
        in_parts={"data_base64", "version", "name"} <= set(getattr(operation.response, "model_fields", ())),
        list_path=list_path,
        inner_list=_inner_list(path, things) if list_path is None else None,
    )


def _inner_list(path: str, things: dict[str, str]) -> str | None:
    """The nested list that contains the resource of a path: `/sites/{id}/domains` for `/domains/{id}`."""
    own, beneath, _ = path.partition("/{id}")
    found = [listed for listed in things.values() if listed.endswith(f"/{{id}}{own}")] if beneath else []
    return found[0] if len(found) == 1 else None


def _list_of(stem: str, things: dict[str, str]) -> str | None:
    """The list in which the ids of a field are looked up, by the field's name without `_id`: `group` stands for
    security groups if the service has no other groups."""
    found = [path for thing, path in things.items() if thing == stem or thing.endswith(f"_{stem}")]
    return things.get(stem, found[0] if len(found) == 1 else None)


def _parameter(name: str, field: FieldInfo, names: str | None, changes: bool) -> Parameter:
    kind, many, choices = _kind(field.annotation)
    nullable = type(None) in typing.get_args(field.annotation) and (field.is_required() or _null_resets(field))
    fixed = not field.is_required() and field.default_factory is None and field.default is not None
    default = field.default if fixed and not many else None
    preset = _preset(field)
    if preset is not None:
        default = preset
    return Parameter(
        name=name,
        kind=kind,
        many=many,
        listed=many and name in _LISTED,
        required=field.is_required(),
        choices=choices,
        secret=field.repr is False or (kind is Kind.TEXT and name in _SECRETS),
        document=name in _DOCUMENTS or (kind is Kind.PAIRS and field.repr is False),
        emptiable=changes and (many or nullable),
        names=names if kind is Kind.ID else None,
        default=None if default is None or kind is Kind.JSON or not field.repr else _shown(default),
        preset=preset,
        help=field.description or _description_of(field.annotation),
    )


def _null_resets(field: FieldInfo) -> bool:
    from svc.registry.shapes import NullResets

    return any(isinstance(each, NullResets) for each in field.metadata)


def _preset(field: FieldInfo) -> bool | None:
    from svc.registry.shapes import Preset

    return next((each.value for each in field.metadata if isinstance(each, Preset)), None)


def _description_of(annotation: Any) -> str | None:
    """The description of a shared type, for a field that has none of its own. Looks inside of `X | None` and of
    lists."""
    from pydantic.fields import FieldInfo

    arguments = typing.get_args(annotation)
    own = (argument.description for argument in arguments if isinstance(argument, FieldInfo))
    inner = (_description_of(argument) for argument in arguments if typing.get_args(argument))
    return next((text for text in (*own, *inner) if text), None)


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def _kind(annotation: Any) -> tuple[Kind, bool, tuple[str, ...]]:
    """What a flag takes, whether it may be repeated, and its choices. An object is given as JSON."""
    origin = typing.get_origin(annotation)
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    if origin in (typing.Union, types.UnionType):
        if all(hasattr(argument, "model_fields") for argument in arguments):
            return Kind.JSON, False, ()
        return _kind(arguments[0]) if len(arguments) == 1 else (Kind.TEXT, False, ())
    if origin is typing.Annotated:
        return _kind(arguments[0])
    if origin is typing.Literal:
        numbers = all(isinstance(argument, int) for argument in arguments)
        return Kind.INTEGER if numbers else Kind.TEXT, False, tuple(str(argument) for argument in arguments)
    if origin in (list, tuple, set, frozenset):
        kind, _, choices = _kind(arguments[0]) if arguments else (Kind.TEXT, False, ())
        return kind, kind is not Kind.JSON, choices
    if origin is dict and all(_kind(argument)[0] is Kind.TEXT for argument in arguments):
        return Kind.PAIRS, False, ()
    if not isinstance(annotation, type) or origin is dict or hasattr(annotation, "model_fields"):
        return Kind.JSON, False, ()
    if issubclass(annotation, StrEnum):
        return Kind.TEXT, False, tuple(member.value for member in annotation)
    plain = {bool: Kind.BOOLEAN, int: Kind.INTEGER, float: Kind.NUMBER, UUID: Kind.ID, dict: Kind.JSON}
    return plain.get(annotation, Kind.TEXT), False, ()


def _cache_path(environment: Mapping[str, str], kind: ServiceKind) -> Path:
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/root"), ".cache")
    return Path(base, "svc", "commands.json" if kind is ServiceKind.CONTROLLER else f"{kind}-commands.json")


def _fingerprint() -> str:
    """A digest that changes whenever a source file of the registry changes."""
    digest = hashlib.sha256(f"{_FORMAT}".encode())
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in sorted(spec.submodule_search_locations or ()) if spec else ():
            for path, changed, size in sorted(_sources(folder)):
                digest.update(f"{path}:{changed}:{size}\n".encode())
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_mtime_ns, status.st_size


def _read(path: Path, sources: str) -> Service | None:
    try:
        stored = json.loads(path.read_text())
        if stored["sources"] != sources:
            return None
        return Service(tuple(_revived(operation) for operation in stored["operations"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent, unreadable or cut short: derived again


def _revived(stored: dict[str, Any]) -> OperationDescription:
    parameters = tuple(
        Parameter(**parameter | {"kind": Kind(parameter["kind"]), "choices": tuple(parameter["choices"])})
        for parameter in stored["parameters"]
    )
    plain = stored | {name: tuple(stored[name]) for name in ("words", "positional", "columns")}
    return OperationDescription(**plain | {"parameters": parameters})


def _write(path: Path, sources: str, known: Service) -> None:
    stored = {"sources": sources, "operations": [asdict(operation) for operation in known.operations]}
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(stored))
        temporary.replace(path)
    except OSError:
        return  # the cache folder cannot be written to: the next command derives it again
