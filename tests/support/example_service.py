"""A small registry of its own, and the service that serves it: for what HTTP promises whatever is served."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import trio
from pydantic import Field

from svc.controller.realm import REALM
from svc.registry.operation import Command, Context, Empty, Method, Model, Operation, Presentation, Request, Route
from svc.registry.principal import Access, Principal, Role
from svc.registry.registry import Registry
from svc.registry.scopes import Scope
from svc.registry.streaming import EventStream, View
from svc_actors.sealing import Sealer
from svc_actors.store import Database, Event, EventLog, Target, audit
from svc_common.errors import forbidden, rate_limited, unauthenticated
from svc_http.app import App, create_app
from svc_http.certificates import Certificates
from svc_http.server import serve_https
from tests.support.certificates import self_signed

ADA = UUID("00000000-0000-0000-0000-00000000000a")
EVE = UUID("00000000-0000-0000-0000-0000000000ee")
SUPPORT = UUID("00000000-0000-0000-0000-0000000000cc")


@dataclass(frozen=True)
class ExampleServices:
    database: Database
    sealer: Sealer
    events: EventLog


class Toy(Model):
    id: str
    size: int
    note: str | None = None


class ToyRequest(Request):
    id: str


class ToyMakeRequest(Request):
    id: str
    size: int = Field(ge=0, le=10)
    note: str | None = None
    idempotency_key: str | None = None


class ToyListRequest(Request):
    size: int = 1
    tag: list[str] = Field(default_factory=list)
    broken: bool = False


class Received(Model):
    bytes: int


async def show(ctx: Context[ExampleServices], request: ToyRequest) -> Toy:
    return Toy(id=request.id, size=1)


async def listed(ctx: Context[ExampleServices], request: ToyListRequest) -> list[Toy]:
    if request.broken:
        raise RuntimeError("the secret svcvm_0123456789abcdefghijklmnop leaked")
    return [Toy(id=tag, size=request.size) for tag in request.tag]


async def make(ctx: Context[ExampleServices], request: ToyMakeRequest) -> Toy:
    if request.note == "refuse":
        raise rate_limited("slowly", details={"retry_after": 7})
    async with ctx.services.database.transaction() as tx:
        await audit.record(tx, ctx.caller, Target("toy", request.id, request.id))
    return Toy(id=request.id, size=request.size, note=request.note)


async def upload(ctx: Context[ExampleServices], request: ToyRequest) -> Received:
    assert ctx.upload is not None
    return Received(bytes=sum([len(chunk) async for chunk in ctx.upload]))


async def link(ctx: Context[ExampleServices], request: ToyRequest) -> str:
    return request.id.replace("~", "/")


async def stream(ctx: Context[ExampleServices], request: ToyStreamRequest) -> EventStream:
    async def views(principals: Sequence[Principal]) -> list[View | None]:
        if await ctx.services.database.fetchval("SELECT EXISTS (SELECT FROM settings WHERE name = 'ended')"):
            return [None for _ in principals]
        return [View(_not_for_administrators, operator=it.role is not Role.CUSTOMER) for it in principals]

    return EventStream(ctx.services.events.subscribe, ctx.principal, views, request.after)


def _not_for_administrators(event: Event) -> bool:
    return not event.administrators_only


class ToyStreamRequest(Request):
    after: int | None = None


def operation(**changes: Any) -> Operation[ExampleServices, Any, Any]:
    """`toy.show`, with what a test wants otherwise."""
    given: dict[str, Any] = {
        "name": "toy.show",
        "summary": "One toy",
        "request": ToyRequest,
        "response": Toy,
        "handler": show,
        "route": Route(Method.GET, "/toys/{id}"),
        "command": Command(("toy", "show"), positional=("id",)),
        "access": Access.SIGNED_IN,
        "scope": Scope.READ,
        "mutates": False,
    }
    return Operation(**{**given, **changes})


OPERATIONS = (
    operation(),
    operation(
        name="toy.list",
        request=ToyListRequest,
        response=list[Toy],
        handler=listed,
        route=Route(Method.GET, "/toys"),
        command=Command(("toy", "list")),
        access=Access.PUBLIC,
    ),
    operation(
        name="toy.make",
        request=ToyMakeRequest,
        handler=make,
        route=Route(Method.PUT, "/toys/{id}", status=201),
        command=Command(("toy", "make"), positional=("id",)),
        scope=Scope.WRITE,
        mutates=True,
    ),
    operation(
        name="toy.upload",
        response=Received,
        handler=upload,
        route=Route(Method.PUT, "/toys/{id}/file"),
        command=Command(("toy", "upload"), positional=("id",)),
        upload=True,
        scope=Scope.WRITE,
        mutates=True,
    ),
    operation(
        name="toy.link",
        response=None,
        handler=link,
        route=Route(Method.GET, "/link/{id}"),
        command=Command(("toy", "link"), positional=("id",)),
        access=Access.PUBLIC,
        presentation=Presentation.REDIRECT,
    ),
    operation(
        name="toy.stream",
        request=ToyStreamRequest,
        response=None,
        handler=stream,
        route=Route(Method.GET, "/stream"),
        command=Command(("toy", "stream")),
        presentation=Presentation.EVENT_STREAM,
    ),
    operation(
        name="toy.nothing",
        request=Empty,
        response=None,
        handler=lambda ctx, request: _nothing(),
        route=Route(Method.DELETE, "/toys"),
        command=Command(("toy", "nothing")),
        scope=Scope.WRITE,
        access=Access.ADMINISTRATOR,
    ),
)


async def _nothing() -> None:
    return None


class Everybody:
    """Tokens and cookies that say who one is: a role, then the scopes; `eve:` before them for another person."""

    async def by_token(self, token: str) -> Principal:
        person, _, token = token.rpartition(":")
        role, *scopes = token.split(",")
        if role == "suspended":
            raise forbidden("suspended")
        if role not in list(Role):
            raise unauthenticated("unknown token")
        granted = REALM.scopes.closed(scopes)
        user_id, email = (EVE, "eve@example.org") if person == "eve" else (ADA, "ada@example.org")
        return Principal(user_id=user_id, email=email, role=Role(role), scopes=granted, token_id=SUPPORT)

    async def by_session(self, cookie: str) -> Principal:
        if cookie == "support":
            return Principal(
                user_id=ADA,
                email="ada@example.org",
                role=Role.CUSTOMER,
                scopes=None,
                session_id=SUPPORT,
                impersonation_id=SUPPORT,
                impersonator_id=SUPPORT,
                impersonator_email="root@example.org",
            )
        raise unauthenticated("unknown session")


def example_app(services: ExampleServices, origin: str = "https://toys.test") -> App:
    return create_app(Registry(OPERATIONS, REALM), services, authenticator=Everybody(), origins=(origin,))


@dataclass
class Served:
    app: App
    services: ExampleServices
    port: int
    trust: ssl.SSLContext
    stop: trio.Event
    ended: trio.Event

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@asynccontextmanager
async def served(database: Database, folder: Path) -> AsyncIterator[Served]:
    """The toys over HTTPS on this machine."""
    log = EventLog(database)
    services = ExampleServices(database, Sealer(bytes(32)), log)
    app = example_app(services)
    files = self_signed(folder)
    stop, ended = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)

        async def serve(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve_https(app, ["127.0.0.1:0"], Certificates(files), stop, task_status)
            ended.set()

        [bind] = await nursery.start(serve)
        trust = ssl.create_default_context(cafile=str(files.certificate))
        try:
            yield Served(app, services, int(bind.rpartition(":")[2]), trust, stop, ended)
        finally:
            stop.set()
            with trio.move_on_after(10):
                await ended.wait()
            nursery.cancel_scope.cancel()
