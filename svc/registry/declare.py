"""Operations declared at their handlers.

    operations = Operations[Controller]()

    @operations.declare(
        "vm.start", "Start a machine", Route.post("/vms/{id}/start"), access=Access.SIGNED_IN, scope=Scope.WRITE
    )
    async def start(context: Context[Controller], request: MachineRequest) -> Task: ...

Most properties of an operation follow from its handler and its route: the request and response models are the handler's
annotations, every method but GET is a change, the command is the operation's name, and path parameters are positional
arguments.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, TypeVar

from svc.registry.operation import (
    Command,
    Context,
    Method,
    Operation,
    Presentation,
    Request,
    Route,
    ServicesT,
)
from svc.registry.principal import Access
from svc.registry.scopes import Scope

RequestT = TypeVar("RequestT", bound=Request)
ResultT = TypeVar("ResultT")


class Operations(Generic[ServicesT]):
    """The operations of one area, in the order of their declaration. `about`: the help of their group of commands."""

    def __init__(self, about: str | None = None) -> None:
        self._about = about
        self._declared: list[Operation[ServicesT, Any, Any]] = []

    def __iter__(self) -> Iterator[Operation[ServicesT, Any, Any]]:
        return iter(self._declared)

    def __getitem__(self, name: str) -> Operation[ServicesT, Any, Any]:
        """The operation with this name. Raises KeyError if it is not of this area."""
        for operation in self._declared:
            if operation.name == name:
                return operation
        raise KeyError(name)

    def declare(
        self,
        name: str,
        summary: str,
        route: Route,
        *,
        access: Access,
        scope: Scope,
        command: tuple[str, ...] | None = None,
        positional: tuple[str, ...] | None = None,
        columns: tuple[str, ...] = (),
        confirm: bool = False,
        hidden: bool = False,
        secret: bool = False,
        in_support_session: bool = False,
        presentation: Presentation = Presentation.JSON,
        statuses: tuple[int, ...] = (),
        upload: bool = False,
        target: str | None = None,
        frees_space: bool = False,
        request: type[Request] | None = None,
        response: Any = None,
    ) -> Callable[
        [Callable[[Context[ServicesT], RequestT], Awaitable[ResultT]]],
        Callable[[Context[ServicesT], RequestT], Awaitable[ResultT]],
    ]:
        """Declare the decorated handler as an operation.

        `Operation` describes the arguments, and `Command` those of the command line; `command` is the command's
        words. `request` and `response`: the models of this service, for a handler that several services share, whose
        annotations name a base."""

        def declared(
            handler: Callable[[Context[ServicesT], RequestT], Awaitable[ResultT]],
        ) -> Callable[[Context[ServicesT], RequestT], Awaitable[ResultT]]:
            hints = typing.get_type_hints(handler)
            answer = (response or hints["return"]) if presentation is Presentation.JSON else None
            self._declared.append(
                Operation(
                    name=name,
                    summary=summary,
                    request=request or hints["request"],
                    response=None if answer is type(None) else answer,
                    handler=handler,
                    route=route,
                    command=Command(
                        words=tuple(name.replace("_", "-").split(".")) if command is None else command,
                        positional=_in_path(route) if positional is None else positional,
                        columns=columns,
                        confirm=confirm,
                        hidden=hidden,
                        about=self._about,
                    ),
                    access=access,
                    scope=scope,
                    # A route that redirects counts as a change, even with GET: following such a link uses the link up.
                    mutates=route.method is not Method.GET or presentation is Presentation.REDIRECT,
                    secret=secret,
                    in_support_session=in_support_session,
                    presentation=presentation,
                    statuses=statuses,
                    upload=upload,
                    target=target,
                    frees_space=frees_space,
                )
            )
            return handler

        return declared


def _in_path(route: Route) -> tuple[str, ...]:
    return tuple(re.findall(r"{(\w+)}", route.path))
