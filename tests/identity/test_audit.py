"""Every operation that changes something leaves exactly one row in the audit, whatever became of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio

from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.registry.operation import Operation
from svc.registry.principal import Access
from svc.service.controller.services import open_services
from svc_actors.store import Database
from tests.support.harness import PASSWORD, CheapPasswords, Client
from tests.support.identity import IdentityHarness, open_identity

REGISTRY = controller_registry()
MUTATING = [operation for operation in REGISTRY if operation.mutates or operation.secret]
SIGNED_IN = [operation for operation in MUTATING if operation.access is not Access.PUBLIC]
NOBODY = str(UUID(int=1))
ROWS_OF_ONE = 100
BODIES: dict[str, dict[str, Any]] = {
    "token.create": {"name": "t", "scopes": ["read"]},
    "project.create": {"name": "p"},
    "user.create": {"email": "new@example.org", "name": "New"},
    "session.login": {"email": "root@example.org", "password": PASSWORD},
    "location.create": {"name": "somewhere"},
    "network.create": {"name": "a network"},
    "node.bootstrap": {"name": "n1"},
}
"""Bodies with which an operation succeeds in an empty house; the others are refused, which leaves a row as well."""


@pytest.fixture
async def house(database: Database, tmp_path: Path) -> AsyncIterator[IdentityHarness]:
    """The whole controller, with an administrator in it."""
    config = ControllerConfig(data_dir=tmp_path, public_host="localhost", bind_host="127.0.0.1", gateway_port=0)
    async with (
        open_services(config, database, passwords=CheapPasswords(), enabled_loops=()) as services,
        open_identity(database, services=services) as world,
    ):
        yield world


async def ask(client: Client, operation: Operation[Any, Any, Any]) -> str:
    """Its answer's request id."""
    path = operation.route.path
    for name in ("id", "user_id", "rid"):
        path = path.replace("{" + name + "}", NOBODY)
    answer = await client.call(operation.route.method.value, path, BODIES.get(operation.name, {}))
    assert answer.status_code < 500, answer.text
    return answer.headers["X-Request-Id"]


async def people(house: IdentityHarness, role: str) -> list[UUID]:
    """As many as it takes to ask for every operation: of one person a minute's refusals leave so many rows."""
    return [
        await house.person(f"{role}-{number}@example.org", role) for number in range(len(MUTATING) // ROWS_OF_ONE + 1)
    ]


async def test_every_change_and_every_attempt_at_one_leaves_exactly_one_row(house: IdentityHarness) -> None:
    await house.person("root@example.org", "administrator", password=PASSWORD)
    administrators = await people(house, "administrator")
    asked: dict[str, str] = {}
    for position, operation in enumerate(MUTATING):
        token = await house.token(administrators[position // ROWS_OF_ONE])
        asked[operation.name] = await ask(house.program(token), operation)
    rows: dict[str, list[str]] = {}
    for row in await house.audit():
        rows.setdefault(row["request_id"], []).append(row["operation"])
    assert {name: rows.get(request_id) for name, request_id in asked.items()} == {name: [name] for name in asked}


async def test_what_the_scope_forbids_is_recorded_as_denied(house: IdentityHarness) -> None:
    administrators = await people(house, "administrator")
    for position, operation in enumerate(SIGNED_IN):
        person = administrators[position // ROWS_OF_ONE]
        request_id = await ask(house.program(await house.token(person, ["read"])), operation)
        [row] = [row for row in await house.audit() if row["request_id"] == request_id]
        assert (row["outcome"], row["error_code"], row["actor_id"]) == ("denied", "forbidden", person), operation.name


async def test_what_the_role_forbids_is_recorded_as_denied(house: IdentityHarness) -> None:
    customers = await people(house, "customer")
    for position, operation in enumerate(SIGNED_IN):
        if operation.access in (Access.ADMINISTRATOR, Access.STAFF):
            person = customers[position // ROWS_OF_ONE]
            request_id = await ask(house.program(await house.token(person)), operation)
            [row] = [row for row in await house.audit() if row["request_id"] == request_id]
            assert (row["outcome"], row["actor_id"]) == ("denied", person), operation.name


async def test_nobody_changes_anything_without_signing_in_and_leaves_no_row_behind(house: IdentityHarness) -> None:
    stranger = house.browser()
    for operation in SIGNED_IN:
        path = operation.route.path.replace("{id}", NOBODY).replace("{user_id}", NOBODY)
        answer = await stranger.call(operation.route.method.value, path, BODIES.get(operation.name, {}))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated"), operation.name
    assert await house.audit() == []


async def test_strangers_cannot_fill_the_audit(house: IdentityHarness) -> None:
    began = trio.current_time()
    for number in range(140):
        browser = house.browser(f"198.51.100.{number}")
        await browser.post("/auth/login", {"email": f"nobody{number}@example.org", "password": "guess"})
    minutes = (trio.current_time() - began) / 60
    assert 100 <= len(await house.audit()) <= 120 * (1 + minutes) + 1


async def test_refused_calls_of_one_person_leave_a_minutes_worth_of_rows_and_no_more(world: IdentityHarness) -> None:
    customer, other = await world.person("ada@example.org"), await world.person("eve@example.org")
    program, neighbour = world.program(await world.token(customer)), world.program(await world.token(other))

    for _ in range(300):
        assert (await program.post("/users", {"email": "x@example.org", "name": "X"})).status_code == 403
    assert (await neighbour.post("/users", {"email": "x@example.org", "name": "X"})).status_code == 403

    rows = await world.audit()
    assert 120 <= sum(row["actor_id"] == customer for row in rows) <= 150
    assert sum(row["actor_id"] == other for row in rows) == 1, "another's refusal is recorded all the same"
