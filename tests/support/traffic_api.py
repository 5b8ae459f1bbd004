"""The API over a stage, and the people who ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import httpx
import trio

from svc.controller.realm import REALM
from svc.controller.services import Controller, give_project
from svc_actors.sealing import Sealer
from svc_actors.store import EventLog
from tests.support.harness import CheapPasswords, Client
from tests.support.identity import open_identity
from tests.support.traffic import TrafficHarness


@dataclass
class Callers:
    """People with a stage of their own to look at."""

    administrator: Client
    staff: Client
    customer: Client
    stranger: Client


@asynccontextmanager
async def callers(stage: TrafficHarness) -> AsyncIterator[Callers]:
    """Over HTTP. The customer is a member of the stage's project."""
    async with trio.open_nursery() as nursery:
        log = EventLog(stage.database)
        await nursery.start(log.run)
        services = cast(
            Controller,
            SimpleNamespace(
                database=stage.database,
                events=log,
                sealer=Sealer(bytes(32)),
                passwords=CheapPasswords(),
                person_added=give_project,
                realm=REALM,
            ),
        )
        async with open_identity(stage.database, services=services) as world:

            async def caller(role: str, name: str) -> tuple[UUID, Client]:
                user_id = await world.person(f"{name}@example.com", role)
                return user_id, world.program(await world.token(user_id))

            customer_id, customer = await caller("customer", "customer")
            await stage.database.execute(
                "INSERT INTO project_members (project_id, user_id) VALUES ($1, $2)", stage.project_id, customer_id
            )
            yield Callers(
                administrator=(await caller("administrator", "administrator"))[1],
                staff=(await caller("staff", "staff"))[1],
                customer=customer,
                stranger=(await caller("customer", "stranger"))[1],
            )
        nursery.cancel_scope.cancel()


async def get(client: Client, path: str) -> Any:
    return told(await client.get(path))


async def put(client: Client, path: str, body: Any) -> Any:
    return told(await client.call("PUT", path, body))


def told(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response) -> str:
    """The code of a refusal."""
    assert not answer.is_success, answer.text
    code: str = answer.json()["error"]["code"]
    return code
