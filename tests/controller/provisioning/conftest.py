"""A controller with a billing system: a token of scope `provision`, and nodes that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from svc.registry.principal import Role
from svc_actors.controller.provisioning.settling import settle_due
from svc_actors.store import Database
from tests.support.machine_api import Api, person
from tests.support.machines import MachineHarness, stage


@dataclass
class Billing:
    """`biller` is a staff member's token of scope `provision` alone."""

    now: MachineHarness
    biller: Api
    database: Database
    keys: Any

    async def settle_due(self) -> None:
        await settle_due(self.database, self.now.service.actors)

    def order(self, **changes: object) -> dict[str, Any]:
        number = next(self.keys)
        values: dict[str, Any] = {
            "idempotency_key": f"order-{number}",
            "integration": "whmcs",
            "external_ref": f"{number}",
            "customer_email": "ada@example.org",
            "customer_name": "Ada",
            "name": f"web-{number}",
            "plan_slug": "s",
            "image_id": self.now.world.image_id,
        }
        return {name: value for name, value in (values | changes).items() if value is not None}

    async def ordered(self, **changes: object) -> Any:
        """A service, once its machine has been built or has failed to."""
        answer = await self.biller("service.create", **self.order(**changes))
        await self.now.service.ended(answer.task.id)
        await self.settle_due()
        return answer

    async def settled(self, service_id: object) -> Any:
        """The service once its machine is what its state says."""
        with trio.fail_after(60):
            while not (service := await self.biller("service.show", id=service_id)).settled:
                await self.settle_due()
                await trio.sleep(0.01)  # The watch, and the tasks that it makes, are what is waited for.
        return service

    async def customer(self, project_id: UUID) -> Api:
        """A customer who is a member of the project."""
        return Api(self.now.service, await person(self.database, Role.CUSTOMER, projects=(project_id,)))

    async def token(self, role: Role, *scopes: str) -> Api:
        principal = await person(self.database, role)
        return Api(self.now.service, replace(principal, scopes=frozenset(scopes), session_id=None, token_id=uuid4()))


@pytest.fixture
async def billing(database: Database) -> AsyncIterator[Billing]:
    async with stage(database) as now:
        billing = Billing(now, now.staff, database, count(1))
        billing.biller = await billing.token(Role.STAFF, "provision")
        yield billing
