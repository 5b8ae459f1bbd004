"""The raw parameters of a request, and how they become the operation's request model.

Invariants: values in path and query are text and are parsed as such; a JSON body is read strictly (a number is not a
text); a path parameter wins over a member of the body; errors name each wrong field and never echo its value, which may
be a password; no text contains a NUL, which PostgreSQL cannot store.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from svc.registry.operation import Method, Operation
from svc.registry.problems import UNKNOWN_FIELD, explained
from svc_common.errors import invalid, wrong_field

MAX_DEPTH = 32
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_PLACEHOLDER = re.compile(r"{(\w+)}")


async def no_body() -> bytes:
    return b""


@dataclass(frozen=True)
class Parameters:
    """`body` is awaited only once the caller has been authorised. `defaults` are fields carried by headers
    (`Idempotency-Key`, `Last-Event-ID`); the same field given otherwise must be equal."""

    path: Mapping[str, str]
    query: Sequence[tuple[str, str]] = ()
    body: Callable[[], Awaitable[bytes]] = no_body
    defaults: Mapping[str, str] | None = None


class ParameterReader:
    """Reads the parameters of one operation; created once, with the registry."""

    def __init__(self, operation: Operation[Any, Any, Any]) -> None:
        fields = operation.request.model_fields
        self.in_path = path_parameters(operation.route.path)
        self.in_query = operation.route.method is Method.GET
        self.others = tuple(name for name in fields if name not in self.in_path)
        self._numbers = frozenset(name for name in self.in_path if fields[name].annotation is int)
        self._repeated = frozenset(name for name in self.others if _is_list(fields[name].annotation))
        self._model = operation.request
        self._adapter: TypeAdapter[Any] = TypeAdapter(operation.request)

    async def read(self, parameters: Parameters) -> Any:
        """The request model. Raises `invalid` with `details.fields`."""
        defaults = {name: value for name, value in (parameters.defaults or {}).items() if name in self.others}
        try:
            if self.in_query:
                values = self._from_query(parameters, defaults)
                # `validate_strings` does not support lists. The lax mode for Python values also parses text.
                if self._repeated:
                    return self._adapter.validate_python(values)
                return self._adapter.validate_strings(values, strict=True)
            for name, _ in parameters.query:
                raise wrong_field(
                    name, UNKNOWN_FIELD, hint="This request takes its fields from the JSON body, not from the query."
                )
            members = _object(await parameters.body())
            for name, value in defaults.items():
                if members.setdefault(name, value) != value:
                    raise invalid(f"The field {name} of the body differs from the header that carries it.")
            if not members and not self.in_path:
                return self._adapter.validate_python({})
            _refuse_nul(parameters.path.items())
            # A number in the path arrives as text. The strict mode for requests with a body would refuse that, so it is
            # converted first.
            path = {
                name: int(value) if name in self._numbers and _WHOLE.fullmatch(value) else value
                for name, value in parameters.path.items()
            }
            return self._adapter.validate_json(to_json({**members, **path}), strict=True)
        except ValidationError as error:
            raise explained(error, self._model) from None

    def _from_query(self, parameters: Parameters, defaults: Mapping[str, str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in parameters.query:
            if name in self._repeated:
                values.setdefault(name, []).append(value)
            elif name in values:
                raise wrong_field(name, "given more than once")
            else:
                values[name] = value
        _refuse_nul(parameters.query)
        _refuse_nul(parameters.path.items())
        for name in self.in_path:
            if name in values:
                raise wrong_field(name, "must be in the path alone")
        return {**values, **defaults, **parameters.path}


def path_parameters(path: str) -> tuple[str, ...]:
    """The names in braces, in order."""
    return tuple(_PLACEHOLDER.findall(path))


def _is_list(annotation: Any) -> bool:
    if get_origin(annotation) in (list, tuple, set, frozenset):
        return True
    return any(_is_list(argument) for argument in get_args(annotation))


def _object(body: bytes) -> dict[str, Any]:
    """The members of a JSON object; no body at all is an empty object."""
    if not body.strip():
        return {}
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body of the request is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise invalid("The body of the request must be a JSON object.")
    _check_shape(value, has_nul=b"\\u0000" in body)
    return value


def _check_shape(value: dict[str, Any], *, has_nul: bool) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if has_nul:
                    _refuse_nul((name, "") for name in item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif has_nul and isinstance(item, str):
                _refuse_nul([("", item)])
        if not below:
            return
        level = below
    raise invalid(f"The body of the request is nested deeper than {MAX_DEPTH} levels.")


def _refuse_nul(pairs: Iterable[tuple[str, str]]) -> None:
    for name, value in pairs:
        if "\0" in name or "\0" in value:
            raise invalid("A text must not contain the character NUL.")
