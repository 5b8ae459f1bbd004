"""Every list of the controller, in every order and with every filter that it offers, as requests of one caller."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args
from uuid import UUID

from svc.controller.catalogue import controller_registry
from svc.controller.config import ControllerConfig
from svc.controller.realm import REALM
from svc.registry.operation import Context, Operation
from svc.registry.paging import PageRequest
from svc.registry.principal import Principal, Role
from svc_actors.store import Database
from svc_common.errors import ServiceError
from tests.support.callers import ADMINISTRATOR

_WHOLE = ("overview.show", "network.list")


def lists() -> Iterator[Operation[Any, Any, Any]]:
    """Paged lists, and what else looks through all there is."""
    for entry in controller_registry().entries():
        operation = entry.operation
        if issubclass(operation.request, PageRequest) or operation.name in (*_WHOLE, "search.find"):
            yield operation


async def run(operation: Operation[Any, Any, Any], principal: Principal, database: Any, request: Any) -> None:
    gateway = SimpleNamespace(heartbeat=lambda node_id: None)
    config = ControllerConfig(data_dir=Path("/"), public_host="localhost")
    services = SimpleNamespace(database=database, realm=REALM, gateway=gateway, config=config)
    await operation.handler(Context(principal=principal, caller=ADMINISTRATOR, services=services), request)


async def variants(
    operation: Operation[Any, Any, Any], principal: Principal, database: Database, ids: dict[str, UUID]
) -> AsyncIterator[dict[str, Any]]:
    """The parameters of each request, without a page: every order, some texts, every value of every filter."""
    if operation.name in _WHOLE:
        yield {}
        return
    if operation.name == "search.find":
        for q in ("vm-777", "10.0.0.77", "user-77", "abcdef12"):
            yield {"q": q}
        return
    of = {"id": ids[operation.subject]} if "id" in operation.request.model_fields else {}
    for sort in await offered_orders(operation, principal, database, of):
        yield {**of, "sort": sort}
        yield {**of, "sort": f"-{sort}"}
    for q in ("777", "vm-777", "10.0.0.77"):
        yield {**of, "q": q}
    for name, field in operation.request.model_fields.items():
        for value in values(name, field.annotation, ids):
            yield {**of, name: value}


async def offered_orders(
    operation: Operation[Any, Any, Any], principal: Principal, database: Database, of: dict[str, Any]
) -> list[str]:
    """The orders that a list names when it is asked for another."""
    try:
        await run(operation, principal, database, operation.request(**of, sort="no_such_order"))
    except ServiceError as error:
        return error.message.partition("one of ")[2].partition(", with")[0].split(", ")
    raise AssertionError(f"{operation.name} takes any order")


def values(name: str, annotation: Any, ids: dict[str, UUID]) -> list[Any]:
    """What a filter may be asked for."""
    if name in ("id", "page", "page_size", "sort", "q", "period"):
        return []
    kinds = [kind for kind in (annotation, *get_args(annotation)) if inspect.isclass(kind)]
    for kind in kinds:
        if issubclass(kind, StrEnum):
            return list(kind)
        if kind is UUID:
            return [ids[name]]
        if kind is int:
            return [24]
    return ["vm.start"]


async def sample_ids(database: Database, customer: Principal) -> dict[str, Any]:
    """One of each; project and machine are the customer's."""
    of = "SELECT project_id FROM project_members WHERE user_id = $1"
    mine = {
        "person": customer.user_id,
        "user": customer.user_id,
        "project": await database.fetchval(of, customer.user_id),
        "vm": await database.fetchval(f"SELECT id FROM vms WHERE project_id IN ({of}) LIMIT 1", customer.user_id),
        # The receiver whose deliveries alert.deliveries lists.
        "alert": await database.fetchval(
            "INSERT INTO webhook_endpoints (url, least, enabled_at, sealed_secret, last_four)"
            " VALUES ('https://receiver.example/', 'critical', now(), '', 'abcd') RETURNING id"
        ),
    }
    tables = {"node": "nodes", "network": "networks", "pool": "pools", "location": "locations"}
    return mine | {
        name: await database.fetchval(f"SELECT id FROM {table} ORDER BY id DESC LIMIT 1")
        for name, table in tables.items()
    }


async def principals(database: Database) -> tuple[Principal, Principal]:
    administrator = Principal(
        user_id=await database.fetchval("SELECT id FROM users WHERE role = 'administrator'"),
        email="root@example.org",
        role=Role.ADMINISTRATOR,
        scopes=None,
    )
    own = await database.fetchval("SELECT user_id FROM project_members ORDER BY user_id LIMIT 1")
    return administrator, replace(administrator, user_id=own, role=Role.CUSTOMER)
