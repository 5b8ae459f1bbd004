"""A service with its callers: an administrator, staff, a customer of the world's project, and a stranger."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from svc.registry.principal import Role
from svc_actors.controller.reconcile.power_watch import PowerWatch
from svc_actors.controller.reconcile.remains_watch import RemainsWatch
from svc_actors.store import Database
from svc_common.errors import ServiceError
from tests.support.machine_api import Api, person
from tests.support.machine_service import FakeGateway, Fleet, Service, make_fleet, open_service

PASSWORD = "Correct-Horse-7"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGm2s8Z7p0S0u6mN0cY3m1Wc5v4w5n0cW0b1y2x3z4A5 me@home"


@dataclass
class MachineHarness:
    service: Service
    world: Fleet
    administrator: Api
    staff: Api
    customer: Api
    stranger: Api
    plan_id: str

    def order(self, **changes: object) -> dict[str, Any]:
        values: dict[str, Any] = {
            "name": "web",
            "project_id": self.world.project_id,
            "image_id": self.world.image_id,
            "plan_id": self.plan_id,
            "ssh_keys": [KEY],
        }
        return {name: value for name, value in (values | changes).items() if value is not None}

    async def created(self, api: Api | None = None, **changes: object) -> Any:
        answer = await (api or self.customer)("vm.create", **self.order(**changes))
        await self.service.ended(answer.task.id)
        return answer

    async def tidied(self) -> None:
        """Nodes have been asked to remove what moves have left on them."""
        await RemainsWatch(self.service.database, self.service.gateway).round()

    async def powered(self) -> None:
        """What shall run has been started, as once hosts have told of all their machines."""
        database = self.service.database
        await database.execute("UPDATE vms SET observed_at = observed_at - interval '5 seconds'")
        await PowerWatch(database, self.service.actors).look()
        for row in await database.fetch("SELECT id FROM tasks WHERE status IN ('queued', 'running')"):
            await self.service.ended(row["id"])


@asynccontextmanager
async def stage(database: Database) -> AsyncIterator[MachineHarness]:
    world = await make_fleet(database)
    plan = await database.fetchval(
        """INSERT INTO plans (name, slug, vcpus, memory_mib, disk_gib) VALUES ('S', 's', 1, 256, 1) RETURNING id"""
    )
    async with open_service(database, FakeGateway()) as service:

        async def api(role: Role, *projects: Any) -> Api:
            return Api(service, await person(database, role, projects=projects))

        yield MachineHarness(
            service,
            world,
            administrator=await api(Role.ADMINISTRATOR),
            staff=await api(Role.STAFF),
            customer=await api(Role.CUSTOMER, world.project_id),
            stranger=await api(Role.CUSTOMER),
            plan_id=plan,
        )


async def refusal(api: Api, name: str, /, **values: object) -> ServiceError:
    with pytest.raises(ServiceError) as refused:
        await api(name, **values)
    return refused.value
