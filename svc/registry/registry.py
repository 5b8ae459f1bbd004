"""The closed set of operations, and the one way to run one.

Invariants:

- names, routes and commands are unique, and a declaration that contradicts itself is refused when the registry is
  built;
- every run passes the same checks in the same order: authentication, scope, support-session rule, role, body, handler;
  if the role depends on who owns a resource, `Principal.member_roles` tells the handler which roles of a member
  suffice;
- a mutating (or secret-revealing) operation that was refused or failed leaves its audit row here; a successful one
  leaves it in the handler's own transaction. Rows about refusals are limited per person and minute, or anybody could
  fill the table. Anonymous callers leave none, except by a public operation that refuses them (a wrong password), and
  those rows are limited together. Throttled calls leave none.

Why: docs/decisions/0002-orders-are-answered-when-stored.md.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, get_args, get_origin

import structlog
import trio
from pydantic import BaseModel, TypeAdapter

from svc.registry.operation import Context, Method, Operation, Presentation, ServicesT
from svc.registry.parameters import ParameterReader, Parameters, path_parameters
from svc.registry.principal import Access, Principal, Role, roles_of
from svc.registry.realm import Realm
from svc_actors.allowance import Allowance, Allowances
from svc_actors.runtime import DeliveryError
from svc_actors.store import DISK_FULL, Outcome, Target, Transaction, audit, disk_full
from svc_actors.tracing import Attributes, Kind, current_span, in_span
from svc_actors.undelivered import undelivered
from svc_common.errors import ErrorCode, ServiceError, forbidden, unauthenticated

SUPPORT_SESSION_REFUSAL = "a support session can look, not act"
"""Quoted from the specification, which fixes this text."""
_AUDIT_DEADLINE = 5.0
_MAX_TARGET = 200
_ANONYMOUS_ROWS_PER_MINUTE = 120
_REFUSED_ROWS_OF_A_PRINCIPAL = 120
"""The most audit rows of refusals a minute: without a limit, 300 refused calls a second would write 47 GB a day. The
request log has every call."""
_NAME = re.compile(r"[a-z][a-z_]*(\.[a-z][a-z_]*)+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NOTHING: Attributes = {}
_OK, _NO_CONTENT = 200, 204
_SEGMENT = re.compile(r"[a-z0-9.-]+|{\w+}")
_MANY_OF = {Role.STAFF: "staff", Role.ADMINISTRATOR: "administrators"}

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.registry")


class InconsistentRegistryError(Exception):
    """A declaration contradicts itself or another one: a programming error."""


@dataclass(frozen=True)
class Entry(Generic[ServicesT]):
    """An operation with what is computed from it once. `response` is None if a success has no body; `status` is the
    HTTP status of a success. `member_roles` are the roles with which a member of a customer's account may call the
    operation there; if `whole_accounts_only`, only as a member of the whole account."""

    operation: Operation[ServicesT, Any, Any]
    reader: ParameterReader
    response: TypeAdapter[Any] | None = field(repr=False)
    status: int
    member_roles: frozenset[str]
    whole_accounts_only: bool

    @classmethod
    def of(cls, operation: Operation[ServicesT, Any, Any], realm: Realm) -> Entry[ServicesT]:
        answer, status = operation.response, operation.route.status
        if answer is None and operation.presentation is Presentation.JSON:
            answer = realm.nothing
            status = _NO_CONTENT if answer is None and status == _OK else status
        if status == _NO_CONTENT and realm.nothing is not None:
            raise InconsistentRegistryError(f"{operation.name}: every answer of {realm.title} has a body")
        adapter = None if answer is None else TypeAdapter(answer)
        roles, whole = realm.member_roles(operation), realm.whole_accounts_only(operation)
        return cls(operation, ParameterReader(operation), adapter, status, roles, whole)

    def rendered(self, result: Any) -> bytes | None:
        """The body of a success as JSON; None if there is none."""
        if self.response is None:
            return None
        return b"{}" if self.operation.response is None else self.response.dump_json(result)


class Registry(Generic[ServicesT]):
    def __init__(self, operations: Iterable[Operation[ServicesT, Any, Any]], realm: Realm) -> None:
        self.realm = realm
        self._entries: dict[str, Entry[ServicesT]] = {}
        self._refused = Allowances(per_minute=_REFUSED_ROWS_OF_A_PRINCIPAL)
        self._anonymous = Allowance(per_minute=_ANONYMOUS_ROWS_PER_MINUTE)
        routes: dict[tuple[Method, str], str] = {}
        commands: dict[tuple[str, ...], str] = {}
        for operation in operations:
            _check(operation)
            shape = re.sub(r"{\w+}", "{}", operation.route.path)
            _claim(self._entries, operation.name, operation, "name")
            _claim(routes, (operation.route.method, shape), operation, "route")
            _claim(commands, operation.command.words, operation, "command")
            routes[(operation.route.method, shape)] = operation.name
            commands[operation.command.words] = operation.name
            self._entries[operation.name] = Entry.of(operation, realm)
        for words in commands:
            for length in range(1, len(words)):
                if words[:length] in commands:
                    raise InconsistentRegistryError(
                        f"the command {' '.join(words[:length])} is also a group of commands"
                    )

    def __iter__(self) -> Iterator[Operation[ServicesT, Any, Any]]:
        return (entry.operation for entry in self._entries.values())

    def __getitem__(self, name: str) -> Operation[ServicesT, Any, Any]:
        return self._entries[name].operation

    def entries(self) -> Iterator[Entry[ServicesT]]:
        return iter(self._entries.values())

    async def execute(self, name: str, context: Context[ServicesT], parameters: Parameters) -> Any:
        """Run an operation for `context.principal` and return its result.

        Raises `ServiceError`, any other exception of the handler (a defect: `internal` to the caller), and KeyError for
        a name that is not in this registry."""
        entry = self._entries[name]
        told = _NOTHING if current_span() is None else _ids(entry.operation, context, parameters)
        with in_span(name, Kind.INTERNAL, told):
            return await self._execute(entry, context, parameters)

    async def _execute(self, entry: Entry[ServicesT], context: Context[ServicesT], parameters: Parameters) -> Any:
        try:
            authorise(entry.operation, context.principal, self.realm)
            if context.services.database.disk_full and _needs_space(entry.operation):
                raise disk_full()
            request = await entry.reader.read(parameters)
            principal = replace(
                context.principal, member_roles=entry.member_roles, whole_accounts_only=entry.whole_accounts_only
            )
            try:
                return await entry.operation.handler(replace(context, principal=principal), request)
            except DeliveryError as error:
                if (refusal := undelivered(error)) is None:
                    raise
                raise refusal from error
        except ServiceError as error:
            if self._should_audit(entry.operation, context.principal, error):
                await _record_refusal(entry.operation, context, parameters, error.code)
            raise
        except Exception:  # an unexpected exception is audited like a refused change, and raised again
            if entry.operation.mutates or entry.operation.secret:
                await _record_refusal(entry.operation, context, parameters, ErrorCode.INTERNAL)
            raise

    def _should_audit(self, operation: Operation[Any, Any, Any], principal: Principal, error: ServiceError) -> bool:
        if not (operation.mutates or operation.secret) or error.code is ErrorCode.RATE_LIMITED:
            return False
        if error.details is not None and error.details.get("reason") == DISK_FULL:
            return False  # the audit row would be another write to a full disk
        if principal.local:
            return True
        if principal.user_id is not None:
            return self._refused.spend(principal.impersonator_id or principal.user_id)
        return operation.access is Access.PUBLIC and error.code is not ErrorCode.INVALID and self._anonymous.spend()


def authorise(operation: Operation[Any, Any, Any], principal: Principal, realm: Realm) -> None:
    """Authentication, scope, support-session rule, role. Raises `unauthenticated` or `forbidden`."""
    if operation.access is not Access.PUBLIC:
        if not principal.is_known:
            raise unauthenticated("Sign in first.", hint="Send a session cookie, or Authorization: Bearer <token>.")
        if principal.scopes is not None and not realm.scopes.allows(principal.scopes, operation):
            narrowest = realm.scopes.narrowest(operation)
            raise forbidden(f"This token does not have the scope {narrowest}.", details={"scope": narrowest})
    acts = operation.mutates or operation.route.method is not Method.GET
    if principal.impersonation_id is not None and acts and not operation.in_support_session:
        # Checked before the role, so that an operator in a customer's account gets this rule as the reason and not the
        # customer's role.
        raise forbidden(SUPPORT_SESSION_REFUSAL)
    if not principal.has_access(operation.access):
        who = " and ".join(_MANY_OF[role] for role in _MANY_OF if role in realm.roles & roles_of(operation.access))
        raise forbidden(f"This is for {who} only.")


def _needs_space(operation: Operation[Any, Any, Any]) -> bool:
    """Whether an operation is refused while the database's disk is full. Signing in and deleting must still work, to
    free space."""
    if operation.frees_space or operation.route.method is Method.DELETE:
        return False
    return operation.mutates and operation.access is not Access.PUBLIC


def _ids(operation: Operation[Any, Any, Any], context: Context[Any], parameters: Parameters) -> Attributes:
    """The ids of the caller and of the target, as attributes of a span. Other values of a path are left out, since they
    may be names or secrets."""
    told = {}
    for name, value in parameters.path.items():
        if _UUID.fullmatch(value):
            kind = operation.target_kind if name == "id" else name.removesuffix("_id")
            told[f"svc.{kind}.id"] = value
    if context.principal.user_id is not None:
        told["user.id"] = str(context.principal.user_id)
    return told


async def _record_refusal(
    operation: Operation[Any, Any, Any], context: Context[ServicesT], parameters: Parameters, code: ErrorCode
) -> None:
    """Write the audit row of a refusal. If the database cannot store it, that is only logged: the caller gets the
    refusal itself."""
    outcome = Outcome.FAILED if code in (ErrorCode.INTERNAL, ErrorCode.UNAVAILABLE) else Outcome.DENIED
    # The path of a link that redirects contains its secret, and the link still works after a refusal. So the audit does
    # not get the path.
    in_path = {} if operation.presentation is Presentation.REDIRECT else parameters.path
    named = next(iter(in_path.values()), None)
    target = Target(
        operation.target_kind, named[:_MAX_TARGET].replace("\0", "") if named is not None else None, name=None
    )

    async def write(tx: Transaction) -> None:
        await audit.record(tx, context.caller, target, outcome=outcome, error_code=code.value)

    with trio.move_on_after(_AUDIT_DEADLINE) as deadline:
        try:
            await context.services.database.transact(write)
        except ServiceError as error:
            log.warning("audit.row_lost", operation=operation.name, outcome=outcome.value, error=error.message)
    if deadline.cancelled_caught:
        log.warning("audit.row_lost", operation=operation.name, outcome=outcome.value, error="the database is too slow")


def _claim(taken: dict[Any, Any], key: object, operation: Operation[Any, Any, Any], what: str) -> None:
    if key in taken:
        raise InconsistentRegistryError(f"{operation.name}: the {what} {key!r} is declared twice")


def _check(operation: Operation[Any, Any, Any]) -> None:
    def refuse(why: str) -> InconsistentRegistryError:
        return InconsistentRegistryError(f"{operation.name}: {why}")

    route, fields = operation.route, operation.request.model_fields
    if not _NAME.fullmatch(operation.name):
        raise refuse("a name reads subject.verb in lowercase letters")
    if not operation.summary:
        raise refuse("a summary is missing")
    if not route.path.startswith("/") or not all(_SEGMENT.fullmatch(part) for part in route.path[1:].split("/")):
        raise refuse(f"the path {route.path} is malformed")
    in_path = path_parameters(route.path)
    if len(set(in_path)) < len(in_path) or not set(in_path) <= set(fields):
        raise refuse(f"the parameters of the path {route.path} are not distinct fields of {operation.request.__name__}")
    if any(not fields[name].is_required() for name in in_path):
        raise refuse("a parameter of the path is always there, so its field has no default")
    if not operation.command.words or not set(operation.command.positional) <= set(fields):
        raise refuse("the command has no words, or a positional that is not a field of the request")
    if operation.request.model_config.get("extra") != "forbid" or not operation.request.model_config.get("frozen"):
        raise refuse("the request model must be frozen and forbid unknown fields")
    if operation.upload and (set(fields) != set(in_path) or route.method is Method.GET):
        raise refuse("an upload has only the parameters of its path, and is not a GET")
    if route.method is Method.GET and (operation.mutates and operation.presentation is not Presentation.REDIRECT):
        raise refuse("a GET does not change anything, save a single-use link that redirects")
    if not math.floor(route.status / 100) == 2 and operation.presentation is not Presentation.REDIRECT:
        raise refuse(f"{route.status} is not a code of success")
    if operation.presentation is Presentation.JSON and not _is_answer(operation.response):
        raise refuse("the response is a model, one of several, a list or a page of models, or None")


def _is_answer(response: Any) -> bool:
    if response is None:
        return True
    if get_origin(response) in (list, types.UnionType):
        return all(_is_answer(argument) and argument is not None for argument in get_args(response))
    return isinstance(response, type) and issubclass(response, BaseModel)
