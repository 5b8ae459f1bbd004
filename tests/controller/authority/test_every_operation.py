"""Every operation of the controller, by every kind of caller: made from the registry, so that one that is added is held
to the same.

Who may call what is said a second time, in `access.toml`, as the specification has it: a declaration that opens an
operation to somebody else is noticed. Each is asked with one fault, a field that no request has, which is looked at
behind the credential, the scope, the support session and the role, and before anything is done.
"""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.registry.operation import Method, Operation
from svc.registry.parameters import path_parameters
from svc.service.controller.services import open_services
from svc_actors.store import Database
from tests.support.harness import CheapPasswords, Client
from tests.support.identity import IdentityHarness, open_identity

AnOperation = Operation[Any, Any, Any]

EVERY: Sequence[AnOperation] = tuple(controller_registry())
NOBODY = str(UUID(int=1))
TABLE: Mapping[str, Mapping[str, list[str]]] = tomllib.loads(Path(__file__).with_name("access.toml").read_text())
ACCESS = {
    name: (access, scope) for access, scopes in TABLE.items() for scope, names in scopes.items() for name in names
}
"""By operation: the least role, and the scope of a token."""

ROLES = {"signed_in": {"customer", "staff", "administrator"}, "staff": {"staff", "administrator"}}
ROLES |= {"administrator": {"administrator"}}
SCOPES = {
    "read": {"read"},
    "write": {"read", "write"},
    "provision": {"provision"},
    "admin": {"read", "write", "provision", "admin"},
}
"""What a token with one scope opens."""

IN_SUPPORT_SESSIONS = {"session.logout", "impersonation.end", "vm.start"}
SUPPORT_SESSION = "a support session can look, not act"

SIGNED_OUT, NO_SCOPE, LOOKS_ONLY, NO_ROLE, PASSED = "signed out", "no scope", "looks only", "no role", "passed"


@dataclass(frozen=True)
class CallerKind:
    """`scope` is None for a browser; in a support session the role is the customer's."""

    role: str | None
    scope: str | None = None
    in_support_session: bool = False


CALLERS: Mapping[str, CallerKind] = {
    "anonymous": CallerKind(None),
    "customer": CallerKind("customer"),
    "customer's admin token": CallerKind("customer", "admin"),
    "customer's provision token": CallerKind("customer", "provision"),
    "staff": CallerKind("staff"),
    "staff's provision token": CallerKind("staff", "provision"),
    "administrator": CallerKind("administrator"),
    **{f"administrator's {scope} token": CallerKind("administrator", scope) for scope in SCOPES},
    "support session": CallerKind("customer", in_support_session=True),
}


def expected(caller: CallerKind, operation: AnOperation) -> str:
    access, scope = ACCESS[operation.name]
    acts = operation.route.method is not Method.GET or operation.mutates
    if caller.role is None and access != "public":
        return SIGNED_OUT
    if caller.scope is not None and scope not in SCOPES[caller.scope] and access != "public":
        return NO_SCOPE
    if caller.in_support_session and acts and operation.name not in IN_SUPPORT_SESSIONS:
        return LOOKS_ONLY
    return PASSED if access == "public" or caller.role in ROLES[access] else NO_ROLE


async def met(client: Client, operation: AnOperation) -> str:
    """How far a request gets whose only fault is a field that there is not."""
    path = operation.route.path
    for name in path_parameters(path):
        path = path.replace("{" + name + "}", NOBODY)
    if operation.route.method is Method.GET:
        answer = await client.get(f"{path}?no_such_field=1")
    else:
        answer = await client.call(operation.route.method.value, path, {"no_such_field": 1})
    error = answer.json()["error"]
    match answer.status_code, error["message"]:
        case 400, _:
            return PASSED
        case 404, "There is no such image.":
            return PASSED  # The body of an upload is the file, and has no fields.
        case 401, _:
            return SIGNED_OUT
        case 403, message if message == SUPPORT_SESSION:
            return LOOKS_ONLY
        case 403, message if "does not have the scope" in message:
            return NO_SCOPE
        case 403, message if message.endswith(" only."):
            return NO_ROLE
    return f"{answer.status_code} {answer.text[:200]}"


@pytest.fixture
async def house(database: Database, tmp_path: Path) -> AsyncIterator[IdentityHarness]:
    config = ControllerConfig(data_dir=tmp_path, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)
    async with (
        open_services(config, database, passwords=CheapPasswords(), enabled_loops=()) as services,
        open_identity(database, services=services) as house,
    ):
        yield house


async def client_of(house: IdentityHarness, caller: CallerKind) -> Client:
    if caller.role is None:
        return house.browser()
    person = await house.person("caller@example.org", caller.role)
    if caller.scope is not None:
        return house.program(await house.token(person, [caller.scope]))
    if not caller.in_support_session:
        return await house.signed_in("caller@example.org")
    await house.person("root@example.org", "administrator")
    browser = await house.signed_in("root@example.org")
    answer = await browser.post(f"/admin/users/{person}/impersonate", {"reason": "asked to look"})
    assert answer.status_code == 200, answer.text
    return browser


def test_the_table_names_every_operation_and_no_other() -> None:
    assert sorted(ACCESS) == sorted(operation.name for operation in EVERY)


@pytest.mark.parametrize("caller", CALLERS.values(), ids=list(CALLERS))
async def test_each_kind_of_caller_gets_as_far_as_the_table_says(house: IdentityHarness, caller: CallerKind) -> None:
    client = await client_of(house, caller)

    found = {operation.name: await met(client, operation) for operation in EVERY}

    assert found == {operation.name: expected(caller, operation) for operation in EVERY}


async def test_a_link_followed_in_a_support_session_is_refused_and_told_to_nobody(house: IdentityHarness) -> None:
    browser = await client_of(house, CALLERS["support session"])

    answer = await browser.get("/sso/a-link-that-works")

    assert (answer.status_code, answer.json()["error"]["message"]) == (403, SUPPORT_SESSION)
    [row] = [row for row in await house.audit() if row["operation"] == "session.sso"]
    assert "a-link-that-works" not in str(row)


async def test_a_program_that_only_looks_where_a_link_leads_does_not_use_it_up(house: IdentityHarness) -> None:
    answer = await house.browser().call("HEAD", "/sso/a-link-that-works")

    assert answer.status_code == 405
