"""What an operation is: one declaration that its REST route, OpenAPI entry, CLI command and `svc ops` row are derived
from.

Invariants:

- a request model is frozen and forbids unknown fields; path, query and body parameters are fields of that one model,
  and a path parameter wins over a member of the body with the same name;
- the order of checks is authentication, scope, support-session rule, role, body, then the handler's own;
- an operation that mutates leaves exactly one audit row: written by the handler (or the actor below it) in the
  transaction that changes the state, or by the registry if the operation was refused or failed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from svc.registry.principal import Access, Principal
from svc.registry.scopes import Scope
from svc_actors.sealing import Sealer
from svc_actors.store import Caller, Database


class Services(Protocol):
    """What the registry itself uses of the services that handlers get."""

    @property
    def database(self) -> Database: ...

    @property
    def sealer(self) -> Sealer: ...


RequestT = TypeVar("RequestT", bound="Request")
ResponseT = TypeVar("ResponseT")
ServicesT = TypeVar("ServicesT", bound=Services)
ServicesT_co = TypeVar("ServicesT_co", bound=Services, covariant=True)
ServicesT_contra = TypeVar("ServicesT_contra", bound=Services, contravariant=True)
"""Contravariant: a handler that needs few services also works with an object that has more. So identity's operations
can be in the registry of every service."""


class Model(BaseModel):
    """Base of every model of the API: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(Model):
    """Base of request models: parameters of path, query and body together."""


class Empty(Request):
    """No parameters."""


class Method(StrEnum):
    GET = "GET"
    POST = "POST"
    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Route:
    """`path` is below `/api/v1`, with its parameters in braces: `/vms/{id}/start`. `status` is the code of a success.
    Parameters that are not in the path are in the query for GET, in the body for every other method."""

    method: Method
    path: str
    status: int = 200

    @classmethod
    def get(cls, path: str) -> Route:
        return cls(Method.GET, path)

    @classmethod
    def post(cls, path: str, status: int = 200) -> Route:
        return cls(Method.POST, path, status)

    @classmethod
    def put(cls, path: str) -> Route:
        return cls(Method.PUT, path)

    @classmethod
    def patch(cls, path: str) -> Route:
        return cls(Method.PATCH, path)

    @classmethod
    def delete(cls, path: str, status: int = 200) -> Route:
        return cls(Method.DELETE, path, status)


@dataclass(frozen=True)
class Command:
    """The command line of an operation.

    `words` are the command below `svc`; `positional` names the request's fields given without a flag, in order.
    `columns` are the default columns of a list's table, each a path into a row or `title=path`; without them, every
    member. `confirm`: asks first although it neither deletes nor has a field `confirm`. `hidden`: for programs; the
    command works, but the help leaves it out. `about`: the help of the group that the command is in."""

    words: tuple[str, ...]
    positional: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    confirm: bool = False
    hidden: bool = False
    about: str | None = None


class Presentation(StrEnum):
    """How svc_http sends the result.

    JSON: the response model. SHELL_SCRIPT and FILE: the handler returns `str` or `bytes`. REDIRECT: the handler
    returns a path of this service. EVENT_STREAM: the handler returns an `svc.registry.streaming.EventStream`.
    """

    JSON = "json"
    SHELL_SCRIPT = "shell_script"
    REDIRECT = "redirect"
    EVENT_STREAM = "event_stream"
    FILE = "file"


@dataclass
class Effects:
    """What the HTTP side must do besides sending the result. `know_browser`: a cookie that identifies this browser at
    the next sign-in; it gives no access. `status` replaces the route's success code (200 instead of 201 if an answer is
    a replay)."""

    set_session: str | None = None
    know_browser: str | None = None
    clear_session: bool = False
    status: int | None = None


@dataclass(frozen=True)
class Context(Generic[ServicesT_co]):
    """What a handler gets: the caller, the caller's identity for the audit, and the services.

    `browser` is the cookie of `Effects.know_browser`, as the browser sends it. `response` is the operation's declared
    response, for decoding a stored idempotent answer; `upload` are the chunks of the body of an operation that takes a
    file."""

    principal: Principal
    caller: Caller
    services: ServicesT_co
    effects: Effects = field(default_factory=Effects)
    response: Any = None
    user_agent: str | None = None
    browser: str | None = None
    upload: AsyncIterator[bytes] | None = None


@dataclass(frozen=True)
class Operation(Generic[ServicesT_contra, RequestT, ResponseT]):
    """One operation of the service.

    `response` is a model, one of several (`A | B`), a `list[Model]`, a `Page[Model]` or None. `secret`: the result
    reveals a secret, so the read is audited as well. `in_support_session`: allowed in a support session although it
    mutates. `statuses`: further success codes that the handler may choose. `upload`: the body is a file of any size
    (`application/octet-stream`), read from `Context.upload`; the request model then holds only the path's parameters.
    `target` is the audit's name for the thing, if it is not the first word of the operation's name. `frees_space`:
    allowed while the disk of the database is full, as every DELETE is."""

    name: str
    summary: str
    request: type[RequestT]
    response: Any
    handler: Callable[[Context[ServicesT_contra], RequestT], Awaitable[ResponseT]]
    route: Route
    command: Command
    access: Access
    scope: Scope
    mutates: bool
    secret: bool = False
    in_support_session: bool = False
    presentation: Presentation = Presentation.JSON
    statuses: tuple[int, ...] = ()
    upload: bool = False
    target: str | None = None
    frees_space: bool = False

    @property
    def subject(self) -> str:
        """The kind of thing that the operation is about: the first word of its name."""
        return self.name.partition(".")[0]

    @property
    def target_kind(self) -> str:
        """The audit's name for that kind of thing."""
        return self.target or self.subject
